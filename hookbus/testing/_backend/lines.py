"""Watches the lines of the log."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def watched_lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """Yield the list that every log line goes to, as a dict of its parts."""
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[capture])
    try:
        yield capture.entries
    finally:
        structlog.reset_defaults()  # otherwise hookbus shows no lines afterwards
