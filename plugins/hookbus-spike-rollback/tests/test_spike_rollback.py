"""spike-rollback trains like a plain loop that leaves bad batches out."""

from __future__ import annotations

import math
import os
import signal
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_spike_rollback import SpikeRollbackHook

from hookbus import (
    Config,
    Graph,
    MonitoredTrainingSession,
    SessionRunHook,
    TrainingError,
    UsageError,
)
from tests.support.profiles import cases

STEPS, SAVED_EVERY = 40, 4
SPIKES, NANS = (17, 26), (9, 33)
"""The numbers of the batches with a spike, and with NaN."""


def batches() -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(5)
    found = [draw.normal(size=4) for _ in range(STEPS)]
    for number in SPIKES:
        found[number] *= 1000
    for number in NANS:
        found[number][2] = math.nan
    return found


def update(w: Any, batch: Any) -> tuple[Any, float]:
    error = w - batch
    return w - 0.05 * error, float(error @ error)


def is_bad(loss: float, before: list[float]) -> bool:
    if not math.isfinite(loss):
        return True
    return len(before) >= 5 and loss > 8 * statistics.median(before[-20:])


def by_hand() -> bytes:
    """Train without a session."""
    w, losses = np.zeros(4), list[float]()
    for batch in batches():
        new, loss = update(w, batch)
        if not is_bad(loss, losses):
            w = new
            losses.append(loss)
    return w.tobytes()


def session_of(graph: Graph | None, folder: Path, *hooks: Any) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=folder,
        hooks=[
            SpikeRollbackHook(factor=8.0, window=20, warmup=5),
            CheckpointSaverHook(folder, save_steps=SAVED_EVERY),
            *hooks,
        ],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    )


class Dies(SessionRunHook):
    """Kills the process in one of the runs."""

    def __init__(self, run: int) -> None:
        self.left = run

    def after_run(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_graph(folder: Path, *hooks: Any) -> bytes:
    graph = Graph()
    graph.input("batch", batches)
    graph.variable("w", np.zeros(4))

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: Any, batch: Any) -> tuple[Any, dict[str, float]]:
        new, loss = update(w, batch)
        return new, {"loss": loss}

    with session_of(graph, folder, *hooks) as session:
        for _ in session.loop():
            pass
        found: bytes = session.run("w", kind="aux").tobytes()
    return found


def in_a_custom_loop(folder: Path, *hooks: Any) -> bytes:
    w = np.zeros(4)
    with session_of(None, folder, *hooks) as session:
        session.track(w=w)
        for batch in session.iterate(batches()):
            with session.step() as step:
                w[...], loss = update(w, batch)
                step.report(loss=loss)
    return w.tobytes()


BOTH = pytest.mark.parametrize("train", [in_a_graph, in_a_custom_loop])


@BOTH
def test_it_trains_like_a_loop_that_leaves_bad_batches_out(train, tmp_path):
    """Bit for bit."""
    assert train(tmp_path) == by_hand()


@pytest.mark.sampled(3)
@BOTH
@pytest.mark.parametrize("at", cases([10, 20, 30, 40], range(1, STEPS)))
def test_killed_in_any_run_and_resumed_it_ends_with_the_same_bits(train, at, tmp_path):
    """The losses, and the batches that are left out, are in the checkpoints."""
    child = os.fork()
    if child == 0:
        try:
            train(tmp_path, Dies(at))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert train(tmp_path) == by_hand()


def test_weights_that_hold_nan_are_not_saved(tmp_path, capsys):
    """The session goes back to a checkpoint from before."""
    graph = Graph()
    graph.input("x", lambda: [1.0, math.nan, 2.0, 3.0])
    graph.variable("w", np.zeros(2))
    graph.op(lambda w: float(w.sum()), name="loss")  # of the weights before the update
    graph.train_op(lambda w, x: w + x, name="train", updates="w")
    hooks = [SpikeRollbackHook(), CheckpointSaverHook(tmp_path, save_steps=1)]
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=tmp_path,
        hooks=hooks,
        save_checkpoint_secs=None,
        config=Config(autoload=False, header=False),
    ) as session:
        for _ in session.loop():
            pass
    lines = capsys.readouterr().err
    assert "checkpoint refused step=2 by=spike-rollback why='variable w holds NaN'" in lines
    assert "rolling back by=spike-rollback why='the loss is nan' step=3 to=1" in lines


def test_a_message_gives_the_loss_and_the_median():
    hook = SpikeRollbackHook(warmup=3)
    hook.load_state_dict({"losses": [1.0, 2.0, 3.0]})
    assert hook._fault_of(10.0) is None
    assert hook._fault_of(10.5) == "of 10.5 is more than 5 x the median 2"
    assert hook._fault_of(-math.inf) == "is -inf"
    hook.load_state_dict({"losses": [-1.0, -2.0, -3.0]})
    assert hook._fault_of(10.5) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": 1}, "invalid factor=1. SpikeRollbackHook expects a number above 1"),
        ({"window": 0}, "invalid window=0"),
        ({"warmup": 60}, "a window of 50 losses never has the 60 of the warm-up"),
    ],
)
def test_each_mistake_is_told(settings, message):
    with pytest.raises(UsageError, match=message):
        SpikeRollbackHook(**settings)


def test_a_loss_is_one_number(tmp_path):
    graph = Graph()
    graph.op(lambda: np.zeros(2), name="loss")
    graph.train_op(lambda: None, name="train")
    message = "spike-rollback watches one number, and 'loss' is not one"

    def train() -> None:
        with session_of(graph, tmp_path) as session:
            session.run("train")

    with pytest.raises(UsageError, match=message):
        train()


def test_a_training_that_never_gets_past_a_step_ends(tmp_path):
    graph = Graph()
    graph.op(lambda: math.nan, name="loss")
    graph.train_op(lambda: None, name="train")

    def train() -> None:
        with session_of(graph, tmp_path) as session:
            while not session.should_stop():
                session.run("train")

    with pytest.raises(TrainingError, match="after 10 roll-backs in a row"):
        train()


def test_the_losses_of_another_node_are_left_out(tmp_path, capsys):
    """A loss that is much higher than another one was is no spike."""

    def train(name: str, value: float) -> int:
        graph = Graph()
        graph.op(lambda: value, name=name)
        graph.train_op(lambda: None, name="train")
        hooks = [
            SpikeRollbackHook(name, warmup=3),
            CheckpointSaverHook(tmp_path, save_steps=1),
        ]
        with MonitoredTrainingSession(
            graph, checkpoint_dir=tmp_path, hooks=hooks, config=Config(autoload=False)
        ) as session:
            for _ in range(4):
                session.run("train")
        return session.outcome.rolled_back

    assert train("loss", 1.0) == 0
    assert train("total", 100.0) == 0
    warned = "is left out by=spike-rollback watches=total saved=loss"
    assert warned in capsys.readouterr().err
    assert train("total", 1000.0) == 4
