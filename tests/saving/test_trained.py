"""load_tracked() returns the state of one object in a checkpoint, and changes nothing."""

from __future__ import annotations

import copy
import shutil
import threading
from pathlib import Path

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_weight_average import WeightAverageHook

from hookbus import (
    CheckpointError,
    Config,
    Graph,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    load_tracked,
)
from hookbus.errors import (
    ArgumentTypeError,
    CheckpointMismatchError,
    NoGoodCheckpointError,
)

QUIET = Config(autoload=False, header=False)
RUNS = Path("runs")
OLDER = Path(__file__).parent / "older" / "ckpt-2"


class Model:
    """A model with two arrays and a counter in its state."""

    def __init__(self):
        self.w, self.count = np.zeros(2, np.float32), 0

    def train(self):
        self.w = self.w + np.float32(2)
        self.count += 1

    def state_dict(self):
        layers = [{"b": self.w * 10}, None]
        return {"w": self.w, "layers": layers, "count": self.count, "name": "line"}

    def load_state_dict(self, state):
        self.w, self.count = state["w"], state["count"]


def train(*hooks, steps=4):
    """Train a model beside an array, and save each second step."""
    model, rate = Model(), np.ones(1)
    with MonitoredTrainingSession(
        checkpoint_dir=RUNS,
        hooks=[CheckpointSaverHook(RUNS, save_steps=2), *hooks],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        session.track(model=model, rate=rate)
        for _ in range(steps):
            with session.step():
                model.train()
                rate /= 2
    return model


def content():
    """Return all paths of the directory, with the time of their last change."""
    return {p: p.lstat().st_mtime_ns for p in (RUNS, *RUNS.rglob("*"))}


def test_it_is_the_state_that_was_saved():
    """As plain data, of the very types; an array is an array."""
    train()
    state = load_tracked(RUNS / "ckpt-4", "model")
    assert (state["w"].tolist(), state["w"].dtype) == ([8, 8], np.float32)
    assert [state["layers"][0]["b"].tolist(), state["layers"][1]] == [[80, 80], None]
    assert (state["count"], state["name"]) == (4, "line")
    assert load_tracked(RUNS / "ckpt-2", "rate").tolist() == [0.25]


def test_of_a_directory_the_newest_good_one_counts():
    """One that is damaged is reported, and stays where it is."""
    train()
    assert load_tracked(RUNS, "model")["count"] == 4
    assert load_tracked(str(RUNS), "model")["count"] == 4
    damage(RUNS / "ckpt-4")
    before = content()
    assert load_tracked(RUNS, "model")["count"] == 2
    assert content() == before


def damage(checkpoint):
    """Change one byte of the arrays of a checkpoint."""
    file = checkpoint / "arrays.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_a_checkpoint_that_is_damaged_is_an_error():
    """With the reason, and nothing is repaired."""
    train()
    damage(RUNS / "ckpt-4")
    before = content()
    told = r"^cannot restore runs/ckpt-4: its file arrays.safetensors was altered"
    with pytest.raises(NoGoodCheckpointError, match=told):
        load_tracked(RUNS / "ckpt-4", "model")
    damage(RUNS / "ckpt-2")
    damage(RUNS / "ckpt-0")
    with pytest.raises(NoGoodCheckpointError, match="but none of them is good"):
        load_tracked(RUNS, "model")
    assert content().keys() == before.keys()


def test_without_a_checkpoint_it_is_an_error():
    """It names those beside one that is gone."""
    with pytest.raises(CheckpointError, match=r"^there is no checkpoint in 'runs'$"):
        load_tracked(RUNS, "model")
    train()
    told = (
        r"^there is no checkpoint in 'runs/ckpt-3'; the newest in 'runs' are ckpt-4, ckpt"
    )
    with pytest.raises(CheckpointError, match=told):
        load_tracked(RUNS / "ckpt-3", "model")


def test_a_name_that_is_not_there_lists_those_that_are():
    train()
    told = (
        r"^the checkpoint runs/ckpt-4 has no tracked object 'modl'; it has the tracked "
        r"objects 'model', 'rate'; did you mean 'model'\?$"
    )
    with pytest.raises(UsageError, match=told):
        load_tracked(RUNS, "modl")
    with pytest.raises(ArgumentTypeError, match="name of a tracked object is a str, given"):
        load_tracked(RUNS, 3)


def test_a_graph_has_variables_and_no_such_object():
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredTrainingSession(graph, checkpoint_dir=RUNS, config=QUIET) as session:
        session.run("train")
    told = (
        r"has no tracked object 'w'; it has the variables 'w' of a graph \(hookbus export "
        r"--variables\)$"
    )
    with pytest.raises(UsageError, match=told):
        load_tracked(RUNS, "w")


def test_it_takes_no_lock_and_waits_for_none():
    """A run that saves meanwhile neither sees it nor stops it."""
    model = Model()
    with MonitoredTrainingSession(checkpoint_dir=RUNS, config=QUIET) as session:
        session.track(model=model)
        with session.step():
            model.train()
        before = content()
        found = []
        reader = threading.Thread(target=lambda: found.append(load_tracked(RUNS, "model")))
        reader.start()
        reader.join()
        assert content() == before
    assert found[0]["count"] == 0


def test_it_reads_a_directory_that_cannot_be_written():
    train()
    try:
        for path in (RUNS, *RUNS.iterdir()):
            path.chmod(0o555 if path.is_dir() else 0o444)
        assert load_tracked(RUNS, "model")["count"] == 4
    finally:
        for path in (RUNS, *RUNS.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_checkpoint_that_is_being_replaced_is_read():
    """A kill may leave it under its other name, which stays."""
    train()
    (RUNS / "ckpt-4").rename(RUNS / "ckpt-4.old")
    before = content()
    for source in (RUNS, RUNS / "ckpt-4"):
        assert load_tracked(source, "model")["count"] == 4
    assert content() == before


def test_older_checkpoints_are_read():
    """Of the first version, with all kinds of values."""
    shutil.copytree(OLDER, RUNS / "ckpt-2")
    assert load_tracked(RUNS, "model")["w"].shape == (2, 2)
    state = load_tracked(RUNS / "ckpt-2", "state")
    assert state["weights"]["big"].dtype == np.dtype(">i4")
    with pytest.raises(UsageError, match="has no averages: no plugin like weight-average"):
        load_tracked(RUNS, "model", averages=True)


def test_averages_take_the_place_of_weights():
    """In the same form; what has no average keeps its saved value."""
    train(WeightAverageHook(decay=0.5))
    plain = load_tracked(RUNS, "model")
    averaged = load_tracked(RUNS, "model", averages=True)
    expected = 2.0
    for w in (4, 6, 8):
        expected = expected * 0.5 + w * 0.5
    assert averaged["w"].tolist() == [expected] * 2
    assert averaged["layers"][0]["b"].tolist() == [expected * 10] * 2
    assert averaged.keys() == plain.keys()
    assert [averaged["w"].dtype, type(averaged["layers"])] == [np.float32, list]
    assert [averaged["count"], averaged["name"], averaged["layers"][1]] == [4, "line", None]


def test_averages_are_those_that_an_evaluation_sees():
    """A session evaluates with the very same values."""
    net = {"w": np.zeros(3), "layers": [np.ones(2)], "steps": 0}
    with MonitoredTrainingSession(
        checkpoint_dir=RUNS, hooks=[WeightAverageHook(decay=0.9)], config=QUIET
    ) as session:
        session.track(net=net)
        for _ in range(3):
            with session.step():
                net["w"] += 1.5
                net["layers"][0] *= 3
                net["steps"] += 1
        with session.evaluation():
            seen = copy.deepcopy(net)
    averaged = load_tracked(RUNS, "net", averages=True)
    assert np.array_equal(averaged["w"], seen["w"])
    assert np.array_equal(averaged["layers"][0], seen["layers"][0])
    assert averaged["steps"] == seen["steps"] == 3


def test_averages_of_only_some_variables_leave_the_others():
    train(WeightAverageHook(decay=0.5, variables=["model.w"]))
    averaged = load_tracked(RUNS, "model", averages=True)
    assert averaged["w"][0] < averaged["layers"][0]["b"][0] == 80
    told = r"has no averages of 'rate'; it has those of 'model.w'$"
    with pytest.raises(UsageError, match=told):
        load_tracked(RUNS, "rate", averages=True)


def test_before_the_first_update_there_are_no_averages():
    train(WeightAverageHook(0.5, start_step=9))
    told = "runs/ckpt-4 has no averages yet: weight-average had averaged nothing when it"
    with pytest.raises(UsageError, match=told):
        load_tracked(RUNS, "model", averages=True)


def test_two_averages_of_one_object_are_ambiguous():
    """A hook has a name of its own, so it has a state of its own."""
    train(WeightAverageHook(0.5), WeightAverageHook(0.9))
    told = "has several averages of 'model': those of weight-average and weight-average-2"
    with pytest.raises(UsageError, match=told):
        load_tracked(RUNS, "model", averages=True)


@attrs.define(eq=False)
class OwnAverageHook(SessionRunHook):
    """A plugin of somebody else that saves averages."""

    averages: dict

    def state_dict(self):
        return {"averages": self.averages}

    def load_state_dict(self, state):
        self.averages = state["averages"]


def test_any_hook_may_save_averages():
    """Under the key ``averages`` of its state, by the names of variables."""
    train(OwnAverageHook({"rate": np.full(1, 7.0)}))
    assert load_tracked(RUNS, "rate", averages=True).tolist() == [7]


@pytest.mark.parametrize(
    ("average", "why"),
    [
        (np.zeros(3), r"it has the shape \(3,\), and 'rate' has \(1,\)"),
        (np.zeros(1, complex), "cannot take the dtype complex128"),
    ],
)
def test_an_average_that_does_not_fit_is_an_error(average, why):
    train(OwnAverageHook({"rate": average}))
    told = f"^the average of 'rate' does not fit: .*{why}"
    with pytest.raises(CheckpointMismatchError, match=told):
        load_tracked(RUNS, "rate", averages=True)
