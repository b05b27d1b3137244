"""Trainings as people write them, cut short at every step, are what they are by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.profiles import FULL, cases
from tests.support.zoo import (
    KINDS,
    Run,
    Straight,
    by_hand,
    cut_and_resumed,
    started_again,
)
from tests.support.zoo_numpy import TRAININGS

RUN = Run()
STEPS = cases((1, 4, 5, 7), range(1, 31))
LEFT = ("endless", "cycling")
"""Trainings that leave their only pass by ``break``, which ends it."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Return a function that returns a training by hand, done once."""

    @cache
    def done(name: str, epochs: int) -> Straight:
        return by_hand(TRAININGS[name], Run(epochs), tmp_path_factory.mktemp(name))

    return done


def some(*places: int) -> list[tuple[str, str]]:
    """Return trainings and kinds: all of them, or of nine in turn those at some places."""
    every = [(name, kind) for name in TRAININGS for kind in KINDS]
    turn = 2 * len(KINDS) + 1  # each training meets another kind
    return cases([each for n, each in enumerate(every) if n % turn in places], every)


@pytest.mark.parametrize(("name", "kind"), some(0))
def test_a_training_that_is_cut_short_is_the_training_by_hand(
    name, kind, straight, tmp_path_factory
):
    """Wherever it is cut short, and however: weights, generators, and printed lines."""
    expected = straight(name, RUN.epochs)
    for at in STEPS if FULL else STEPS[KINDS.index(kind) :: 4]:
        place = tmp_path_factory.mktemp(f"{name}-{kind}-{at}")
        result, said, log = cut_and_resumed(TRAININGS[name], RUN, kind, at, False, place)
        assert (result, said) == (expected.result, expected.said), at
        assert "warning" not in log.replace("[warning  ] finishing this step", ""), log


@pytest.mark.parametrize(("name", "kind"), some(4))
def test_a_training_may_be_cut_short_again_and_again(name, kind, straight, tmp_path: Path):
    """Every three steps."""
    result, said, _ = cut_and_resumed(TRAININGS[name], RUN, kind, 3, True, tmp_path)
    expected = straight(name, RUN.epochs)
    assert (result, said) == (expected.result, expected.said)


@pytest.mark.parametrize("name", list(TRAININGS)[:: cases(3, 1)])
def test_a_finished_training_does_nothing_until_it_gets_more_epochs(
    name, straight, tmp_path: Path
):
    """Started again it changes no file; with two epochs more it goes on."""
    training = TRAININGS[name]
    done, _ = started_again(training, RUN, tmp_path)
    assert done.result == straight(name, RUN.epochs).result, done.log
    for _ in range(2):
        done, has_changed = started_again(training, RUN, tmp_path)
        assert done.code == 0, done.log
        assert done.result == straight(name, RUN.epochs).result
        assert not has_changed
        assert "nothing to train" in done.log
    if name in LEFT:
        return
    more = RUN.epochs + 2
    done, _ = started_again(training, Run(more), tmp_path)
    assert done.code == 0, done.log
    assert done.result == straight(name, more).result
