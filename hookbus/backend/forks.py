"""Makes the inputs of a forked session, which have no effect on the training."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from hookbus.backend.inputs import Input
from hookbus.backend.own_state import taker_of
from hookbus.errors import UsageError, did_you_mean
from hookbus.random_state import undisturbed

ForkedInputs: TypeAlias = Literal["copy", "fresh"]
"""Where the inputs of a forked session begin: where those of the first are, or anew."""


class ForkedInput(Input):
    """An input of a forked session, without any effect on the training.

    It moves to its position when its first value is needed. Its draws from the generators
    of the process are undone.

    Args:
        first: the input of the session that is forked.
        begin: ``copy`` or ``fresh``.
    """

    def __init__(self, first: Input, begin: ForkedInputs) -> None:
        super().__init__(first._name, first._factory)
        self._position: Mapping[str, Any] | None = None
        self._ahead = self._generators.capture()
        if begin == "copy":
            # A copy: an iterator may return the very state that it goes on changing.
            self._position = copy.deepcopy(first.state_dict())
            self.pulled: int = first.pulled

    def pull(self) -> Any:
        """Return the next value.

        Raises:
            OutOfRangeError: the iterator has ended.
            UsageError: the training uses the iterator, which cannot be made a second time.
        """
        with undisturbed():
            if self._position is not None:
                self.load_state_dict(self._position)
            return super().pull()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        return super().state_dict() if self._position is None else dict(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a position, as :meth:`Input.load_state_dict`."""
        self._position = None
        with undisturbed():
            super().load_state_dict(state)

    def _draw(self, iterator: Iterator[Any]) -> Any:
        """Pull a value that may draw the numbers that the training will draw next."""
        if str(self.pulled) in self._drawn_from:
            return super()._draw(iterator)
        self._stream = self._ahead
        return self._draw_from_stream(iterator)

    def _make_iterable(self) -> None:
        super()._make_iterable()
        made = self._iterable
        moves = isinstance(made, Iterator) or taker_of(made) is not None
        if moves and self._factory() is made:
            raise UsageError(
                f"input {self._name!r} cannot be forked: its function returns the same "
                f"{type(made).__name__} each time, which the training uses; return a new "
                "one, or feed the fork"
            )


def fork_inputs(inputs: Mapping[str, Input], begin: ForkedInputs) -> dict[str, Input]:
    """Return inputs for a forked session, by name.

    Args:
        inputs: those of the session that is forked.
        begin: ``copy`` begins where they are now, and ``fresh`` at their beginning.

    Raises:
        UsageError: *begin* is something else.
    """
    words = get_args(ForkedInputs)
    if begin not in words:
        raise UsageError(
            f"fork(inputs={begin!r}): expected 'copy' or 'fresh'"
            f"{did_you_mean(str(begin), words)}"
        )
    return {name: ForkedInput(each, begin) for name, each in inputs.items()}
