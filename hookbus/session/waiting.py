"""Waits in a way that signals of a session cut short."""

from __future__ import annotations

import signal
import time

from hookbus.errors import SessionInterruptedError
from hookbus.hooks.timer import pause
from hookbus.process.signals import SignalWatch, raise_deferred


def wait(seconds: float, what: str = "") -> None:
    """Wait, unless a signal comes that a session around this call handles.

    Such a signal ends the wait, and the session ends in good order. Any other signal has
    its usual effect.

    Args:
        seconds: how long to wait.
        what: what the program waits for, for the message, like ``a checkpoint``.

    Raises:
        SessionInterruptedError: a signal arrived; the session's block handles the error.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        received = _pause(left)
        if received is not None and _belongs_to_a_session(received):
            name = signal.Signals(received).name
            purpose = f" for {what}" if what else ""
            raise SessionInterruptedError(f"{name} came during a wait{purpose}")


def _pause(seconds: float) -> int | None:
    """Wait; return the number of the signal that cut the wait short, or None."""
    watch = SignalWatch()
    watch.install()
    try:
        pause(seconds, lambda: watch.received is not None)
    finally:
        watch.restore()
    raise_deferred()
    unhandled_signal = watch.unhandled_signal
    if unhandled_signal is not None:  # no session and no handler of the program got it
        signal.raise_signal(unhandled_signal)
    return watch.received


def _belongs_to_a_session(number: int) -> bool:
    handler = signal.getsignal(number)
    return getattr(handler, "__module__", None) == SignalWatch.__module__
