"""Handlers of signals that a test has in place, and gives back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def heed_signals() -> None:
    """Undo that a shell has its background processes ignore SIGINT, and nohup SIGHUP.

    All processes that tests start would inherit it.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if usual else signal.SIG_DFL)


@contextlib.contextmanager
def handlers(handler: Any) -> Iterator[None]:
    """Have *handler* in place for these signals, and what was there before afterwards."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """A process that nobody gave handlers, but that outlives its SIGTERMs."""
    with handlers(signal.default_int_handler):
        yield


@contextlib.contextmanager
def exits_by(number: int) -> Iterator[None]:
    """Expect what leaves a session's block after a signal."""
    kind = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(kind) as caught:
        yield
    assert getattr(caught.value, "code", 75) == 75
