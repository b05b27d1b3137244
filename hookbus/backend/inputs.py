"""Pulls values from inputs, and saves and restores their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hookbus.backend import random_state
from hookbus.backend.random_state import RandomGenerators
from hookbus.errors import CheckpointError, GraphError, OutOfRangeError, UsageError, blame


class Input:
    """One iterator of a session, made when its first value is needed.

    To restore a position, the input makes a new iterator and skips values, so the iterator
    must give the same values again. If it draws from the generators when it is made or
    gives its first value, usually for a shuffle, it draws from the same states again. Later
    it draws from a stream of its own, which does not depend on what the steps draw.

    Args:
        name: the input's name, for messages.
        factory: returns the iterable.
        generators: captures and restores the generators.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Iterable[Any]],
        generators: RandomGenerators = random_state,
    ) -> None:
        self._name = name
        self._factory = factory
        self._generators = generators
        self._drawn_from: dict[str, Mapping[str, Any]] = {}
        self._iterator: Iterator[Any] | None = None
        self._length: int | None = None
        self._pulled = 0
        self._started = False
        self._stream: Mapping[str, Any] | None = None
        self._put_back: list[Any] = []

    def pull(self) -> Any:
        """Return the next value.

        Raises:
            OutOfRangeError: the iterator has ended.
        """
        try:
            iterator = self._open()
            if self._put_back:
                value = self._put_back.pop()
            elif self._started:
                value = next(iterator) if self._stream is None else self._draw(iterator)
            else:
                value = self._start(iterator)
        except StopIteration:
            raise OutOfRangeError(
                f"input {self._name!r} has ended after {self._pulled} values"
            ) from None
        except Exception as error:
            blame(error, f"input {self._name!r}", f"raised by input {self._name!r}")
            raise
        self._pulled += 1
        return value

    def put_back(self, value: Any) -> None:
        """Take back the last value, because the run that needs it does not happen."""
        self._put_back.append(value)
        self._pulled -= 1

    def remaining(self) -> int | None:
        """Return how many values are left, if the iterable in use has a length."""
        return None if self._length is None else max(0, self._length - self._pulled)

    @property
    def keeps_position(self) -> bool:
        """Whether the iterator keeps its own position."""
        return hasattr(self._iterator, "state_dict")

    @property
    def pulled(self) -> int:
        """How many values were pulled."""
        return self._pulled

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        return self.state_at(self._pulled)

    def state_at(self, pulled: int) -> dict[str, Any]:
        """Return the position after *pulled* values.

        If the iterator keeps its own position, that part is its current one.
        """
        state: dict[str, Any] = {"pulled": pulled}
        own = getattr(self._iterator, "state_dict", None)
        if own is not None:
            return {**state, "iterator": own()}
        return {**state, "drawn_from": self._drawn_from} if self._drawn_from else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a position: through the iterator's own state, or by skipping values.

        Skipping values may advance the generators.

        Raises:
            CheckpointError: the input ends before the position.
        """
        self._iterator, self._pulled, self._put_back = None, 0, []
        self._started, self._stream = False, None
        self._drawn_from = dict(state.get("drawn_from", {}))
        if not state["pulled"]:
            return  # the iterator is made when it is needed, as in a new session
        iterator = self._open()
        if "iterator" in state and hasattr(iterator, "load_state_dict"):
            iterator.load_state_dict(state["iterator"])
            self._pulled, self._started = state["pulled"], True
            return
        while self._pulled < state["pulled"]:
            try:
                self.pull()
            except OutOfRangeError as error:
                raise CheckpointError(
                    f"the checkpoint is at value {state['pulled']} of input "
                    f"{self._name!r}, which now ends after {self._pulled}; give it the "
                    "same data as before, or start in another directory"
                ) from error

    def _open(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._replayed("open", self._make)
        return self._iterator

    def _make(self) -> Iterator[Any]:
        iterable = self._factory()
        length = getattr(iterable, "__len__", None)
        self._length = None if length is None else length()
        try:
            return iter(iterable)
        except TypeError as error:
            raise GraphError(
                f"input {self._name!r}: its function returned "
                f"{type(iterable).__name__}, which cannot be iterated over"
            ) from error

    def _start(self, iterator: Iterator[Any]) -> Any:
        value = self._replayed("start", lambda: next(iterator))
        self._started = True
        if self._drawn_from:
            self._stream = self._generators.fork()
        return value

    def _draw(self, iterator: Iterator[Any]) -> Any:
        """Pull a value while the generators give the input's own stream."""
        outside = self._generators.capture()
        assert self._stream is not None
        self._generators.restore(self._stream)
        try:
            return next(iterator)
        finally:
            self._stream = self._generators.capture()
            self._generators.restore(outside)

    def _replayed(self, when: str, do: Callable[[], Any]) -> Any:
        """Call *do*, which may draw numbers, with the generators as they were before."""
        known = self._drawn_from.get(when)
        if known is not None:
            self._generators.restore(known)
            return do()
        before = self._generators.capture()
        result = do()
        if not random_state.same(before, self._generators.capture()):
            self._drawn_from[when] = before
        return result


class EpochIterator:
    """Counts the calls of ``session.iterate`` and the values that each call gave.

    A resumed program starts its loop again: complete passes are skipped, and the one that
    was cut short continues after the last value whose step was done.

    Args:
        generators: captures and restores the random generators that a pass may draw from.
    """

    def __init__(self, generators: RandomGenerators) -> None:
        self._generators = generators
        self._started = 0
        self._complete = 0
        self._done = 0
        self._source: Input | None = None
        self._resume: Mapping[str, Any] = {}
        self._active = False

    def iterate(
        self, iterable: Iterable[Any], should_stop: Callable[[], bool]
    ) -> Iterator[Any]:
        """Yield the values of one pass from its position on, until *should_stop*.

        Raises:
            UsageError: another pass is still open.
        """
        if self._active:
            raise UsageError(
                "iterate() inside iterate(): a session keeps the position of one input; "
                "iterate over the inner one without the session"
            )
        if should_stop():
            return
        number = self._started
        self._started += 1
        if number < self._complete:
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
        """Whether a pulled value would be lost if its step were not done.

        Other inputs give it again in the next session; an iterator that keeps its own
        position is past it already.
        """
        source = self._source
        return source is not None and source.keeps_position and source.pulled > self._done

    @property
    def resuming(self) -> bool:
        """Whether the program repeats what came before the position of the checkpoint.

        Until it reaches the pass that was cut short, all passes are skipped.
        """
        return bool(self._resume)

    def remaining(self) -> int | None:
        """Return how many steps the open pass still has, if its iterable has a length."""
        source = self._source if self._active else None
        left = None if source is None else source.remaining()
        return None if left is None or source is None else left + source.pulled - self._done

    def step_done(self) -> None:
        """Note that the step of the last value was done."""
        if self._source is not None:
            self._done = self._source.pulled

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        if self._source is None:
            return {"over": self._complete, "within": dict(self._resume)}
        return {"over": self._complete, "within": self._source.state_at(self._done)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a position; the next calls of :meth:`iterate` move to it."""
        self._started, self._done, self._source = 0, 0, None
        self._complete, self._resume = state["over"], state["within"]

    def _start(self, number: int, iterable: Iterable[Any]) -> Input:
        """Begin a pass; those before it are complete, however the loop left them."""
        source = Input(f"iterate() call {number + 1}", lambda: iterable, self._generators)
        self._complete, self._done = number, 0
        if self._resume:
            # Skipping draws numbers that the run before has drawn already.
            current = self._generators.capture()
            source.load_state_dict(self._resume)
            self._generators.restore(current)
            self._resume, self._done = {}, source.pulled
        self._source = source
        return source
