"""Asks for checkpoints when they are due, and notifies listeners of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import attrs

import hookbus
from hookbus import (
    Checkpoints,
    CheckpointSaverListener,
    SecondOrStepTimer,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

__all__ = ["CheckpointSaverHook", "CheckpointSaverListener"]


def _all(
    given: Iterable[CheckpointSaverListener] | None,
) -> tuple[CheckpointSaverListener, ...]:
    return tuple(given or ())


@attrs.define(eq=False)
class CheckpointSaverHook(SessionRunHook):
    """Asks for a checkpoint when the session starts, periodically, and at its end.

    The session itself writes the checkpoint, at most once a run, after all hooks have seen
    the run; so the checkpoint holds the state of every hook after that step.

    Args:
        checkpoint_dir: the directory to save into; by default the session's
            ``checkpoint_dir``.
        save_secs: seconds between checkpoints.
        save_steps: global steps between checkpoints.
        listeners: objects to notify before and after each save, in this order.
        max_to_keep: the number of checkpoints to keep; 0 or None keeps all.
        save_epochs: passes of ``session.iterate`` between checkpoints, in a custom loop.

    Raises:
        UsageError: not exactly one period is given, or a session has no directory.
    """

    exclusive_settings = (("save_secs", "save_steps", "save_epochs"),)
    default_settings: ClassVar = {"save_secs": 600.0}

    checkpoint_dir: str | None = None
    save_secs: float | None = attrs.field(default=None, validator=hookbus.numeric(least=0))
    save_steps: int | None = attrs.field(default=None, validator=hookbus.numeric(above=0))
    listeners: Sequence[CheckpointSaverListener] = attrs.field(default=(), converter=_all)
    max_to_keep: int | None = attrs.field(default=5, validator=hookbus.numeric(least=0))
    save_epochs: int | None = attrs.field(default=None, validator=hookbus.numeric(above=0))
    _timer: SecondOrStepTimer | None = attrs.field(default=None, init=False)
    _checkpoints: Checkpoints | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.save_epochs is None:
            named = "save_secs, save_steps and save_epochs of checkpoint-saver"
            self._timer = SecondOrStepTimer(self.save_secs, self.save_steps, named=named)
        elif (self.save_secs, self.save_steps) != (None, None):
            raise hookbus.UsageError(
                "exactly one of save_secs, save_steps and save_epochs of checkpoint-saver "
                "should be provided."
            )

    def begin(self, checkpoints: Checkpoints) -> None:
        """Switch saving on."""
        checkpoints.enable(self.checkpoint_dir, self.max_to_keep)
        self._checkpoints = checkpoints
        for listener in self.listeners:
            listener.begin()

    def after_create_session(self, session: hookbus.Session) -> None:
        """Ask for the first checkpoint; the period counts from it."""
        assert self._checkpoints is not None
        self._checkpoints.request_save("start")
        if self._timer is not None:
            self._timer.update_last_triggered_step(session.global_step)

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the period to end; a period of epochs ends between two runs."""
        return hookbus.Due() if self._timer is None else self._timer.next_due()

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask for a checkpoint when one is due."""
        step = run_values.global_step
        if self._timer is not None and self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            period = (
                f"{self.save_secs:g} seconds"
                if self.save_steps is None
                else f"{self.save_steps} steps"
            )
            run_context.request_save(f"every {period}")

    @hookbus.hookimpl
    def epoch_ended(self, epoch: int) -> None:
        """Ask for a checkpoint at the end of each so many epochs."""
        assert self._checkpoints is not None
        if self.save_epochs is not None and (epoch + 1) % self.save_epochs == 0:
            epochs = "epoch" if self.save_epochs == 1 else f"{self.save_epochs} epochs"
            self._checkpoints.request_save(f"every {epochs}")

    @hookbus.hookimpl
    def saving(self, session: hookbus.Session, global_step: int) -> None:
        """Notify the listeners that a checkpoint will be written."""
        for listener in self.listeners:
            listener.before_save(session, global_step)

    @hookbus.hookimpl
    def after_save(self, session: hookbus.Session, global_step: int) -> str | None:
        """Notify the listeners, and stop if one of them asks for it."""
        stop = None
        for listener in self.listeners:
            if listener.after_save(session, global_step):
                stop = f"{type(listener).__name__} asked for it after a save"
        return stop

    @hookbus.hookimpl
    def finished(self, session: hookbus.Session) -> None:
        """Notify the listeners that the session is over and its last checkpoint written."""
        for listener in self.listeners:
            listener.end(session, session.global_step)
