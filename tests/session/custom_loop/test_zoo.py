"""Trainings as people write them, cut short at every step, are what they are by hand."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.support.profiles import FULL, cases, sample
from tests.support.zoo import KINDS, Run, Zoo, cut_and_resumed
from tests.support.zoo_numpy import TRAININGS

RUN = Run()
STEPS = cases((1, 4, 5, 7), range(1, 31))
LEFT = ("endless", "cycling")
"""Trainings that leave their only pass by ``break``, which ends it."""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Return the training runs, each of which is done by hand once."""
    importlib.import_module("sklearn.linear_model")  # once, and not in each fork
    return Zoo(TRAININGS, RUN, tmp_path_factory)


def some(*places: int) -> list[tuple[str, str]]:
    """Return all training runs and kinds, or of nine in turn those at some places."""
    every = [(name, kind) for name in TRAININGS for kind in KINDS]
    turn = 2 * len(KINDS) + 1  # each run meets another kind
    return cases([each for n, each in enumerate(every) if n % turn in places], every)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "kind"), some(0))
def test_a_training_that_is_cut_short_is_the_training_by_hand(name, kind, zoo):
    """Wherever it is cut short, and however: weights, generators, and printed lines."""
    zoo.check_cut_short(name, kind, STEPS if FULL else STEPS[KINDS.index(kind) :: 4])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "kind"), sample(some(4), 4))
def test_a_training_may_be_cut_short_again_and_again(name, kind, zoo, tmp_path: Path):
    """Every three steps."""
    result, said, _ = cut_and_resumed(TRAININGS[name], RUN, kind, 3, True, tmp_path)
    expected = zoo.straight(name, RUN.epochs)
    assert (result, said) == (expected.result, expected.said)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(TRAININGS)[:: cases(3, 1)])
def test_a_finished_training_does_nothing_until_it_gets_more_epochs(
    name, zoo, tmp_path: Path
):
    """Started again it changes no file; with two epochs more it goes on."""
    zoo.check_finished(name, tmp_path, starts=2, goes_on=name not in LEFT)
