"""What a session may not leave behind: threads, open files, signal handlers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

_FILES = Path("/proc/self/fd")
_PATIENCE = 1.0
"""Seconds that threads have to end and files to be closed."""


@attrs.frozen
class Held:
    """What this process holds at one moment.

    Attributes:
        things: each by a key that tells it from all others, and how messages call it.
        handlers: the handler of each signal.
    """

    things: Mapping[Any, str]
    handlers: Mapping[int, Any]

    @classmethod
    def now(cls) -> Held:
        """Look around. Open files are only seen where the system lists them."""
        threads = {
            ("thread", thread.ident): f"the thread {thread.name!r}"
            for thread in threading.enumerate()
        }
        handlers = {int(s): signal.getsignal(s) for s in signal.valid_signals()}
        return cls({**threads, **_open_files()}, handlers)

    def left(self) -> list[str]:
        """Return what is there now and was not then, after a while at most."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            things = Held.now().things
            found = [name for key, name in things.items() if key not in self.things]
            found += [f"a handler of {signal.Signals(n).name}" for n in self._changed()]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def put_handlers_back(self) -> None:
        """Have each signal handled as it was then."""
        for number in self._changed():
            signal.signal(number, self.handlers[number])

    def _changed(self) -> list[int]:
        """Return the signals that another handler is there for now."""
        return [n for n, was in self.handlers.items() if signal.getsignal(n) != was]


def _open_files() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for number in os.listdir(_FILES) if _FILES.is_dir() else ():  # noqa: PTH208
        try:
            target = os.readlink(_FILES / number)  # noqa: PTH115
        except OSError:  # it was open only for looking around
            continue
        found["file", number, target] = f"the open file {target}"
    return found
