"""PyTorch training runs as people write them, cut short at every step, are as by hand."""

from __future__ import annotations

import pytest

from tests.support.profiles import FULL, cases
from tests.support.zoo import KINDS, Run, Zoo
from tests.support.zoo_torch import TRAININGS, WITH_WORKERS, aside

RUN = Run(aside=aside)
STEPS = cases((2, 4, 5, 8), range(1, 31))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Return the training runs, each of which is done by hand once."""
    return Zoo(TRAININGS, RUN, tmp_path_factory)


def steps_of(name: str, kind: str) -> list[int]:
    """Return the steps at which a run is cut short."""
    if FULL:
        return list(STEPS)
    some = STEPS[KINDS.index(kind) :: 4]
    return some[:0] if name in WITH_WORKERS and kind != "sigkill" else some


@pytest.mark.sampled(32)
@pytest.mark.timeout(1800)  # of the full run: each start imports PyTorch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_is_cut_short_is_the_training_by_hand(name, kind, zoo):
    """Wherever it is cut short, and however: states, generators, and printed lines."""
    zoo.check_cut_short(name, kind, steps_of(name, kind))


@pytest.mark.parametrize("name", TRAININGS)
def test_a_finished_training_does_nothing_until_it_gets_more_epochs(name, zoo, tmp_path):
    """Started again it changes no file; with two epochs more it goes on."""
    zoo.check_finished(name, tmp_path)
