"""Keeps the points of values, and makes few points of many for a chart.

A chart is as wide as it is: of the points that fall on one of its pixels, the least and the
greatest are enough to draw the same line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
_FIRST_CAPACITY = 256
_STEP, _TIME, _VALUE = range(3)
_BLOCK = 128
"""How many values are smoothed by one product of matrices."""


class Series:
    """The points of one value, by step.

    One thread adds points while others read them.

    Args:
        most: how many points it keeps; of more, the older ones are made fewer. None keeps
            all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        # One reference to both, so that a reader never sees the one without the other.
        self._state: tuple[Numbers, int] = np.empty((3, _FIRST_CAPACITY)), 0
        self._last = -math.inf

    def __len__(self) -> int:
        return self._state[1]

    @property
    def last(self) -> tuple[float, float, float] | None:
        """The step, the time and the value of the newest point; None without one."""
        block, size = self._state
        if not size:
            return None
        step, time, value = block[:, size - 1].tolist()
        return step, time, value

    def add(self, step: float, time: float, value: float) -> None:
        """Add a point. It replaces those of its step, and of later ones.

        A run that was killed, or rolled back, does these steps again.
        """
        block, size = self._state
        if step <= self._last:
            size = int(np.searchsorted(block[_STEP, :size], step))
            block = block.copy()  # a reader may still have the old points
        if size == self._most:
            block, size = self._thinned(block, size)
        if size == block.shape[1]:
            block = np.concatenate([block, np.empty_like(block)], axis=1)
        block[_STEP, size], block[_TIME, size], block[_VALUE, size] = step, time, value
        self._state, self._last = (block, size + 1), step

    def extend(self, points: Sequence[tuple[float, float, float]]) -> None:
        """Add points, each with its step, its time and its value.

        Points whose steps grow are added at the price of few; others one by one.
        """
        new = np.array(points).T
        (block, size), count = self._state, len(points)
        grows = new[_STEP, 0] > self._last and bool(np.all(np.diff(new[_STEP]) > 0))
        if not grows or (self._most is not None and size + count > self._most):
            for point in points:
                self.add(*point)
            return
        while size + count > block.shape[1]:
            block = np.concatenate([block, np.empty_like(block)], axis=1)
        block[:, size : size + count] = new
        self._state, self._last = (block, size + count), float(new[_STEP, -1])

    def _thinned(self, block: Numbers, size: int) -> tuple[Numbers, int]:
        """Return a copy without every second point of the older half, and its size."""
        half, thin = size // 2, block.copy()
        kept = np.concatenate([block[:, :half:2], block[:, half:size]], axis=1)
        thin[:, : kept.shape[1]] = kept
        return thin, kept.shape[1]

    def points(self, axis: str = "step") -> tuple[Numbers, Numbers]:
        """Return positions that never fall, and the values at them.

        Args:
            axis: ``step``; ``time``, in seconds since 1970; or ``hours``, since the first
                point.
        """
        block, size = self._state
        values = block[_VALUE, :size]
        if axis == "step":
            return block[_STEP, :size], values
        times = np.maximum.accumulate(block[_TIME, :size])  # a clock may be set back
        if axis == "hours" and size:
            times = (times - times[0]) / 3600
        return times, values


def joined(older: Series, newer: Series, axis: str) -> tuple[Numbers, Numbers]:
    """Return the points of a series, and before them those that another one has earlier."""
    steps = newer.points()[0]
    until = len(older)
    if len(steps):
        until = int(np.searchsorted(older.points()[0], steps[0]))
    if axis == "hours":
        first = older.points("time")[0][:1]
        parts = [each.points("time") for each in (older, newer)]
        parts = [((x - first) / 3600 if len(first) else x * 0.0, y) for x, y in parts]
    else:
        parts = [each.points(axis) for each in (older, newer)]
    (x, y), (later_x, later_y) = parts
    return np.concatenate([x[:until], later_x]), np.concatenate([y[:until], later_y])


def smoothed(values: Numbers, weight: float) -> Numbers:
    """Return the exponential moving average, as TensorBoard smooths.

    Args:
        values: the values; one that is not finite stays as it is.
        weight: that of the average before, from 0 to less than 1.

    >>> smoothed(np.array([1.0, np.nan, 3.0]), 0.5).round(3).tolist()
    [1.0, nan, 2.333]
    """
    finite = np.isfinite(values)
    given = values[finite]
    if not weight or not len(given):
        return values
    count = -(-len(given) // _BLOCK)
    blocks = np.zeros((count, _BLOCK))
    blocks.ravel()[: len(given)] = given
    powers = weight ** np.arange(_BLOCK + 1)
    ages = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    within = np.where(ages >= 0, powers[np.maximum(ages, 0)], 0.0) * (1 - weight)
    means = blocks @ within.T
    before = 0.0
    for row in means:
        row += powers[1:] * before
        before = row[-1]
    # The average begins at 0; this takes away what that has of it.
    counted = np.arange(1, len(given) + 1)
    result = values.copy()
    result[finite] = means.ravel()[: len(given)] / -np.expm1(counted * math.log(weight))
    return result


@attrs.frozen(eq=False)
class Aligned:
    """Lines over common positions, as a chart draws them.

    Attributes:
        x: the positions.
        lines: for each line its values there; NaN where it has no point.
        exact: whether these are the points themselves; else they are the least and the
            greatest value of each pixel.
    """

    x: Numbers
    lines: Sequence[Numbers]
    exact: bool


def aligned(
    curves: Sequence[tuple[Numbers, Numbers]], low: float, high: float, buckets: int
) -> Aligned:
    """Return the parts of some curves that a chart has to draw.

    Args:
        curves: the positions and values of each.
        low: the position at the left end of the chart.
        high: that at the right end.
        buckets: how many pixels it is wide.

    >>> x = np.arange(1000.0)
    >>> found = aligned([(x, np.sin(x))], 0.0, 999.0, 50)
    >>> found.exact, len(found.x), bool(found.lines[0].max() == np.sin(x).max())
    (False, 100, True)
    """
    # One point beyond each end has the line leave the chart there.
    ranges = [
        (
            max(int(np.searchsorted(x, low)) - 1, 0),
            int(np.searchsorted(x, high, "right")) + 1,
        )
        for x, _ in curves
    ]
    parts = [(x[a:b], y[a:b]) for (x, y), (a, b) in zip(curves, ranges, strict=True)]
    if not parts:
        return Aligned(np.empty(0), [], True)
    if sum(len(x) for x, _ in parts) <= 2 * buckets * len(parts):
        common = np.unique(np.concatenate([x for x, _ in parts]))
        if len(common) <= 2 * buckets:
            return Aligned(common, [_placed(common, *part) for part in parts], True)
    width = (high - low) / buckets or 1.0
    rows = [_extremes(*part, low, width, buckets) for part in parts]
    positions = low + (np.arange(2 * buckets) + 0.5) * width / 2
    used = ~np.all(np.isnan(rows), axis=0)
    return Aligned(positions[used], [row[used] for row in rows], False)


def _placed(common: Numbers, x: Numbers, y: Numbers) -> Numbers:
    row = np.full(len(common), np.nan)
    row[np.searchsorted(common, x)] = y
    return row


def _extremes(x: Numbers, y: Numbers, low: float, width: float, buckets: int) -> Numbers:
    """Return the least and the greatest value of each bucket, one after the other."""
    row = np.full(2 * buckets, np.nan)
    inside = (x >= low) & (x <= low + width * buckets)
    x, y = x[inside], y[inside]
    if len(x):
        places = np.clip(((x - low) / width).astype(np.int64), 0, buckets - 1)
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        at = 2 * places[starts]
        row[at] = np.fmin.reduceat(y, starts)
        row[at + 1] = np.fmax.reduceat(y, starts)
    return row
