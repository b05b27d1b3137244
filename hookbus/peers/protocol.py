"""Defines the link, from a library, between the processes of one training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import attrs

CHIEF = 0
"""The rank that writes and shows all that exists once: checkpoints, logs, progress."""

Reduction: TypeAlias = Literal["mean", "sum", "max"]
"""The ways to reduce numbers of all ranks to one, for ``SessionRunArgs(reduce=...)``."""


@attrs.frozen
class Word:
    """The messages of the other ranks after an error.

    Attributes:
        failed: why a rank has failed, by rank.
        silent: the ranks that have left no message.
        alive: where the other ranks are, in words, by rank.
    """

    failed: Mapping[int, str]
    silent: Sequence[int]
    alive: Mapping[int, str]


class Peers(Protocol):
    """The processes that train one model together, as one of them sees them.

    All ranks call the methods in the same order, except for :meth:`fail`,
    :meth:`is_broken`, :meth:`word` and :meth:`close`. A method that waits for others raises
    an error of the library if one of them is gone, or does not answer within the time limit
    of the program's process group. Data travels as JSON: numbers, text, lists, dicts with
    text as keys.

    Attributes:
        rank: the number of this process, from 0; 0 is the chief.
        size: the number of processes.
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0; 0 is the chief."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def agree(self, flags: Sequence[int], now: bool) -> Sequence[int]:
        """Exchange flags; return the greatest of each that the ranks gave.

        Args:
            flags: the numbers of this rank, in a fixed order.
            now: whether to wait for all ranks. If not, the result is empty: they exchange
                the flags while the program goes on, and :meth:`agreed` returns it.
        """

    def agreed(self) -> Sequence[int]:
        """Wait for the exchange that has begun last, and return its result."""

    def broadcast(self, data: Any) -> Any:
        """Return the chief's data; the others may give anything."""

    def gather(self, data: Any) -> list[Any]:
        """Return the data of all ranks, by rank."""

    def reduce(self, values: Sequence[float], how: Sequence[Reduction]) -> list[float]:
        """Return each of the values over all ranks; *how* has a reduction for each.

        All ranks give as many values. If one of them is NaN, so is the result.
        """

    def fail(self, why: str) -> None:
        """Leave the others a message why this rank ends early; raise nothing."""

    def close(self) -> None:
        """Release the resources of the link; nothing else is called afterwards."""

    def is_broken(self, error: BaseException) -> bool:
        """Return whether an error may come from another rank that is gone."""

    def word(self, here: str) -> Word:
        """Exchange, after an error, where each rank is and why it fails; raise nothing.

        The call waits some seconds for the others. *here* is the place of this rank.
        """
