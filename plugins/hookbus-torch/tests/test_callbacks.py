"""Each of fifteen callbacks trains a PyTorch model like its loop by hand."""

from __future__ import annotations

import re
import signal

import attrs
import pytest

from hookbus import HookbusError
from tests.support.callback_loops import plain
from tests.support.callbacks import refusals_of, trainings_of
from tests.support.profiles import cases
from tests.support.torch_pictures import TORCH
from tests.support.trainings import SIGNALS


@pytest.mark.parametrize(("row", "site"), trainings_of(TORCH))
def test_a_callback_trains_like_the_loop_by_hand(row, site, tmp_path):
    """Bit for bit: weights, and what the hook computes or writes."""
    _, values = row.train(site, tmp_path)
    assert values == row.plainly(site)
    without = attrs.evolve(row, by_hand=plain).plainly(site)
    assert values != without


@pytest.mark.parametrize("number", cases([signal.SIGTERM], SIGNALS))
@pytest.mark.parametrize("first", cases([10], range(1, 11)))
@pytest.mark.parametrize(("row", "site"), trainings_of(TORCH, resumed=True))
def test_stopped_at_every_tenth_step_it_ends_the_same(row, site, first, number, tmp_path):
    """Each process resumes from the checkpoint of the one before it."""
    _, values = row.train_cut(site, tmp_path, range(first, row.steps + 1, 10), number)
    assert values == row.plainly(site)


@pytest.mark.parametrize(("row", "site"), refusals_of(TORCH))
def test_where_a_callback_cannot_work_it_says_so(row, site, tmp_path):
    """It trains nothing then."""
    with pytest.raises(HookbusError, match=re.escape(row.refused[str(site)])):
        row.train(site, tmp_path)
