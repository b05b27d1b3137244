"""Each of fifteen callbacks trains a PyTorch model like its loop by hand."""

from __future__ import annotations

import signal

import pytest

from tests.support.callbacks import refusals_of, trainings_of
from tests.support.profiles import cases
from tests.support.torch_pictures import TORCH
from tests.support.trainings import SIGNALS


@pytest.mark.parametrize(("row", "site"), trainings_of(TORCH))
def test_a_callback_trains_like_the_loop_by_hand(row, site, tmp_path):
    """Bit for bit: weights, and what the hook computes or writes."""
    row.check_trains_like_by_hand(site, tmp_path)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("number", cases([signal.SIGTERM], SIGNALS))
@pytest.mark.parametrize("first", cases([10], range(1, 11)))
@pytest.mark.parametrize(("row", "site"), trainings_of(TORCH, resumed=True))
def test_stopped_at_every_tenth_step_it_ends_the_same(row, site, first, number, tmp_path):
    """Each process resumes from the checkpoint of the one before it."""
    row.check_resumes(site, tmp_path, first, number)


@pytest.mark.parametrize(("row", "site"), refusals_of(TORCH))
def test_where_a_callback_cannot_work_it_says_so(row, site, tmp_path):
    """It trains nothing then."""
    row.check_is_refused(site, tmp_path)
