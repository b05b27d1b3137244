"""Saves and restores what no graph holds: large states, values of libraries, old files."""

from __future__ import annotations

import shutil
import sys
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hookbus
from tests.support.libraries import install_library

SIZE = 40_000_000


@pytest.fixture
def loop(tmp_path):
    """Open a session of a custom loop that saves after every step."""

    def loop(*hooks, **arguments):
        return hookbus.MonitoredTrainingSession(
            checkpoint_dir=tmp_path / "runs",
            save_checkpoint_steps=1,
            save_summaries_steps=None,
            log_step_count_steps=None,
            hooks=hooks,
            **{"config": hookbus.Config(autoload=False), **arguments},
        )

    return loop


@pytest.mark.sampled(1)
@pytest.mark.parametrize("background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("layout", ["dense", "strided"])
def test_a_save_needs_little_memory_beyond_the_state(layout, background, loop, tmp_path):
    """No copy of the state is made, neither to write it nor to find out that it changed.

    In the background one copy is made, of what may change.
    """
    size = SIZE // 4 if layout == "dense" else SIZE // 2
    weights = np.zeros(size, np.float32)[:: 1 if layout == "dense" else 2].reshape(100, -1)
    config = hookbus.Config(autoload=False)
    config = config.with_options("checkpoint-saver", background=background)
    with hookbus.MonitoredTrainingSession(checkpoint_dir=tmp_path / "first", config=config):
        pass  # it imports what it needs
    tracemalloc.start()
    try:
        with loop(config=config) as session:
            session.track(state=(lambda: {"w": weights}, lambda _: None))
            with session.step():
                pass  # at the end it asks whether the last checkpoint has this state
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert weights.nbytes == SIZE
    assert peak < (background + 0.1) * SIZE


def test_a_value_of_a_library_is_saved_and_restored(loop, tmp_path, monkeypatch, names):
    """Without the plugin of its library, an error tells what to install; all stays."""
    state = {}
    with monkeypatch.context() as patch:
        install_library(tmp_path / "site", patch)
        tensor = sys.modules["fakelib"].Tensor
        for expected in (b"abcd", b"efgh"):
            with loop() as session:
                first = {"t": tensor("bfloat16", (2,), b"abcd")}
                state.update(first)
                session.track(state=(lambda: state, state.update))
                assert state["t"] == tensor("bfloat16", (2,), expected)
                with session.step():
                    state["t"] = tensor("bfloat16", (2,), b"efgh")
    before = names(tmp_path / "runs")
    with pytest.raises(
        hookbus.UsageError, match=r"values of fakelib.*: pip install a plugin"
    ):
        loop()
    assert names(tmp_path / "runs") == before == ["ckpt-0", "ckpt-1", "ckpt-2"]


class Unfit(hookbus.SessionRunHook):
    """A hook whose state cannot be saved any more."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        pass


def test_a_state_that_cannot_be_written_never_counts_as_saved(tmp_path, trained, opened):
    """Though nothing ran since the restore, the last save fails aloud."""
    trained(tmp_path, 1, Unfit({}))
    with pytest.raises(
        hookbus.CheckpointError, match=r"/hooks/unfit/x has the type \S+object,"
    ):
        opened(tmp_path, Unfit({"x": object()})).close()


def test_a_checkpoint_of_the_first_version_is_restored(loop, tmp_path):
    """Its arrays were written by the library safetensors, bfloat16 as raw bytes."""
    older = Path(__file__).with_name("older") / "ckpt-2"
    shutil.copytree(older, tmp_path / "runs" / "ckpt-2")
    state, model = {}, {"w": np.zeros((2, 2))}
    with loop() as session:
        session.track(state=(lambda: state, state.update), model=model)
        assert session.global_step == 2
    weights, pair = state["weights"], state["pair"]
    expected = {
        "f32": np.arange(6, dtype="f4").reshape(2, 3),
        "fortran": np.arange(6.0).reshape(2, 3),
        "bf16": np.arange(4).astype(ml_dtypes.bfloat16),
        "c64": np.array([1 + 2j], np.complex64),
        "big": np.arange(3, dtype=">i4"),
        "day": np.array(["2024-02-29"], "M8[D]"),
        "empty": np.zeros((0, 3)),
        "scalar": np.array(3.5),
    }
    assert {name: a.dtype for name, a in weights.items()} == {
        name: a.dtype for name, a in expected.items()
    }
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name], array)
    assert weights["fortran"].flags.f_contiguous
    assert pair == (np.float32(0.5), [1, None, "x", b"\0", 1e300])
    assert type(pair[0]) is np.float32
    assert model["w"].tolist() == [[7.0, 7.0], [7.0, 7.0]]
