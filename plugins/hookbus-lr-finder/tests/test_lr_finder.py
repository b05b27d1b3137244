"""lr-finder finds what a loop by hand finds, and leaves a graph's training as it is."""

from __future__ import annotations

import itertools
import math
import os
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_lr_finder import LRFinderHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from tests.support.profiles import cases

QUIET = Config(autoload=False, header=False)
STEPS, LOW, HIGH, TESTED = 25, 1e-4, 100.0, 40


def batches() -> Any:
    draw = np.random.default_rng(4)
    while True:
        x = draw.normal(size=(8, 3))
        yield x, x @ [1.0, -2.0, 3.0]


def update(w: Any, lr: Any, batch: Any) -> tuple[Any, float]:
    x, y = batch
    error = x @ w - y
    return w - lr * x.T @ error / len(x), float(error @ error) / len(x)


def by_hand() -> tuple[list[float], float]:
    """Return the losses of a sweep, and the rate at which their mean falls fastest."""
    w, losses, means, mean = np.zeros(3), [], [], 0.0
    rates = [LOW * (HIGH / LOW) ** (number / (TESTED - 1)) for number in range(TESTED)]
    for number, (rate, batch) in enumerate(zip(rates, batches(), strict=False), start=1):
        w, loss = update(w, rate, batch)
        losses.append(loss)
        mean = 0.8 * mean + 0.2 * loss
        means.append(mean / (1 - 0.8**number))
        if not means[-1] <= 4 * min(means):
            break
    falls = [b - a for a, b in itertools.pairwise(means)]
    return losses, rates[falls.index(min(falls))]


def graph_of() -> Graph:
    graph = Graph()
    graph.input("batch", batches)
    graph.variable("w", np.zeros(3))
    graph.variable("lr", 0.1)

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: Any, lr: Any, batch: Any) -> tuple[Any, dict[str, float]]:
        noise = np.random.normal()  # of the process: as in a dropout
        new, loss = update(w, lr + 0 * noise, batch)
        return new, {"loss": loss}

    return graph


def finder(folder: Path) -> LRFinderHook:
    return LRFinderHook(LOW, HIGH, TESTED, output_dir=str(folder / "found"))


def trained(folder: Path, *hooks: Any) -> tuple[bytes, float]:
    """Train in a graph; return the weights, and the next number of the process."""
    np.random.seed(3)
    with MonitoredTrainingSession(
        graph_of(),
        checkpoint_dir=folder,
        hooks=[*hooks, CheckpointSaverHook(folder, save_steps=4)],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        while session.global_step < STEPS:
            session.run("train")
        w = session.run("w", kind="aux").tobytes()
    return w, np.random.random()


def test_it_finds_what_a_loop_by_hand_finds(tmp_path, capsys):
    """Bit for bit; the table has the losses, and the picture the rate."""
    hook = finder(tmp_path)
    trained(tmp_path, hook)
    losses, best = by_hand()
    assert (hook.sweep.losses, hook.sweep.best) == (losses, best)
    assert len(losses) < TESTED
    rows = (tmp_path / "found/lr-finder.csv").read_text("utf-8").splitlines()
    assert [float(row.split(",")[1]) for row in rows[1:]] == losses
    root = ElementTree.parse(tmp_path / "found/lr-finder.svg").getroot()
    assert f"{best:.2g}" in [element.text for element in root]
    line = f"learning rates tested tested={len(losses)} lr={float(f'{best:.2g}')} picture="
    assert line in capsys.readouterr().err


def test_the_training_behind_it_is_the_same(tmp_path):
    """Weights, inputs and random numbers."""
    found = trained(tmp_path / "with", finder(tmp_path))
    assert found == trained(tmp_path / "without")


class Dies(SessionRunHook):
    """Kills the process in one of the runs."""

    def __init__(self, run: int) -> None:
        self.left = run

    def after_run(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at", cases([1, 10, 20], range(1, STEPS)))
def test_killed_and_resumed_the_training_is_the_same(at, tmp_path):
    """A session that resumes tests nothing."""
    child = os.fork()
    if child == 0:
        try:
            trained(tmp_path / "killed", finder(tmp_path), Dies(at))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    hook = finder(tmp_path)
    assert trained(tmp_path / "killed", hook) == trained(tmp_path / "whole")
    assert bool(hook.sweep.losses) == (at < 4)


def test_a_custom_loop_does_the_steps_itself(tmp_path):
    """It finds the same, then it ends; nothing is saved."""
    hook, model = finder(tmp_path), {"w": np.zeros(3), "lr": 0.1}
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path / "saved", hooks=[hook], config=QUIET
    ) as session:
        session.track(model=model)
        for batch in session.iterate(batches()):
            with session.step() as step:
                model["w"][...], loss = update(model["w"], model["lr"], batch)
                step.report(loss=loss)
    assert (hook.sweep.losses, hook.sweep.best) == by_hand()
    assert session.outcome.why == "the learning rates are tested"
    assert latest_checkpoint(tmp_path / "saved") is None


@pytest.mark.parametrize("loss", [math.nan, 1.0])
def test_without_a_fall_there_is_no_rate(loss, tmp_path):
    """NaN ends the test; the files are there all the same."""
    graph = Graph()
    graph.variable("lr", 1.0)
    graph.op(lambda: loss, name="loss")
    graph.train_op(lambda: None, name="train")
    hook = finder(tmp_path)
    with MonitoredSession(graph, hooks=[hook], config=QUIET):
        pass
    assert hook.sweep.best is None
    assert len(hook.sweep.losses) == (1 if math.isnan(loss) else TESTED)
    ElementTree.parse(tmp_path / "found/lr-finder.svg")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_lr": 10.0}, "invalid min_lr=10.0. LRFinderHook expects less than max_lr"),
        ({"min_lr": 0.0}, "expects a number above 0"),
        ({"steps": 1}, "expects a whole number of at least 2"),
    ],
)
def test_each_mistake_is_told(settings, message):
    with pytest.raises(UsageError, match=message):
        LRFinderHook(**settings)


def test_a_learning_rate_that_is_not_found_is_an_error():
    hook = LRFinderHook(variable="rate")
    message = "lr-finder: no variable can be the learning rate; name it with"
    with pytest.raises(UsageError, match=message):
        MonitoredSession(graph_of(), hooks=[hook], config=QUIET)
