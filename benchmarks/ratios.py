"""Times loops in turn, and compares their times within a round.

On a shared machine only a ratio of two times that were taken right after one another means
anything.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

Loop: TypeAlias = Callable[[int], None]
"""Does so many steps."""


@attrs.frozen
class Ratio:
    """A ratio within this run.

    Attributes:
        what: what is compared.
        median, low, high: over the rounds; the middle half lies between low and high.
        bar: what it should not exceed, or None.
        micros: the microseconds of a step, by loop.
    """

    what: str
    median: float
    low: float
    high: float
    bar: float | None
    micros: Mapping[str, float]

    @classmethod
    def of(
        cls,
        what: str,
        ratios: list[float],
        times: Mapping[str, list[float]],
        bar: float | None = None,
    ) -> Ratio:
        """Return the ratio over some rounds."""
        low, median, high = statistics.quantiles(ratios, n=4)
        micros = {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
        return cls(what, median, low, high, bar, micros)

    def __str__(self) -> str:
        times = ", ".join(f"{name} {taken:.2f}" for name, taken in self.micros.items())
        bar = "" if self.bar is None else f"  bar {self.bar:g}"
        return (
            f"{self.what:44}{self.median:7.3f} ({self.low:.3f} to {self.high:.3f})"
            f"{bar:10}  {times} us"
        )


def in_turns(loops: Mapping[str, Loop], rounds: int, steps: int) -> dict[str, list[float]]:
    """Time the loops in turn; return the seconds a step of each, by round."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop(steps)
    for _ in range(rounds):
        for name, loop in loops.items():
            began = time.perf_counter()
            loop(steps)
            times[name].append((time.perf_counter() - began) / steps)
    return times


def overhead(
    what: str, times: Mapping[str, list[float]], loop: str, bar: float | None
) -> Ratio:
    """Compare what a loop adds to the bare one with what direct calls add to it."""
    shown = {name: times[name] for name in ("bare", "direct", loop)}
    ratios = [(c - a) / (b - a) for a, b, c in zip(*shown.values(), strict=True)]
    return Ratio.of(what, ratios, shown, bar)


def ratio(
    what: str, times: Mapping[str, list[float]], one: str, other: str, bar: float | None
) -> Ratio:
    """Compare a loop with another one."""
    shown = {other: times[other], one: times[one]}
    return Ratio.of(what, [b / a for a, b in zip(*shown.values(), strict=True)], shown, bar)
