"""Measures how long a session trains: its clock stands still while it does other things."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class TrainingClock:
    """A clock in seconds that stands still during evaluations and saves.

    >>> clock = TrainingClock()
    >>> with clock.paused():
    ...     began = clock.seconds()
    ...     time.sleep(0.01)
    ...     print(clock.seconds() == began)
    True
    """

    def __init__(self) -> None:
        self._aside = 0.0
        self._since: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the clock stands still."""
        return self._since is not None

    def seconds(self) -> float:
        """Return the time; only differences between two of them mean something."""
        now = time.monotonic() if self._since is None else self._since
        return now - self._aside

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a block during which the clock stands still; blocks may be nested."""
        if self._since is not None:
            yield
            return
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._aside += time.monotonic() - self._since
            self._since = None
