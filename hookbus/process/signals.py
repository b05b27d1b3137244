"""Notices signals: a handler sets a flag, and the session checks it between events."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, TypeAlias

from hookbus.errors import ExitCode
from hookbus.logs import log_in_handler
from hookbus.process.interrupts import may_raise, signals_deferred

SignalKind: TypeAlias = Literal["interrupted", "preempted"]
"""Those kinds of outcomes that a signal may lead to."""

KINDS: dict[int, SignalKind] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "preempted",
}
"""The signals that end a session cleanly, and the kind of its outcome."""

if sys.platform != "win32":
    KINDS[signal.SIGHUP] = "preempted"


class SignalWatch:
    """Notices SIGINT, SIGTERM and SIGHUP for one session, until its end.

    The first signal sets a flag in every open session, and logs what happens next. A second
    SIGINT raises KeyboardInterrupt; while the session opens, saves or ends, it is deferred
    until that is done, except in a hook. A Python handler that the program installed before
    is called as well, and is restored at the end; its errors are deferred likewise.
    Python has no handlers outside the main thread; a session there catches nothing. A
    forked child has the earlier handlers again.

    Args:
        saves: returns whether the session saves at its end, for the log line; None logs
            nothing.

    Attributes:
        received: the number of the signal that arrived, or None.
        received_at: the time of ``time.monotonic()`` at which it did.
        noted: the number before :meth:`receive`, if the session decides when it counts.
        notes_only: whether the session decides that.
    """

    def __init__(self, saves: Callable[[], bool] | None = None) -> None:
        self.received: int | None = None
        self.received_at: float = 0.0
        self.noted: int | None = None
        self.notes_only = False
        self.saves = saves
        self._layer: _Layer | None = None

    def came(self) -> bool:
        """Return whether a signal has arrived."""
        return self.received is not None

    def take(self, number: int) -> None:
        """Note a signal that has arrived; the first one counts."""
        if self.noted is None:
            self.noted = number
        if not self.notes_only:
            self.receive(number)

    def receive(self, number: int) -> None:
        """Have a signal count from now on; it may have reached another process only."""
        if self.received is None:
            self.received, self.received_at = number, time.monotonic()

    @property
    def name(self) -> str:
        """The name of the signal that arrived, like ``SIGTERM``."""
        return signal.Signals(self.received).name if self.received else ""

    @signals_deferred
    def install(self) -> None:
        """Start watching, in the main thread only."""
        if _in_main_thread():
            self._layer = _top_layer()
            self._layer.add(self)

    @property
    def is_shared(self) -> bool:
        """Whether the signal that arrived ends another open session as well."""
        layer, number = self._layer, self.received
        return layer is not None and number is not None and layer.is_shared(self, number)

    @property
    def unhandled_signal(self) -> int | None:
        """The signal that arrived, if it reached only this session."""
        layer, number = self._layer, self.received
        if layer is None or number is None or not _in_main_thread() or self.is_shared:
            return None
        return None if layer.is_handled(number) else number

    def abandon_after_fork(self) -> None:
        """Watch nothing any more, in a forked child; its parent's signal is not its own."""
        self.received = self.noted = self._layer = None

    @signals_deferred
    def restore(self, exit_on_way: bool = False) -> None:
        """Stop watching. Earlier signals stay known.

        Args:
            exit_on_way: whether a :class:`SignalExit` is raised next. Until it is caught,
                further signals that would end the process do nothing.
        """
        if self._layer is not None:
            self._layer.remove(self, exit_on_way)


class _Layer:
    """The handlers of the sessions that were opened on top of one another.

    If a program installs its own handler over them, the sessions opened after that are a
    new layer.
    """

    def __init__(self) -> None:
        self.watches: list[SignalWatch] = []
        self._previous: dict[int, Any] = {}

    def add(self, watch: SignalWatch) -> None:
        """Tell *watch* of signals; with the first one install the handlers."""
        # Before the handlers, so that the first signal finds it.
        self.watches.append(watch)
        if self._previous:
            return
        # SIGINT comes first: from then on nothing raises here.
        for number in KINDS:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                self._previous[number] = before
                signal.signal(number, self.handle)

    def is_on_top(self) -> bool:
        """Return whether new sessions belong to it."""
        covered = (self.handle, signal.SIG_IGN, None)
        return all(signal.getsignal(number) in covered for number in KINDS)

    def is_shared(self, watch: SignalWatch, number: int) -> bool:
        """Return whether a signal reaches other sessions than one, here or below."""
        others = any(other is not watch for other in self.watches)
        return others or _layer_of(self._previous.get(number)) is not None

    def is_handled(self, number: int) -> bool:
        """Return whether the program handles a signal itself."""
        before = self._previous.get(number)
        return _is_own(before) and _layer_of(before) is None

    def remove(self, watch: SignalWatch, exit_on_way: bool) -> None:
        """Forget *watch*; with the last one restore the earlier handlers."""
        if watch in self.watches:
            self.watches.remove(watch)
        # Another thread cannot restore handlers. They then pass every signal on, until the
        # next session replaces them.
        if not self.watches and _in_main_thread():
            self._restore(exit_on_way)

    def abandon_after_fork(self) -> None:
        """Forget all sessions, in a forked child, and restore the earlier handlers."""
        for watch in self.watches:
            watch.abandon_after_fork()
        self.watches.clear()  # a handler of the program may still call this layer's
        self._restore(exit_on_way=False)

    def _restore(self, exit_on_way: bool) -> None:
        # SIGINT comes last: after that Python may raise KeyboardInterrupt.
        for number, before in reversed(self._previous.items()):
            if signal.getsignal(number) == self.handle:
                if exit_on_way and number != signal.SIGINT and not _is_own(before):
                    _absorbed[number] = before
                    before = _absorb
                signal.signal(number, before)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Set the flag of every session, and call the earlier handler."""
        before: Any = self._previous.get(number)
        again = any(watch.noted is not None for watch in self.watches)
        for watch in self.watches:
            watch.take(number)
        if not again:
            self._announce(number)
        try:
            if _is_own(before):
                before(number, frame)
            elif not self.watches:
                _as_if_unhandled(number, before)
            if again and number == signal.SIGINT:
                raise KeyboardInterrupt
        except BaseException as error:
            if may_raise(frame):
                raise
            _defer(error, number)

    def _announce(self, number: int) -> None:
        """Log what the sessions do about a signal; a step may take minutes."""
        saving = [watch.saves() for watch in self.watches if watch.saves is not None]
        if not saving:
            return
        event = "finishing this step"
        event += ", then saving" if any(saving) else ", then ending"
        if number == signal.SIGINT:
            event += "; Ctrl-C again ends now"
        log_in_handler(event, signal=signal.Signals(number).name)


def exception_for(number: int) -> BaseException:
    """Return the error that ends a program after a signal, by Ctrl-C or with code 75."""
    return KeyboardInterrupt() if number == signal.SIGINT else SignalExit()


class SignalExit(SystemExit):
    """Leaves the program after SIGTERM or SIGHUP, with exit code 75.

    As long as it is on its way, a further one of them must not replace the exit code, which
    promises that the next start resumes. A program that catches it gets its handlers back.
    """

    def __init__(self) -> None:
        super().__init__(int(ExitCode.PREEMPTED))

    def __del__(self) -> None:
        if not _in_main_thread():
            return
        # No code of the program runs: nobody caught it, and the process ends now. At the
        # prompt of an interactive Python, it does not.
        ends = sys._getframe().f_back is None and not hasattr(sys, "ps1")
        _stop_absorbing(signal.SIG_IGN if ends else None)


_absorbed: dict[int, Any] = {}
"""The handlers to restore for the signals that are absorbed."""


def _absorb(number: int, frame: FrameType | None) -> None:
    """Do nothing for a signal while a SignalExit is on its way."""


def _stop_absorbing(instead: signal.Handlers | None = None) -> None:
    """Restore the earlier handlers, or install another one in their place."""
    while True:
        try:  # a SignalExit that is collected here calls this function in between
            number, before = _absorbed.popitem()
        except KeyError:
            return
        if signal.getsignal(number) is _absorb:
            signal.signal(number, before if instead is None else instead)


_deferred: list[BaseException] = []
"""The errors that handlers could not raise in the code that they interrupted."""


def _defer(error: BaseException, number: int) -> None:
    if not _deferred:
        log_in_handler("cleaning up, then ending", signal=signal.Signals(number).name)
    _deferred.append(error)


def take_deferred() -> BaseException | None:
    """Return the error that a handler could not raise, for the caller to raise, or None."""
    if not _deferred or not _in_main_thread():
        return None
    error = _deferred[0]
    _deferred.clear()
    return error


def raise_deferred() -> None:
    """Raise the error that a handler could not raise before."""
    error = take_deferred()
    if error is not None:
        raise error


_layers: list[_Layer] = []
_masks: list[set[int]] = []


def delay_signals() -> None:
    """Delay signals while this thread forks: a child that still has handlers loses them."""
    if _layers and sys.platform != "win32":
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        signal.pthread_sigmask(signal.SIG_BLOCK, KINDS)


def deliver_signals() -> None:
    """Deliver the signals that arrived during the fork, in the parent or in the child."""
    if _masks and sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def abandon_after_fork() -> None:
    """Restore, in a forked child, the handlers from before its parent's sessions."""
    _deferred.clear()
    _stop_absorbing()
    while _layers:
        _layers.pop().abandon_after_fork()


def _top_layer() -> _Layer:
    """Return the layer that a session opened now belongs to."""
    _stop_absorbing()
    if not _layers or not _layers[-1].is_on_top():
        _layers[:] = [layer for layer in _layers if layer.watches]
        _layers.append(_Layer())
    return _layers[-1]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_own(handler: Any) -> bool:
    """Return whether the program itself installed a handler."""
    return callable(handler) and handler is not signal.default_int_handler


def _layer_of(handler: Any) -> _Layer | None:
    """Return the layer that a handler belongs to, or None."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, _Layer) else None


def _as_if_unhandled(number: int, before: Any) -> None:
    if before is signal.default_int_handler:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
