"""Trained parameters are used without a session, and without hookbus."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_weight_average import WeightAverageHook
from safetensors.flax import load_file

from hookbus import Config, MonitoredTrainingSession, load_tracked
from tests.support.in_process import run_here

QUIET = Config(autoload=False, header=False)
OUT = "out.safetensors"


@pytest.fixture
def trained():
    """Train three steps; return the parameters, and those that an evaluation sees."""
    params = {"w": jnp.zeros((2, 3)), "b": jnp.ones(2, jnp.bfloat16)}
    with MonitoredTrainingSession(
        checkpoint_dir="runs", hooks=[WeightAverageHook(0.5)], config=QUIET
    ) as session:
        session.track(params=params)
        for _ in range(3):
            with session.step():
                params["w"], params["b"] = params["w"] + 1, params["b"] * 2
        with session.evaluation():
            seen = dict(params)
    return params, seen


def same(one, other):
    """Return whether two dicts have the same arrays, dtypes included."""
    assert one.keys() == other.keys()
    alike = [one[n].dtype == other[n].dtype for n in one]
    return all([*alike, *(np.array_equal(one[n], other[n]) for n in one)])


@pytest.mark.parametrize("averages", [False, True])
def test_parameters_are_plain_arrays(averages, trained):
    """Averages have the dtype of the parameters, and are those of an evaluation."""
    state = load_tracked("runs", "params", averages=averages)
    assert same(state, trained[averages])
    assert not same(*trained)


@pytest.mark.parametrize("averages", [False, True])
def test_an_export_is_loaded_without_hookbus(averages, trained):
    """By the loader of safetensors for JAX."""
    flags = ["--averages"] if averages else []
    code, shown = run_here(["export", "runs", "--tracked", "params", OUT, *flags])
    assert code == 0, shown
    assert same(load_file(OUT), trained[averages])
