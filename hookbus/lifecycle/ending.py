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
        step: the step from which on it may take effect: that at which the run began in
            which it was asked for.
    """

    stop: StopReason
    step: int


@attrs.define(eq=False)
class Ending:
    """Why a session ends.

    Attributes:
        signals: notices SIGINT, SIGTERM and SIGHUP.
        stop: the stop that took effect, also that of a signal; None until then.
        was_asked: whether a hook has asked for it.
        input_end: the end of input, once it was reached.
        deferred: a stop that waits. Used while a failed run is repeated, and after a
            roll-back.
        failed: the stop of a run that failed. It waits only if the session repeats the run.
    """

    signals: SignalWatch
    stop: StopReason | None = None
    was_asked: bool = False
    input_end: BaseException | None = None
    deferred: DeferredStop | None = None
    failed: DeferredStop | None = None

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
        """Whether the stop that took effect is one after which the training resumes."""
        return self.stop is not None and self.stop.kind in KINDS.values()

    def due(self, began: int, asked: RunRequests) -> StopReason | None:
        """Return the stop that is due after a run that began at a step; None for none.

        The stop of the run itself comes before one that waits. A run that was undone does
        not end the session in which it has no place any more.
        """
        waiting = self.deferred
        if asked.stop is None and waiting is not None and began >= waiting.step:
            return None if asked.is_undone else waiting.stop
        return asked.stop

    def take_due(self, began: int, asked: RunRequests) -> StopReason | None:
        """Return the stop that is due, which takes effect now."""
        stop = self.due(began, asked)
        if stop is not None:
            asked.stop, self.deferred, self.was_asked = None, None, True
        return stop

    def take(self, stop: StopReason) -> bool:
        """Have a stop take effect; return whether none did before."""
        if self.stop is not None:
            return False
        self.stop = stop
        return True

    def signal_stop(self) -> StopReason | None:
        """Return the stop that the signal which arrived is; None without a signal."""
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
        """Forget the stop of a run that failed: the session went on without it."""
        self.failed = None

    def repeat_failed(self) -> None:
        """Have the stop of the failed run wait: the session repeats the run."""
        failed, self.failed = self.failed, None
        if failed is not None:
            self.defer(failed.stop, failed.step)

    def refusal(
        self, kind: Kind | None, leaves_loop: bool
    ) -> SessionInterruptedError | RunAfterStopError | SessionStoppedError | None:
        """Return the error of a run that comes after the end; None if it is allowed.

        Args:
            kind: the purpose of the run; an ``aux`` run is allowed.
            leaves_loop: whether a stop leaves the loop of the caller, as a signal does. In
                a graph a run has a value that the code behind it needs, so there the error
                goes on, as in TF.
        """
        if kind == "aux":
            return None
        if self.signals.came():
            return SessionInterruptedError(
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
