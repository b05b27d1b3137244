"""Threads that run beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable


def started(target: Callable[..., object], name: str = "worker") -> threading.Thread:
    """Start a thread."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
