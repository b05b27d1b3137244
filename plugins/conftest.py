"""Every test starts in an empty folder, with an environment that says nothing.

What several plugins' tests share stands here, too: the log and the clock.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import settings

# A deadline for an example would make tests depend on what else the machine does.
settings.register_profile("hookbus", deadline=None)
settings.load_profile("hookbus")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and all children would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in os.environ:
        if name.startswith("HOOKBUS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Return the list that every log line goes to, as a dict of its parts."""
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[capture])
    yield capture.entries
    structlog.reset_defaults()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the time; tests let it go by."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now
