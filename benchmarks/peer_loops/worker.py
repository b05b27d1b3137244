"""Answers benchmarks/peers.py: runs a loop of this peer for as many steps as it is told to.

Each file beside this one is a peer. It names what has to be installed, at its top, and
hands its loops to serve(). Its process then reads lines like ``empty 0 5 200`` from its
standard input: the kind of hooks, the place of the loop, the number of hooks and that of
steps. It answers with the seconds that the steps took in the peer's bare loop and in the
loop with these hooks.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple, TypeAlias

WARM = 50

Loop: TypeAlias = Callable[[int], float]
"""Does so many steps; returns the seconds that they took."""


class Peer(NamedTuple):
    """A way to run hooks around a step.

    Attributes:
        bare: the same step in a plain loop.
        hooked: returns the loop with hooks of a kind, so many of them.
        kinds: ``empty`` hooks do nothing; each ``fetch`` hook reads one value in each step.
    """

    bare: Loop
    hooked: Callable[[str, int], Loop]
    kinds: tuple[str, ...] = ("empty",)


class Batches:
    """Yields batches to a loop that owns its steps, and takes the time.

    The clock runs from one request for a batch to another one, so that neither the start
    of the loop nor its end counts.
    """

    def __init__(self, steps: int, batch: Any = 1) -> None:
        self.steps, self.batch = steps, batch
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        for _ in range(WARM):
            yield self.batch
        began = time.perf_counter()
        for _ in range(self.steps):
            yield self.batch
        self.seconds = time.perf_counter() - began


def step(batch: int) -> int:
    """Do the step of all peers that can run any function."""
    return batch + 1


def over_batches(train: Callable[[Iterable[Any]], object], batch: Any = 1) -> Loop:
    """Return the loop of a function that trains on all batches."""

    def loop(steps: int) -> float:
        batches = Batches(steps, batch)
        train(batches)
        return batches.seconds

    return loop


def timed(run: Callable[[int], object]) -> Loop:
    """Return the loop of a function that does so many steps."""

    def loop(steps: int) -> float:
        run(WARM)
        began = time.perf_counter()
        run(steps)
        return time.perf_counter() - began

    return loop


def plain(batches: Iterable[int]) -> None:
    """Do the step on each batch."""
    for batch in batches:
        step(batch)


def serve(peers: Mapping[str, Peer]) -> None:
    """Answer each line of the standard input."""
    # What the peer prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    versions = {name: version(name) for name in sys.argv[1:]}
    kinds = {name: peer.kinds for name, peer in peers.items()}
    print(json.dumps({"versions": versions, "loops": kinds}), file=answers)
    loops = [*peers.values()]
    hooked = functools.cache(lambda place, kind, count: loops[place].hooked(kind, count))
    for line in sys.stdin:
        kind, (place, count, steps) = line.split()[0], map(int, line.split()[1:])
        loop = hooked(place, kind, count)
        print(loops[place].bare(steps), loop(steps), file=answers)
