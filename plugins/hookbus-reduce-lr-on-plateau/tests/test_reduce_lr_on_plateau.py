"""reduce-lr-on-plateau decides like a plain loop that counts checks without improvement."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
)
from tests.support.profiles import cases

STEPS, EVERY = 45, 2
QUIET = Config(autoload=False, header=False)
SETTINGS: dict[str, Any] = {
    "every_n_steps": EVERY,
    "patience": 2,
    "factor": 0.5,
    "cooldown": 1,
    "threshold": 0.01,
    "min_lr": 0.02,
}


def targets() -> list[Any]:
    draw = np.random.default_rng(4)
    return [np.ones(3) + draw.normal(size=3) for _ in range(STEPS)]


def update(w: Any, lr: Any, target: Any) -> tuple[Any, float]:
    error = w - target
    return w - lr * error, float(error @ error)


@attrs.define
class Counts:
    """What a loop counts that does it by hand."""

    best: float = float("inf")
    bad: int = 0
    cooling: int = 0

    def lowered(self, value: float, lr: float) -> float:
        if value < self.best * 0.99:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad <= 2:
            return lr
        self.cooling, self.bad = 1, 0
        return max(lr * 0.5, 0.02)


def by_hand() -> tuple[bytes, float]:
    w, lr, counts = np.zeros(3), 0.3, Counts()
    for step, target in enumerate(targets(), start=1):
        w, loss = update(w, lr, target)
        if (step - 1) % EVERY == 0:
            lr = counts.lowered(loss, lr)
    return w.tobytes(), lr


def session_of(graph: Graph | None, folder: Path, *hooks: Any) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=folder,
        hooks=[
            ReduceLROnPlateauHook(**SETTINGS),
            CheckpointSaverHook(folder, save_steps=3),
            *hooks,
        ],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    )


def in_a_graph(folder: Path, *hooks: Any) -> tuple[bytes, float]:
    graph = Graph()
    graph.input("target", targets)
    graph.variable("w", np.zeros(3))
    graph.variable("lr", 0.3)

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: Any, lr: Any, target: Any) -> tuple[Any, dict[str, float]]:
        new, loss = update(w, lr, target)
        return new, {"loss": loss}

    with session_of(graph, folder, *hooks) as session:
        for _ in session.loop():
            pass
        w, lr = session.run(["w", "lr"], kind="aux")
    return w.tobytes(), float(lr)


def in_a_custom_loop(folder: Path, *hooks: Any) -> tuple[bytes, float]:
    model: dict[str, Any] = {"w": np.zeros(3), "lr": 0.3}
    with session_of(None, folder, *hooks) as session:
        session.track(model=model)
        for target in session.iterate(targets()):
            with session.step() as step:
                model["w"][...], loss = update(model["w"], model["lr"], target)
                step.report(loss=loss)
    return model["w"].tobytes(), model["lr"]


class Dies(SessionRunHook):
    """Kills the process in one of the runs."""

    def __init__(self, run: int) -> None:
        self.left = run

    def after_run(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


BOTH = pytest.mark.parametrize("train", [in_a_graph, in_a_custom_loop])


@BOTH
def test_it_trains_like_a_loop_that_does_it_by_hand(train, tmp_path):
    """Bit for bit; the rate was lowered several times."""
    assert train(tmp_path) == by_hand()
    assert by_hand()[1] < 0.1


@BOTH
@pytest.mark.parametrize("at", cases([10, 20, 30, 40], range(1, STEPS)))
def test_killed_in_any_run_and_resumed_it_ends_with_the_same_bits(train, at, tmp_path):
    """The counts are in the checkpoints."""
    child = os.fork()
    if child == 0:
        try:
            train(tmp_path, Dies(at))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert train(tmp_path) == by_hand()


@pytest.mark.parametrize(
    ("watched", "name", "rates"),
    [
        ("val", "val", [0.5, 0.25, 0.125]),
        ("", None, [0.5, 0.25, 0.125]),
        ("val", "x", [0.5] * 3),
    ],
)
def test_it_watches_one_evaluation(watched, name, rates):
    """The next step trains with the new rate."""
    model = {"lr": np.array(0.5)}
    hook = ReduceLROnPlateauHook("loss", watched, patience=0, factor=0.5)
    found = []
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=model)
        for _ in range(3):
            with session.step():
                pass
            with session.evaluation(name) as evaluation:
                evaluation.report(loss=1.0)
            found.append(float(model["lr"]))
    assert found == rates


@pytest.mark.parametrize("higher", [False, True])
def test_which_values_are_better_is_a_setting(higher):
    """A value that rises is a plateau, unless higher ones are better."""
    graph = Graph()
    graph.variable("learning_rate", 1.0)
    graph.op(lambda global_step: 1.0 + global_step, name="loss")
    graph.train_op(lambda: None, name="train")
    hook = ReduceLROnPlateauHook(every_n_steps=1, patience=3, higher_is_better=higher)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for _ in range(5):
            session.run("train")
        assert session.run("learning_rate") == (1.0 if higher else 0.1)


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ([], {}, "no variable can be the learning rate; name it with"),
        (["lr", "learning_rate"], {}, "lr and learning_rate can be the learning rate"),
        (["lr"], {"variable": "rate"}, "no variable can be the learning rate"),
    ],
)
def test_a_learning_rate_that_is_not_found_is_an_error(names, settings, message):
    graph = Graph()
    for name in names:
        graph.variable(name, 1.0)
    graph.op(lambda: 1.0, name="loss")
    graph.train_op(lambda: None, name="train")
    hook = ReduceLROnPlateauHook(every_n_steps=1, patience=0, **settings)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("train")
        with pytest.raises(UsageError, match=message):
            session.run("train")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": 1.0}, "expects a number above 0 and below 1"),
        ({"patience": -1}, "expects a whole number of at least 0"),
        ({"every_n_steps": 0}, "expects a whole number of at least 1"),
    ],
)
def test_each_mistake_is_told(settings, message):
    with pytest.raises(UsageError, match=message):
        ReduceLROnPlateauHook(**settings)
