"""Delays a worker until the training as a whole has reached a global step."""

from __future__ import annotations

import time
from pathlib import Path

import attrs

import hookbus
from hookbus import Checkpoints, SessionRunContext, SessionRunHook, UsageError
from hookbus.errors import SessionInterruptedError
from hookbus.validation import numeric

_CHECK_EVERY = 0.5
_LOG_EVERY_STEPS = 1000
_LOG_EVERY_SECS = 60.0


@attrs.define(eq=False)
class GlobalStepWaiterHook(SessionRunHook):
    """Delays the first run of a session until the training has reached a global step.

    That step is the greater of two: the session's own, which a backend may share with
    other processes, and that of the newest checkpoint of the other processes. The hook
    checks both twice a second. It waits before the first run only, not after a recovery. A
    signal, or a thread that asks the coordinator to stop, ends the wait and the session.

    Args:
        wait_until_step: the global step to wait for; 0 or less does not wait.
        checkpoint_dir: the directory that the other processes save into. The default is
            the session's own, unless this session saves there itself.

    Raises:
        UsageError: nothing could ever end the wait.
        SessionInterruptedError: the wait was cut short; the session's block handles it.

    >>> from hookbus.testing import run_steps
    >>> run_steps(GlobalStepWaiterHook(0), steps=2).global_step  # it waits for nothing
    2
    """

    options = hookbus.HookOptions(only_observes=True)

    wait_until_step: int = attrs.field(validator=numeric())
    checkpoint_dir: str | Path | None = None
    _checkpoints: Checkpoints | None = attrs.field(default=None, init=False)
    _started: bool = attrs.field(default=False, init=False)

    def begin(self, checkpoints: Checkpoints) -> None:
        """Reset the wait for a new session."""
        self._checkpoints = checkpoints
        self._started = self.wait_until_step <= 0

    def after_create_session(self, session: hookbus.Session) -> None:
        """Check that the wait can end."""
        if self._started or self._step(session) >= self.wait_until_step:
            return
        if not session.shares_step and self._others_save_into() is None:
            raise UsageError(
                f"global-step-waiter would wait for step {self.wait_until_step} forever: "
                "only its own runs advance this session. Name the directory that the "
                "other processes save into: --global-step-waiter-checkpoint-dir DIR, or "
                "checkpoint_dir="
            )

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due | None:
        """Take no part in the runs after the first one."""
        return hookbus.Due() if self._started else None

    def before_run(self, run_context: SessionRunContext) -> None:
        """Wait, if this is the first run."""
        if not self._started:
            # A session that is about to stop runs once more, and does not have to wait for
            # it.
            if not run_context.stop_requested:
                self._wait(run_context)
            self._started = True

    def _wait(self, run_context: SessionRunContext) -> None:
        step = self._step(run_context.session)
        logged, when = self._log(step)
        while step < self.wait_until_step:
            if not run_context.wait(_CHECK_EVERY):
                raise SessionInterruptedError(
                    "the session ends while global-step-waiter still waits for step "
                    f"{self.wait_until_step}"
                )
            step = self._step(run_context.session)
            late = time.monotonic() - when >= _LOG_EVERY_SECS
            if step - logged > _LOG_EVERY_STEPS or late:
                logged, when = self._log(step)

    def _log(self, step: int) -> tuple[int, float]:
        directory = self._others_save_into()
        extra = {} if directory is None else {"checkpoint_dir": str(directory)}
        hookbus.log.info(
            "waiting for the global step before training",
            wait_until_step=self.wait_until_step,
            now=step,
            **extra,
        )
        return step, time.monotonic()

    def _step(self, session: hookbus.Session) -> int:
        directory = self._others_save_into()
        newest = hookbus.latest_checkpoint(directory) if directory is not None else None
        return max(session.global_step, newest.global_step if newest is not None else 0)

    def _others_save_into(self) -> Path | None:
        """Return the directory that other processes may save into, or None."""
        own = self._checkpoints
        assert own is not None
        given = self.checkpoint_dir
        directory = own.directory if given is None else Path(given).absolute()
        saves_itself = own.enabled_by is not None and directory == own.directory
        return None if saves_itself else directory
