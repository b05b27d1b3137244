"""Keeps tests apart: finds what a session leaves behind, and runs each test on its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from hookbus import random_state

_FILES = Path("/proc/self/fd")
_PATIENCE = 1.0
"""The seconds that threads have to end, and files to be closed."""


@attrs.frozen
class Held:
    """The resources that this process holds at one moment.

    Attributes:
        things: unique key to description, of each thread and open file.
        handlers: the handler of each signal.
    """

    things: Mapping[Any, str]
    handlers: Mapping[int, Any]

    @classmethod
    def now(cls) -> Held:
        """Return the resources held now; files only if the system lists open files."""
        threads = {
            ("thread", thread.ident): f"the thread {thread.name!r}"
            for thread in threading.enumerate()
        }
        handlers = {int(s): signal.getsignal(s) for s in signal.valid_signals()}
        return cls({**threads, **_open_files()}, handlers)

    def left(self) -> list[str]:
        """Return the resources that are new and do not go away within a second."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            things = Held.now().things
            found = [name for key, name in things.items() if key not in self.things]
            found += [f"a handler of {signal.Signals(n).name}" for n in self._changed()]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def put_handlers_back(self) -> None:
        """Restore the signal handlers of that moment."""
        for number in self._changed():
            signal.signal(number, self.handlers[number])

    def _changed(self) -> list[int]:
        """Return the signals whose handler is another one now."""
        return [n for n, was in self.handlers.items() if signal.getsignal(n) != was]


@pytest.fixture(autouse=True)
def on_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in an empty folder without variables; restore generators and handlers."""
    for name in [name for name in os.environ if name.startswith("HOOKBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    generators, held = random_state.capture(), Held.now()
    yield
    random_state.restore(generators)
    held.put_handlers_back()


def _open_files() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for number in os.listdir(_FILES) if _FILES.is_dir() else ():  # noqa: PTH208
        try:
            target = os.readlink(_FILES / number)  # noqa: PTH115
        except OSError:  # it was open only to list the folder
            continue
        found["file", number, target] = f"the open file {target}"
    return found
