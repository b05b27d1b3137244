"""Where a loop of one's own stands in its input: in which pass, and how far into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hookbus.errors import OutOfRangeError, UsageError
from hookbus.inputs import Generators, Input


class Passes:
    """Counts the calls of ``session.iterate`` and the values that each gave.

    A resumed loop starts at its top again: passes that were over are skipped, and the one
    that was cut short goes on after the last value of which the step was done.

    Args:
        generators: saves and restores the random generators that a pass may draw from.
    """

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._started = 0
        self._over = 0
        self._done = 0
        self._source: Input | None = None
        self._resume: Mapping[str, Any] = {}
        self._active = False

    def iterate(
        self, iterable: Iterable[Any], should_stop: Callable[[], bool]
    ) -> Iterator[Any]:
        """Yield the values of one pass, from where it stands, until somebody stops.

        Raises:
            UsageError: another pass goes on.
        """
        if self._active:
            raise UsageError(
                "iterate() inside iterate(): the position of one input is kept; go through "
                "the inner one without the session"
            )
        if should_stop():
            return
        number = self._started
        self._started += 1
        if number < self._over:
            return
        source = self._start(number, iterable)
        self._active = True
        try:
            while not should_stop():
                try:
                    value = source.pull()
                except OutOfRangeError:
                    return
                yield value
        finally:
            self._active = False

    @property
    def pending(self) -> bool:
        """Whether a value was pulled that would be lost if its step were not done.

        Others come again in the next session; an iterator that keeps its own position is
        past it already.
        """
        source = self._source
        return source is not None and source.keeps_position and source.pulled > self._done

    def step_done(self) -> None:
        """Note that the step of the value pulled last was done."""
        if self._source is not None:
            self._done = self._source.pulled

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        if self._source is None:
            return {"over": self._over, "within": dict(self._resume)}
        return {"over": self._over, "within": self._source.state_at(self._done)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position: it is reached by the calls of :meth:`iterate`."""
        self._started, self._done, self._source = 0, 0, None
        self._over, self._resume = state["over"], state["within"]

    def _start(self, number: int, iterable: Iterable[Any]) -> Input:
        """Begin a pass: those before it are over, however they were left."""
        source = Input(f"iterate() call {number + 1}", lambda: iterable, self._generators)
        self._over, self._done = number, 0
        if self._resume:
            # Skipping draws numbers that the steps skipped over have drawn already.
            today = self._generators.capture()
            source.load_state_dict(self._resume)
            self._generators.restore(today)
            self._resume, self._done = {}, source.pulled
        self._source = source
        return source
