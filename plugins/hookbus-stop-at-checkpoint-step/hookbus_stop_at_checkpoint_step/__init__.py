"""Stops a worker as soon as the checkpoint of the last step is on disk."""

from __future__ import annotations

from pathlib import Path

import attrs

import hookbus
from hookbus import (
    CheckpointError,
    Session,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.validation import numeric


@attrs.define(eq=False)
class StopAtCheckpointStepHook(SessionRunHook):
    """Asks to stop when the last step is reached and its checkpoint is on disk.

    It is for a worker whose chief saves. Until the chief's checkpoint exists, the worker
    continues, with a pause after each run. A signal, or a thread that asks the coordinator
    to stop, ends a pause at once. A worker that starts when both are true runs nothing.

    Args:
        model_dir: the directory that the chief saves into.
        last_step: the global step to stop at; a checkpoint of a later step also counts.
        wait_after_file_check_secs: seconds to pause while the checkpoint does not exist.

    Raises:
        UsageError: the directory or the step is missing, the step is not above 0, or the
            seconds are negative.

    >>> hook = StopAtCheckpointStepHook("runs/digits", last_step=1000)
    >>> hook.last_step, hook.wait_after_file_check_secs
    (1000, 30.0)
    """

    options = hookbus.HookOptions(main_setting="last_step", only_observes=True)

    model_dir: str | Path
    last_step: int = attrs.field(validator=numeric(above=0))
    wait_after_file_check_secs: float = attrs.field(
        default=30.0, validator=numeric(least=0)
    )

    def __attrs_post_init__(self) -> None:
        if self.last_step is None:
            raise UsageError("last_step must be specified.")
        if self.model_dir is None:
            raise UsageError("model_dir must be specified.")

    @hookbus.hookimpl
    def before_first_run(self, session: Session) -> str | None:
        """Stop without a run if the last step is reached and its checkpoint is on disk."""
        reached = session.global_step >= self.last_step
        return self._reason(self._saved_step()) if reached else None

    @hookbus.hookimpl
    def planned_last_step(self) -> int:
        """Return the last step; a few more runs may follow until the checkpoint exists."""
        return self.last_step

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the last step."""
        return hookbus.Due(self.last_step)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop, or pause, once the last step is reached."""
        if run_values.global_step < self.last_step or run_context.stop_requested:
            return
        saved = self._saved_step()
        reason = self._reason(saved)
        if reason is not None:
            run_context.request_stop(reason)
            return
        hookbus.log.info(
            "waiting for the checkpoint of the last step",
            step=run_values.global_step,
            last_step=self.last_step,
            newest=saved,
            model_dir=str(self.model_dir),
        )
        run_context.wait(self.wait_after_file_check_secs)

    def _reason(self, saved: int) -> str | None:
        if saved < self.last_step:
            return None
        return f"the checkpoint of step {saved} is on disk"

    def _saved_step(self) -> int:
        try:
            newest = hookbus.latest_checkpoint(self.model_dir)
        except CheckpointError as error:
            # A file server that is down for a moment must not fail a worker.
            hookbus.log.warning(str(error), by="stop-at-checkpoint-step")
            return 0
        return newest.global_step if newest is not None else 0
