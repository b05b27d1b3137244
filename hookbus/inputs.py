"""Where each input stands: how far it was read, and how to get there again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hookbus.errors import CheckpointError, GraphError, OutOfRangeError


class Input:
    """One iterator of a session, made at the first need.

    Args:
        name: the input's name, for messages.
        factory: returns the iterable.
    """

    def __init__(self, name: str, factory: Callable[[], Iterable[Any]]) -> None:
        self._name = name
        self._factory = factory
        self._iterator: Iterator[Any] | None = None
        self._length: int | None = None
        self._pulled = 0
        self._put_back: list[Any] = []

    def pull(self) -> Any:
        """Return the next value.

        Raises:
            OutOfRangeError: the iterator has ended.
        """
        try:
            value = self._put_back.pop() if self._put_back else next(self._open())
        except StopIteration:
            raise OutOfRangeError(
                f"input {self._name!r} has ended after {self._pulled} values"
            ) from None
        self._pulled += 1
        return value

    def put_back(self, value: Any) -> None:
        """Take back the value pulled last: the run that wanted it did not come about."""
        self._put_back.append(value)
        self._pulled -= 1

    def remaining(self) -> int | None:
        """Return how many values are left, where the iterable knows its length."""
        self._open()
        return None if self._length is None else max(0, self._length - self._pulled)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        own = getattr(self._iterator, "state_dict", None)
        if own is not None:
            return {"pulled": self._pulled, "iterator": own()}
        return {"pulled": self._pulled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position: by the iterator's own means, else by skipping values.

        Raises:
            CheckpointError: the input is shorter than the position.
        """
        self._iterator, self._pulled, self._put_back = None, 0, []
        iterator = self._open()
        if "iterator" in state and hasattr(iterator, "load_state_dict"):
            iterator.load_state_dict(state["iterator"])
            self._pulled = state["pulled"]
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
            iterable = self._factory()
            length = getattr(iterable, "__len__", None)
            self._length = None if length is None else length()
            self._iterator = self._iterate(iterable)
        return self._iterator

    def _iterate(self, iterable: Iterable[Any]) -> Iterator[Any]:
        try:
            return iter(iterable)
        except TypeError as error:
            raise GraphError(
                f"input {self._name!r}: its function returned "
                f"{type(iterable).__name__}, which cannot be iterated over"
            ) from error
