"""Handlers of SIGTERM and SIGINT that a test has in place, and gives back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def handlers(handler: Any) -> Iterator[None]:
    """Have *handler* in place for both signals, and what was there before afterwards."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
