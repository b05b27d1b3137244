"""Notices signals: a handler sets a flag, and the session looks at it between events."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from hookbus.hooks.outcome import OutcomeKind

KINDS: dict[int, OutcomeKind] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "preempted",
}
"""The signals that end a session cleanly, and the kind of its outcome."""


class SignalWatch:
    """Notices SIGINT and SIGTERM for one session, from its construction to its end.

    The first signal only sets a flag, in every open session. A second SIGINT
    raises KeyboardInterrupt. A Python handler that the program installed before is called
    as well, and is put back at the end. Python has no handlers outside the main thread; a
    session there catches nothing. A forked child ignores its parent's handlers.

    Attributes:
        received: the number of the signal that came, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._layer: _Layer | None = None

    def came(self) -> bool:
        """Return whether a signal came."""
        return self.received is not None

    @property
    def name(self) -> str:
        """The name of the signal that came, like ``SIGTERM``."""
        return signal.Signals(self.received).name if self.received else ""

    def install(self) -> None:
        """Start to watch, where Python allows it."""
        if _in_main_thread():
            self._layer = _top_layer()
            self._layer.watches.append(self)

    @property
    def unheard(self) -> int | None:
        """The signal that came, if it reached this session and nothing else."""
        alone = self._layer is not None and self._layer.is_alone(self, self.received)
        return self.received if alone else None

    def restore(self, served: bool) -> None:
        """Stop watching.

        Args:
            served: whether the session ended because of the signal. If it did not, and
                the signal reached nothing else, it is raised again for the program.
        """
        unheard = None if served else self.unheard
        layer, self._layer = self._layer, None
        if layer is not None:
            layer.remove(self)
        if unheard is not None:
            signal.raise_signal(unheard)


class _Layer:
    """The handlers of the sessions that were opened on top of one another.

    Where a program installs a handler of its own over them, sessions opened after that are
    a layer above it.
    """

    def __init__(self) -> None:
        self.watches: list[SignalWatch] = []
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}
        for number in KINDS:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                self._previous[number] = before
                signal.signal(number, self.handle)

    def is_on_top(self) -> bool:
        """Return whether new sessions belong to it."""
        covered = (self.handle, signal.SIG_IGN, None)
        mine = all(signal.getsignal(number) in covered for number in KINDS)
        return mine and self._process == os.getpid()

    def is_alone(self, watch: SignalWatch, number: int | None) -> bool:
        """Return whether a signal reaches one session only, and no earlier handler."""
        own = number is not None and _is_own(self._previous.get(number))
        return self.watches == [watch] and not own and _in_main_thread()

    def remove(self, watch: SignalWatch) -> None:
        """Forget *watch*; with the last one put the earlier handlers back."""
        self.watches.remove(watch)
        # From another thread handlers cannot be put back. They pass everything on then,
        # until the next session takes them over.
        if self.watches or not _in_main_thread():
            return
        for number, before in self._previous.items():
            if signal.getsignal(number) == self.handle:
                signal.signal(number, before)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Set the flag of every session, and call the earlier handler."""
        before: Any = self._previous.get(number)
        if os.getpid() != self._process:
            return
        again = any(watch.received is not None for watch in self.watches)
        for watch in self.watches:
            if watch.received is None:
                watch.received = number
        if _is_own(before):
            before(number, frame)
        elif not self.watches:
            _as_if_unhandled(number, before)
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt


_layers: list[_Layer] = []


def _top_layer() -> _Layer:
    """Return the layer that a session opened now belongs to."""
    if not _layers or not _layers[-1].is_on_top():
        _layers[:] = [layer for layer in _layers if layer.watches]
        _layers.append(_Layer())
    return _layers[-1]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_own(handler: Any) -> bool:
    """Return whether the program itself installed a handler."""
    return callable(handler) and handler is not signal.default_int_handler


def _as_if_unhandled(number: int, before: Any) -> None:
    if before is signal.default_int_handler:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
