"""Tests the points of a chart: none is lost that can be seen, however many there are."""

from __future__ import annotations

import math

import numpy as np
from hookbus_live.series import Series, aligned, joined, smoothed
from hypothesis import given
from hypothesis import strategies as st

FLOATS = st.floats(-1e6, 1e6)


def filled(points, most=None) -> Series:
    series = Series(most)
    for step, value in points:
        series.add(step, 1000.0 + step, value)
    return series


def test_a_step_that_comes_again_replaces_what_came_behind_it():
    """A run that was killed repeats steps."""
    series = filled([(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)])

    assert series.points()[0].tolist() == [1, 2]
    assert series.points()[1].tolist() == [1.0, 20.0]
    assert series.last == (2, 1002.0, 20.0)


def test_a_reader_keeps_the_points_that_it_has():
    """Adding and replacing points leaves arrays alone that were given out."""
    series = filled([(n, float(n)) for n in range(256)])
    steps, values = series.points()
    series.add(10, 0.0, -1.0)

    assert steps.tolist() == list(range(256))
    assert values[10] == 10.0


def test_of_too_many_points_the_older_half_gets_fewer():
    """The newest points all stay."""
    series = filled([(n, float(n)) for n in range(1000)], most=100)
    steps = series.points()[0]

    assert len(series) <= 100
    assert steps[-50:].tolist() == list(range(950, 1000))
    assert steps[0] == 0


def test_positions_never_fall():
    """A clock that is set back does not break the lines."""
    series = Series()
    for step, time in [(1, 100.0), (2, 3700.0), (3, 50.0)]:
        series.add(step, time, 0.0)

    assert series.points("time")[0].tolist() == [100.0, 3700.0, 3700.0]
    assert series.points("hours")[0].tolist() == [0.0, 1.0, 1.0]


def test_a_resumed_training_is_one_line():
    """Its points from before the kill stand before the new ones."""
    older = filled([(1, 1.0), (2, 2.0), (3, 3.0)])
    newer = filled([(3, 30.0), (4, 40.0)])

    assert joined(older, newer, "step")[1].tolist() == [1.0, 2.0, 30.0, 40.0]
    assert joined(older, newer, "hours")[0].round(6).tolist() == [
        round(secs / 3600, 6) for secs in range(4)
    ]
    assert joined(older, Series(), "step")[1].tolist() == [1.0, 2.0, 3.0]


@given(st.lists(FLOATS, min_size=1, max_size=300), st.floats(0.01, 0.999))
def test_smoothing_is_the_moving_average(values, weight):
    """It equals the definition, one value at a time."""
    mean, expected = 0.0, []
    for count, value in enumerate(values, 1):
        mean = weight * mean + (1 - weight) * value
        expected.append(mean / (1 - weight**count))

    assert np.allclose(smoothed(np.array(values), weight), expected, rtol=1e-6, atol=1e-4)


@given(st.lists(st.lists(FLOATS, max_size=400), min_size=1, max_size=4), st.integers(5, 50))
def test_no_extreme_is_lost(curves, buckets):
    """The least and the greatest value of each line are drawn."""
    pairs = [(np.arange(float(len(y))), np.array(y, float)) for y in curves]
    found = aligned(pairs, 0.0, max(map(len, curves)) or 1.0, buckets)

    assert len(found.x) <= 2 * buckets
    assert (np.diff(found.x) > 0).all()
    for line, y in zip(found.lines, curves, strict=True):
        if y:
            assert np.nanmin(line) == min(y)
            assert np.nanmax(line) == max(y)


def test_few_points_are_drawn_as_they_are():
    """Each line has its own steps, and a gap at those of others."""
    found = aligned(
        [(np.array([1.0, 3.0]), np.array([5.0, 6.0])), (np.array([2.0]), np.array([7.0]))],
        1.0,
        3.0,
        100,
    )

    assert found.exact
    assert found.x.tolist() == [1.0, 2.0, 3.0]
    assert [[v if v == v else None for v in line] for line in found.lines] == [
        [5.0, None, 6.0],
        [None, 7.0, None],
    ]


def test_a_part_has_the_points_next_to_it():
    """So a line leaves the chart where it really goes on."""
    x = np.arange(100.0)

    assert aligned([(x, x)], 10.5, 12.5, 100).x.tolist() == [10.0, 11.0, 12.0, 13.0]


def test_values_that_are_not_finite_are_gaps():
    """NaN hides no other value of its pixel."""
    y = np.array([math.nan, 1.0, 2.0, math.nan] * 100)
    found = aligned([(np.arange(400.0), y)], 0.0, 400.0, 10)

    assert np.nanmax(found.lines[0]) == 2.0
    assert np.nanmin(found.lines[0]) == 1.0
