"""Tells the ordinary run of the tests from the full one.

``tox -e full`` sets the variable. Then matrices are whole, hypothesis tries four times as
many examples, and each command is a new process.

The ordinary run has some cases of a test that is marked ``sampled``; the others are marked
``long``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")
Cases = TypeVar("Cases")

FULL = os.environ.get("TESTS_PROFILE") == "full"

# A deadline for an example would make tests depend on what else the machine does.
settings.register_profile("fast", deadline=None, max_examples=25, database=None)
settings.register_profile("full", deadline=None, max_examples=100, database=None)


def load_profile() -> None:
    """Have hypothesis try as many examples as this run is to."""
    settings.load_profile("full" if FULL else "fast")


def cases(some: Cases, every: Cases) -> Cases:
    """Return some cases, which show the rule, or in the full run every one."""
    return every if FULL else some


def sample(every: Sequence[Case], most: int) -> Sequence[Case]:
    """Return some of many cases of one rule, evenly spaced; in the full run every one.

    >>> sample(range(12), 4) if not FULL else [0, 3, 7, 11]
    [0, 3, 7, 11]
    """
    return every if FULL else [every[place] for place in _spread(len(every), most)]


def mark_the_rest(items: Sequence[pytest.Item]) -> None:
    """Mark as long what the ordinary run leaves out of the tests that are sampled."""
    tests = defaultdict(list)
    for item in () if FULL else items:
        for mark in item.iter_markers("sampled"):
            tests[item.nodeid.partition("[")[0], *mark.args].append(item)
    for (_, most), every in tests.items():
        chosen = _spread(len(every), most)
        for place, item in enumerate(every):
            if place not in chosen:
                item.add_marker(pytest.mark.long)


def _spread(number: int, most: int) -> Sequence[int]:
    """Return some of so many places, evenly spaced, or all if there are no more.

    The first and the last place are among them: rules break at ends more than in between.

    >>> _spread(12, 4), _spread(2, 4), _spread(12, 1)
    ([0, 3, 7, 11], [0, 1], [0])
    """
    most = min(most, number)
    gaps = max(1, most - 1)
    return [place * (number - 1) // gaps for place in range(most)]


def examples(number: int) -> int:
    """Return how many examples a test has that has not as many as others."""
    return number if FULL else max(1, number // 4)
