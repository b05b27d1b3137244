"""Links threads as the ranks of one run, through memory: a third party's ``Peers``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs

from hookbus.backend import Reduction, Word
from hookbus.peers.agreement import Agreement


class LinkError(Exception):
    """The error of a rank that has waited too long."""


@attrs.define(eq=False)
class Memory:
    """The state that the ranks share.

    Attributes:
        size: the number of ranks.
        seconds: how long a rank waits for the others.
        rounds: what each rank has given, by the number of the exchange.
        left: why ranks have failed.
        alive: where the ranks are that wait for word.
    """

    size: int
    seconds: float
    rounds: dict[int, dict[int, Any]] = attrs.field(factory=dict)
    left: dict[int, str] = attrs.field(factory=dict)
    alive: dict[int, str] = attrs.field(factory=dict)
    changed: threading.Condition = attrs.field(factory=threading.Condition)


@attrs.define(eq=False)
class ThreadPeers:
    """The link of one rank."""

    rank: int
    memory: Memory
    exchanges: int = 0
    _began: int = 0

    @property
    def size(self) -> int:
        return self.memory.size

    def agree(self, flags: Sequence[int], now: bool) -> Sequence[int]:
        self._began = self._give([*flags])
        return self.agreed() if now else ()

    def agreed(self) -> Sequence[int]:
        return [max(each) for each in zip(*self._wait(self._began), strict=True)]

    def broadcast(self, data: Any) -> Any:
        return self.gather(data)[0]

    def gather(self, data: Any) -> list[Any]:
        number = self._give(json.dumps(data))
        return [json.loads(each) for each in self._wait(number)]

    def reduce(self, values: Sequence[float], how: Sequence[Reduction]) -> list[float]:
        every = [*zip(*self.gather([*values]), strict=True)]
        kinds: dict[str, Callable[[Any], float]] = {
            "mean": lambda each: sum(each) / len(each),
            "sum": sum,
            "max": max,
        }
        return [kinds[kind](each) for kind, each in zip(how, every, strict=True)]

    def fail(self, why: str) -> None:
        with self.memory.changed:
            self.memory.left[self.rank] = why
            self.memory.changed.notify_all()

    def close(self) -> None:
        """Release nothing: the memory goes with the ranks."""

    def is_broken(self, error: BaseException) -> bool:
        return isinstance(error, LinkError)

    def word(self, here: str) -> Word:
        memory = self.memory
        with memory.changed:
            memory.alive[self.rank] = here
            memory.changed.notify_all()
            memory.changed.wait_for(
                lambda: memory.left or len(memory.alive) == self.size, memory.seconds
            )
            alive = {n: where for n, where in memory.alive.items() if n != self.rank}
            heard = {self.rank, *alive, *memory.left}
            silent = [] if memory.left else sorted({*range(self.size)} - heard)
            return Word(dict(memory.left), silent, alive)

    def _give(self, data: Any) -> int:
        """Give data for the next exchange; return its number."""
        with self.memory.changed:
            self.exchanges += 1
            self.memory.rounds.setdefault(self.exchanges, {})[self.rank] = data
            self.memory.changed.notify_all()
            return self.exchanges

    def _wait(self, number: int) -> list[Any]:
        """Return the values of all ranks in an exchange."""
        memory = self.memory
        with memory.changed:
            given = memory.rounds[number]
            if not memory.changed.wait_for(
                lambda: len(given) == self.size or memory.left, memory.seconds
            ):
                raise LinkError("timed out")
            if len(given) < self.size:
                raise LinkError("connection closed")
            return [given[rank] for rank in range(self.size)]


def together(
    ranks: int, does: Callable[[Agreement], Any], seconds: float = 30.0
) -> list[Any]:
    """Run a function on so many ranks; return what each returned, or its error."""
    memory = Memory(ranks, seconds)

    def run(rank: int) -> Any:
        agreement = Agreement(ThreadPeers(rank, memory))
        try:
            return does(agreement)
        except Exception as error:
            agreement.fail(error)
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return [*pool.map(run, range(ranks))]
