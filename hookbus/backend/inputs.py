"""Where each input stands: how far it was read, and how to get there again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from hookbus.backend import random_state
from hookbus.errors import CheckpointError, GraphError, OutOfRangeError, UsageError, blame


class RandomGenerators(Protocol):
    """The random generators that an input may draw from.

    The module :mod:`hookbus.backend.random_state` stands for those of the process.
    """

    def capture(self) -> dict[str, Any]:
        """Return their states by name."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put them back to states that :meth:`capture` returned."""

    def fork(self) -> dict[str, Any]:
        """Return the states of a separate stream that follows from today's."""


class Input:
    """One iterator of a session, made at the first need.

    A position is reached again by making the iterator anew and skipping values, so the
    iterator has to give the same values again. One that draws from the generators when it
    is made or gives its first value, for a shuffle as a rule, then draws from the same
    states as before; and all it draws later comes from a stream of its own, which does not
    depend on what the steps between two values draw.

    Args:
        name: the input's name, for messages.
        factory: returns the iterable.
        generators: saves and restores the generators.
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
                value = next(iterator) if self._stream is None else self._apart(iterator)
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
        """Take back the value pulled last: the run that wanted it did not come about."""
        self._put_back.append(value)
        self._pulled -= 1

    def remaining(self) -> int | None:
        """Return how many values are left, where an iterable in use knows its length."""
        return None if self._length is None else max(0, self._length - self._pulled)

    @property
    def keeps_position(self) -> bool:
        """Whether the iterator knows itself where it stands."""
        return hasattr(self._iterator, "state_dict")

    @property
    def pulled(self) -> int:
        """How many values were given out."""
        return self._pulled

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        return self.state_at(self._pulled)

    def state_at(self, pulled: int) -> dict[str, Any]:
        """Return the position after *pulled* values.

        Where the iterator keeps its own position, that is where it stands now.
        """
        state: dict[str, Any] = {"pulled": pulled}
        own = getattr(self._iterator, "state_dict", None)
        if own is not None:
            return {**state, "iterator": own()}
        return {**state, "drawn_from": self._drawn_from} if self._drawn_from else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position: by the iterator's own means, else by skipping values.

        The generators are left where skipping takes them.

        Raises:
            CheckpointError: the input is shorter than the position.
        """
        self._iterator, self._pulled, self._put_back = None, 0, []
        self._started, self._stream = False, None
        self._drawn_from = dict(state.get("drawn_from", {}))
        if not state["pulled"]:
            return  # it is made when it is needed, as in a session that starts
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
                    f"the checkpoint stands at value {state['pulled']} of input "
                    f"{self._name!r}, which now ends after {self._pulled}; give it the "
                    "same data as before, or start in another directory"
                ) from error

    def _open(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._watched("open", self._make)
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
        value = self._watched("start", lambda: next(iterator))
        self._started = True
        if self._drawn_from:
            self._stream = self._generators.fork()
        return value

    def _apart(self, iterator: Iterator[Any]) -> Any:
        """Pull a value while the generators give the input's own stream."""
        outside = self._generators.capture()
        assert self._stream is not None
        self._generators.restore(self._stream)
        try:
            return next(iterator)
        finally:
            self._stream = self._generators.capture()
            self._generators.restore(outside)

    def _watched(self, when: str, do: Callable[[], Any]) -> Any:
        """Do something that may draw numbers: from where it drew them before, if known."""
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
    """Counts the calls of ``session.iterate`` and the values that each gave.

    A resumed loop starts at its top again: passes that were over are skipped, and the one
    that was cut short goes on after the last value of which the step was done.

    Args:
        generators: saves and restores the random generators that a pass may draw from.
    """

    def __init__(self, generators: RandomGenerators) -> None:
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
