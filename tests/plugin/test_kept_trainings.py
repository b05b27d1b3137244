"""Each plugin of the table trains like its loop by hand, also killed and resumed."""

from __future__ import annotations

import signal

import pytest

from tests.support.kept import cuts_of, trainings_of
from tests.support.profiles import cases
from tests.support.trainings import BATCHES, NUMPY


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("row", "site"), trainings_of(NUMPY))
def test_a_plugin_trains_like_the_loop_by_hand(row, site, tmp_path):
    """Bit for bit: weights, momentum, and what the plugin computes of them."""
    cuts, values = row.train_cut(site, tmp_path, [], signal.SIGKILL)
    assert values == row.plainly(site)
    assert (cuts > 0) == row.is_cut


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", cases([10], range(1, 11)))
@pytest.mark.parametrize(("row", "site", "number"), cuts_of(NUMPY)[:: cases(3, 1)])
def test_cut_at_every_tenth_batch_it_ends_the_same(row, site, number, first, tmp_path):
    """The checkpoints from which the next processes resume have all that hooks need."""
    _, values = row.train_cut(site, tmp_path, range(first, BATCHES + 1, 10), number)
    assert values == row.plainly(site)
