"""What keeps a session running: retries after a preemption, reasons to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from hookbus.checkpoint.saver import Saver
from hookbus.errors import (
    END_OF_INPUT,
    RunAfterStopError,
    SessionClosedError,
    SessionInterruptedError,
    UsageError,
)
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook import Kind
from hookbus.hooks.outcome import (
    Outcome,
    Stop,
    clean_outcome,
    failed_outcome,
    log_late_preemption,
    warn_about_input_end,
)
from hookbus.hooks.timer import pause
from hookbus.logs import log
from hookbus.session.lifecycle import RequestHandler
from hookbus.session.manager import CoordinatedSession, Preempted, SessionManager
from hookbus.session.signals import KINDS, SignalWatch

_LONGEST_WAIT = 60.0


@attrs.define(eq=False)
class Recovery:
    """Counts the preemptions in a row and waits longer after each.

    Attributes:
        most: how many in a row are tried to be recovered from; a run that succeeds
            starts the count anew.
        first_wait: seconds to wait after the first one; doubled after each further one.
            The longest wait is a minute.
        in_a_row: how many there were since a run last succeeded.
    """

    most: int = attrs.field(default=5)
    first_wait: float = attrs.field(default=1.0)
    in_a_row: int = attrs.field(default=0, init=False)

    @most.validator
    @first_wait.validator
    def _check(self, field: attrs.Attribute[Any], value: float) -> None:
        if value < 0:
            raise UsageError(f"Recovery({field.name}={value}): it is a number from 0 on")

    def wait(self, error: BaseException, hurry: Callable[[], bool]) -> None:
        """Wait until it makes sense to try again, or give up.

        Args:
            error: the preemption.
            hurry: says whether to stop waiting, as after a signal.

        Raises:
            BaseException: *error* itself, when enough was tried.
        """
        if self.in_a_row >= self.most:
            error.add_note(f"hookbus: gave up after {self.most} recoveries in a row")
            raise error
        seconds = min(_LONGEST_WAIT, self.first_wait * 2.0 ** min(self.in_a_row, 60))
        self.in_a_row += 1
        log.warning(
            "preempted; the session is opened again",
            why=f"{type(error).__name__}: {error}",
            recovery=self.in_a_row,
            wait_secs=seconds,
        )
        pause(seconds, hurry)


T = TypeVar("T")
Done: TypeAlias = tuple[Any, int]
"""What a run returned, and the global step after it."""


@attrs.define(eq=False)
class RecoverableSession:
    """Runs things on the backend session of the moment.

    Attributes:
        opener: opens backend sessions.
        actor: does what hooks asked for.
        keeper: holds the position when nothing trains any more.
        recovery: says how often to try again; None never tries.
        watch: tells of signals.
        grace: seconds to wait for threads of a backend session that is closed.
        own_loop: whether the session is for a loop of one's own.
        raises: whether asking to stop raises what a thread failed with.
        attempt: the backend session of the moment; None before the first.
        stop: who asked for the end, once somebody has.
        input_end: the end of input, once it is reached.
        closed: whether the session is over.
    """

    opener: SessionManager
    actor: RequestHandler
    keeper: Saver
    recovery: Recovery | None
    watch: SignalWatch
    grace: float
    own_loop: bool = False
    raises: bool = False
    attempt: CoordinatedSession | None = None
    stop: Stop | None = None
    input_end: BaseException | None = None
    closed: bool = False

    def start(self) -> None:
        """Open the first backend session, and do what hooks asked for meanwhile."""
        self._take_stop(self._open())

    def cancelled(self, attempt: CoordinatedSession) -> None:
        """Keep a stop that was asked for in a step that does not count."""
        self.actor.keep_stop(attempt.session.global_step - 1)
        self.actor.act(attempt.session, None, saving=False)
        self._take_stop(attempt)

    def repeat(
        self,
        cause: BaseException,
        what: Callable[[CoordinatedSession], T],
        done: Done | None = None,
    ) -> T:
        """Do again what a preemption cut short, on a new backend session, until done.

        Args:
            cause: the preemption.
            what: the thing to do.
            done: what it came to and at which step, where only what followed was cut
                short. If the checkpoint has that step, it is not done again.
        """
        while True:
            attempt = self._recover(cause)
            if done is not None and attempt.session.global_step >= done[1]:
                return cast("T", done[0])
            try:
                return what(attempt)
            except Exception as error:
                further = self.preemption(error)
                if further is None:
                    raise
                cause = further

    def after_run(self, attempt: CoordinatedSession, context: SessionRunContext) -> None:
        """Do what hooks, or a signal, asked for in a run that succeeded."""
        asks = self.actor.asks
        if self.watch.received is not None and self.stop is None:
            self.notice_signal()
            asks.request_save(self.watch.name, "a signal came")
        wanted = asks.save or asks.save_anyway or asks.stop or asks.writes
        if wanted or self.actor.kept is not None:
            self.actor.act(attempt.session, context)
        if self.actor.stop is not None:
            self._take_stop(attempt)
        if self.recovery is not None and self.recovery.in_a_row:
            self.recovery.in_a_row = 0

    def usable(self, kind: Kind | None) -> CoordinatedSession:
        """Return the backend session, if anything is to be run on it any more."""
        attempt = self.attempt
        usual = self.stop is None and self.watch.received is None
        if usual and attempt is not None and not self.closed:
            return attempt
        if self.closed or attempt is None:
            raise SessionClosedError("run() on a session that is closed; make a new one")
        if self.watch.received is not None and kind != "aux":
            self.notice_signal()
            raise SessionInterruptedError(
                f"{self.watch.name} has ended the session; loop on while not "
                "session.should_stop()"
            )
        if self.stop is not None and kind != "aux":
            raise RunAfterStopError(
                f"Run called even after should_stop requested: {self.stop.who} stopped the "
                f"session ({self.stop.why}); loop on while not session.should_stop()"
            )
        return attempt

    def should_stop(self) -> bool:
        """Say whether to leave the loop; recover, if a thread met a preemption."""
        if self.stop is not None or self.closed or self.input_end is not None:
            return True
        attempt = self.attempt
        if self.watch.received is not None or attempt is None:
            return True
        if not attempt.coord.should_stop():
            return False
        error = attempt.coord.exception
        cause = self.preemption(error) if error is not None else None
        if cause is None:
            if self.raises and error is not None:
                raise error
            return True
        self._recover(cause)
        return False

    def preemption(self, error: BaseException) -> BaseException | None:
        """Return the preemption behind an error, if it can be recovered from.

        A session that shows its backend raises it instead.
        """
        found = self.attempt.preemption(error) if self.attempt is not None else None
        if self.recovery is not None:
            return found
        if self.raises and found is not None and found is not error:
            raise found from error
        return None

    def end_input(self, error: BaseException) -> None:
        """Note that the input has ended."""
        warn_about_input_end(error)
        self.input_end = error
        self.hold_position()

    def notice_signal(self) -> None:
        """Take a signal that came for a stop."""
        received = self.watch.received
        if self.stop is None and received is not None:
            self.stop = Stop(self.watch.name, f"{self.watch.name} came", KINDS[received])
            self.hold_position()

    def hold_position(self) -> None:
        """Have the last checkpoint say that the input stands where it stands now."""
        if self.attempt is not None:
            self.keeper.hold_position(self.attempt.session)

    def settle(
        self, error: BaseException | None, clean: bool
    ) -> tuple[BaseException | None, bool]:
        """Return what the session ends with, and whether that is well.

        Args:
            error: what reached its exit, or None.
            clean: whether that is a good end.
        """
        thread = self.thread_error() if clean else None
        if thread is not None:
            return thread, False
        try:
            if clean and isinstance(error, END_OF_INPUT):
                self.end_input(error)
            self.notice_signal()
            self.hold_position()
        except BaseException as late:  # an input that cannot tell where it stands
            return (late, False) if clean else (error, False)
        return error, clean

    def last_step(self) -> int | None:
        """Return the earliest end that a hook plans or an input has."""
        if self.attempt is None:
            return None
        session = self.attempt.session
        planned = self.opener.bus.caller("planned_last_step").collect()
        ends = [answer for _, answer in planned]
        left = session.remaining()
        if left is not None:
            ends.append(session.global_step + left)
        return min(ends, default=None)

    def outcome(self, error: BaseException | None, clean: bool) -> Outcome:
        """Put into words how the session ended."""
        step = self.attempt.session.global_step if self.attempt is not None else 0
        if clean:
            return clean_outcome(self.stop, self.input_end, step)
        return failed_outcome(error, step, self.opener.bus.turn)

    def thread_error(self) -> BaseException | None:
        """Return what a thread failed with, unless it can be recovered from."""
        error = self.attempt.coord.exception if self.attempt is not None else None
        if error is None or self.preemption(error) is not None:
            return None
        return error

    def close(self) -> BaseException | None:
        """Close the backend session; return what one of its threads failed with."""
        if self.attempt is None:
            return None
        error = self.attempt.close(self.grace)
        if error is not None and self.preemption(error) is not None:
            log_late_preemption(error)
            return None
        return error

    def _open(self) -> CoordinatedSession:
        """Open a backend session, again and again where that is preempted, too."""
        while True:
            try:
                self.attempt = attempt = self.opener.open()
            except Preempted as preempted:
                cause = preempted.cause
            else:
                failed = self._act_at_start(attempt)
                if failed is None:
                    return attempt
                cause = failed
            if self.recovery is None:
                raise cause
            self.recovery.wait(cause, self.opener.hurry)

    def _act_at_start(self, attempt: CoordinatedSession) -> BaseException | None:
        """Do what hooks asked for while it was opened; return a preemption of that."""
        try:
            # What a loop of one's own tracks is only known at its first step.
            self.actor.act(attempt.session, None, saving=not self.own_loop)
        except Exception as error:
            cause = self.preemption(error)
            if cause is None:
                raise
            attempt.close(self.grace)
            return cause
        return None

    def _recover(self, cause: BaseException) -> CoordinatedSession:
        """Replace the backend session by a new one, restored."""
        assert self.attempt is not None
        assert self.recovery is not None
        self.actor.keep_stop(self.attempt.runner.step_before)
        self.actor.asks.new_run()  # the rest is asked for again when the run is repeated
        preemptions = self.attempt.session.preemption_errors
        left = self.attempt.close(self.grace)
        if left is not None and not isinstance(left, preemptions):
            raise left
        self.recovery.wait(cause, self.opener.hurry)
        attempt = self._open()
        self._take_stop(attempt)
        return attempt

    def _take_stop(self, attempt: CoordinatedSession) -> None:
        asked = self.actor.stop
        if asked is not None and self.stop is None:
            self.stop = Stop(*asked)
            self.keeper.hold_position(attempt.session)
