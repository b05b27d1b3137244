"""Each plugin of the table trains a PyTorch model like its loop by hand."""

from __future__ import annotations

import re
import signal

import pytest

from hookbus import HookbusError
from tests.support.kept import cuts_of, refusals_of, trainings_of
from tests.support.profiles import cases
from tests.support.torch_trainings import TORCH
from tests.support.trainings import BATCHES


@pytest.mark.parametrize(("row", "site"), trainings_of(TORCH))
def test_a_plugin_trains_like_the_loop_by_hand(row, site, tmp_path):
    """Bit for bit: parameters, and what the plugin computes of them."""
    cuts, values = row.train_cut(site, tmp_path, [], signal.SIGKILL)
    assert values == row.plainly(site)
    assert (cuts > 0) == row.is_cut


@pytest.mark.sampled(12)
@pytest.mark.parametrize("first", cases([10], range(1, 11)))
@pytest.mark.parametrize(("row", "site", "number"), cuts_of(TORCH))
def test_cut_at_every_tenth_batch_it_ends_the_same(row, site, number, first, tmp_path):
    """The checkpoints from which the next processes resume have all that hooks need."""
    _, values = row.train_cut(site, tmp_path, range(first, BATCHES + 1, 10), number)
    assert values == row.plainly(site)


@pytest.mark.parametrize(("row", "site"), refusals_of(TORCH))
def test_where_a_plugin_cannot_work_it_says_so(row, site, tmp_path):
    """It trains nothing then."""
    with pytest.raises(HookbusError, match=re.escape(row.refused[str(site)])):
        row.train(site, tmp_path)
