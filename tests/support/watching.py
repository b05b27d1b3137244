"""Lets tests watch the lines of the log, and a clock that they turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog


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
