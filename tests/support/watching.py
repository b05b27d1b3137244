"""Lets tests watch the lines of the log, and a clock that they turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hookbus.testing.scenarios import watched_lines


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Return the list that every log line goes to, as a dict of its parts."""
    with watched_lines() as lines:
        yield lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the time; tests let it go by."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now
