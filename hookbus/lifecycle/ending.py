"""Decides whether a session ends, and why: a stop, a signal, or the end of its input."""

from __future__ import annotations

import attrs

from hookbus.errors import (
    RunAfterStopError,
    SessionInterruptedError,
    SessionStoppedError,
    culprit_of,
)
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import StopReason
from hookbus.hooks.requests import RunRequests
from hookbus.logs import log
from hookbus.process.signals import KINDS, SignalWatch


@attrs.frozen
class DeferredStop:
    """A stop that waits until the session comes to a step.

    Attributes:
        stop: the stop.
        step: the step from which on the stop may take effect: the global step before the
            run in which a hook asked for the stop.
    """

    stop: StopReason
    step: int


@attrs.define(eq=False)
class Ending:
    """The reasons for which a session ends.

    Attributes:
        signals: notices SIGINT, SIGTERM and SIGHUP.
        stop: the stop that took effect, perhaps by a signal; None before.
        was_asked: whether a hook asked for the stop that took effect.
        input_end: the end of input; None before.
        deferred: a stop that waits for its step. A stop waits while a failed run is
            repeated, and after a roll-back.
        failed: the stop of the run that failed last. It becomes the deferred stop only if
            the session repeats the run.
        relies_on_last: whether there was no time to save, so that the next session resumes
            from the last checkpoint.
        written_at: the step of the newest checkpoint that another loop has written; None
            before.
    """

    signals: SignalWatch
    stop: StopReason | None = None
    was_asked: bool = False
    input_end: BaseException | None = None
    deferred: DeferredStop | None = None
    failed: DeferredStop | None = None
    relies_on_last: bool = False
    written_at: int | None = None

    @property
    def is_decided(self) -> bool:
        """Whether a stop took effect, or a signal has arrived."""
        return self.stop is not None or self.signals.came()

    @property
    def is_waiting(self) -> bool:
        """Whether a stop waits, so that each run may be the last one."""
        return self.deferred is not None or self.failed is not None

    @property
    def is_cut_short(self) -> bool:
        """Whether training resumes after the stop that took effect."""
        return self.stop is not None and self.stop.kind in KINDS.values()

    def due(self, began: int, asked: RunRequests) -> StopReason | None:
        """Return the stop that is due after a run that began at step *began*, or None.

        A stop of the run itself takes precedence over the deferred one. After a run that
        was undone, the deferred stop waits on.
        """
        waiting = self.deferred
        if asked.stop is None and waiting is not None and began >= waiting.step:
            return None if asked.is_undone else waiting.stop
        return asked.stop

    def take_due(self, began: int, asked: RunRequests) -> StopReason | None:
        """Return the stop that is due, and remove the request for it."""
        stop = self.due(began, asked)
        if stop is not None:
            asked.stop, self.deferred, self.was_asked = None, None, True
        return stop

    def take(self, stop: StopReason) -> bool:
        """Have a stop take effect; return False if another one did so before."""
        if self.stop is not None:
            return False
        self.stop = stop
        return True

    def signal_stop(self) -> StopReason | None:
        """Return a stop for the signal that has arrived; None without a signal."""
        received = self.signals.received
        if received is None:
            return None
        return StopReason(self.signals.name, f"{self.signals.name} came", KINDS[received])

    def take_input_end(self, error: BaseException) -> None:
        """Record that the input has ended."""
        culprit = culprit_of(error)
        if culprit is not None:
            log.warning("end of input was raised outside an input", by=culprit)
        self.input_end = error

    def defer(self, stop: StopReason, step: int) -> None:
        """Have a stop wait for a run that begins at *step* or later."""
        if self.deferred is None or step < self.deferred.step:
            self.deferred = DeferredStop(stop, step)

    def note_failed(self, asked: RunRequests, step: int) -> None:
        """Remember the stop of a run that began at *step* and failed."""
        if asked.stop is not None:
            self.failed = DeferredStop(asked.stop, step)

    def forget_failed(self) -> None:
        """Forget the stop of a failed run: the session continues without the run."""
        self.failed = None

    def repeat_failed(self) -> None:
        """Defer the stop of the failed run: the session repeats the run."""
        failed, self.failed = self.failed, None
        if failed is not None:
            self.defer(failed.stop, failed.step)

    def refusal(
        self, kind: Kind | None, leaves_loop: bool
    ) -> SessionInterruptedError | RunAfterStopError | SessionStoppedError | None:
        """Return the error of a run that comes after the end; None if it is allowed.

        Args:
            kind: the purpose of the run; an ``aux`` run is allowed.
            leaves_loop: whether the error leaves the loop of the caller, for the session's
                block. In a graph the code after a run needs the value of the run, so the
                error of a stop reaches the caller, as in TF.
        """
        if kind == "aux":
            return None
        if self.signals.came():
            interrupted = SessionStoppedError if leaves_loop else SessionInterruptedError
            return interrupted(
                f"{self.signals.name} ended the session; use: while not "
                "session.should_stop()"
            )
        if self.stop is None:
            return None
        refused = SessionStoppedError if leaves_loop else RunAfterStopError
        return refused(
            f"Run called even after should_stop requested: {self.stop.who} stopped the "
            f"session ({self.stop.why}); use: while not session.should_stop()"
        )
