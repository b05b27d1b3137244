"""PyTorch trainings as people write them, cut short at every step, are as by hand."""

from __future__ import annotations

from functools import cache

import attrs
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
from tests.support.zoo_torch import TRAININGS, WITH_WORKERS, aside

RUN = Run(aside=aside)
STEPS = cases((2, 4, 5, 8), range(1, 31))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Return a function that returns a training by hand, done once."""

    @cache
    def done(name: str, epochs: int) -> Straight:
        run = attrs.evolve(RUN, epochs=epochs)
        return by_hand(TRAININGS[name], run, tmp_path_factory.mktemp(name))

    return done


def steps_of(name: str, kind: str) -> list[int]:
    """Return the steps at which a training is cut short."""
    if FULL:
        return list(STEPS)
    some = STEPS[KINDS.index(kind) :: 4]
    return some[:0] if name in WITH_WORKERS and kind != "sigkill" else some


@pytest.mark.timeout(1800)  # of the full run: each start imports PyTorch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_is_cut_short_is_the_training_by_hand(
    name, kind, straight, tmp_path_factory
):
    """Wherever it is cut short, and however: states, generators, and printed lines."""
    expected = straight(name, RUN.epochs)
    for at in steps_of(name, kind):
        place = tmp_path_factory.mktemp(f"{name}-{kind}-{at}")
        result, said, log = cut_and_resumed(TRAININGS[name], RUN, kind, at, False, place)
        assert (result, said) == (expected.result, expected.said), at
        assert "warning" not in log.replace("[warning  ] finishing this step", ""), log


@pytest.mark.parametrize("name", TRAININGS)
def test_a_finished_training_does_nothing_until_it_gets_more_epochs(
    name, straight, tmp_path
):
    """Started again it changes no file; with two epochs more it goes on."""
    training = TRAININGS[name]
    done, _ = started_again(training, RUN, tmp_path)
    assert done.result == straight(name, RUN.epochs).result, done.log
    done, has_changed = started_again(training, RUN, tmp_path)
    assert done.code == 0, done.log
    assert done.result == straight(name, RUN.epochs).result
    assert not has_changed
    assert "nothing to train" in done.log
    more = attrs.evolve(RUN, epochs=RUN.epochs + 2)
    done, _ = started_again(training, more, tmp_path)
    assert done.code == 0, done.log
    assert done.result == straight(name, more.epochs).result
