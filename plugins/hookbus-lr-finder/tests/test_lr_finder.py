"""lr-finder finds what a loop by hand finds, and leaves a graph's training as it is."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_lr_finder import LRFinderHook
from hookbus_lr_finder.sweep import Sweep

from hookbus import (
    Config,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from hookbus.errors import SessionClosedError
from hookbus.tracking import RecordingHook
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


@attrs.define(eq=False)
class Files(RecordingHook):
    """Keeps the files that other hooks announce, like a tracker."""

    found: list[tuple[int, dict[str, str]]] = attrs.field(factory=list, init=False)

    def take(self, record):
        if record.kind == "artifact":
            self.found.append((record.step, dict(record.values)))


@pytest.mark.parametrize("is_custom", [False, True])
def test_trackers_get_the_picture(is_custom, tmp_path):
    """Of a graph before its first step, of a custom loop at its end; both times once."""
    hook, files = LRFinderHook(steps=2, output_dir=str(tmp_path)), Files()
    graph = None if is_custom else short_graph(9)
    with MonitoredSession(graph, hooks=[hook, files], config=QUIET) as session:
        model = session.track(model={"lr": 0.1}) if is_custom else None
        while not session.should_stop() and session.global_step < 3:
            if model is None:
                session.run("train")
                continue
            with session.step() as step:
                step.report(loss=1.0)
    place = str(tmp_path / "lr-finder.svg")
    assert files.found == [(2 if is_custom else 0, {"lr-finder.svg": place})]
    assert Path(place).is_file()


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


@pytest.mark.parametrize("at", cases([1, 4, 5, 20], range(1, STEPS)))
def test_killed_and_resumed_the_training_is_the_same(at, tmp_path):
    """A session that resumes after a step tests nothing. It saves every fourth step."""
    child = os.fork()
    if child == 0:
        try:
            trained(tmp_path / "killed", finder(tmp_path), Dies(at))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    hook = finder(tmp_path)
    assert trained(tmp_path / "killed", hook) == trained(tmp_path / "whole")
    assert bool(hook.sweep.losses) == (at <= 4)  # a hook dies before the save of its step


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
    """NaN ends the test; the files are there anyway."""
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


def short_graph(values: int) -> Graph:
    """Return a graph whose input ends after some values."""
    graph = Graph()
    graph.input("batch", lambda: itertools.islice(batches(), values))
    graph.variable("w", np.zeros(3))
    graph.variable("lr", 0.1)

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: Any, lr: Any, batch: Any) -> tuple[Any, dict[str, float]]:
        new, loss = update(w, lr, batch)
        return new, {"loss": loss}

    return graph


def test_an_input_that_ends_before_the_test_ends_it(tmp_path, capsys):
    """The tested rates are reported, and the training has its whole input."""
    hook = finder(tmp_path)
    with MonitoredSession(short_graph(10), hooks=[hook], config=QUIET) as session:
        assert len([*session.loop("loss")]) == 10
    assert hook.sweep.losses == by_hand()[0][:10]
    table = (tmp_path / "found/lr-finder.csv").read_text("utf-8")
    assert len(table.splitlines()) == 11
    line = "not all learning rates tested tested=10 steps=40 why='the input ended'"
    assert line in capsys.readouterr().err


def test_an_empty_input_leaves_no_files(tmp_path, capsys):
    """There is nothing to draw; the log says so."""
    with MonitoredSession(short_graph(0), hooks=[finder(tmp_path)], config=QUIET):
        pass
    assert "tested=0 steps=40 why='the input ended'" in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_custom_loop_that_ends_before_the_test_reports_it(leaves, tmp_path, capsys):
    """Because its input ends, or because the program leaves it."""
    hook, model = finder(tmp_path), {"w": np.zeros(3), "lr": 0.1}
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=model)
        for batch in session.iterate(itertools.islice(batches(), 99 if leaves else 10)):
            with session.step() as step:
                model["w"][...], loss = update(model["w"], model["lr"], batch)
                step.report(loss=loss)
            if leaves and session.global_step == 10:
                break
    assert hook.sweep.losses == by_hand()[0][:10]
    assert (tmp_path / "found/lr-finder.svg").is_file()
    assert "tested=10 steps=40 why='the loop ended'" in capsys.readouterr().err


@pytest.mark.parametrize("lift", [-100.0, -30.0, 0.0])
def test_a_negative_loss_is_tested_like_another_one(lift, tmp_path):
    """All rates up to the one at which it diverges; the best one is the same."""
    found = []
    for more in (0.0, lift):
        graph = Graph()
        graph.variable("lr", 0.1)
        graph.variable("w", 5.0)
        graph.train_op(
            lambda w, lr, more=more: (w - lr * w, {"loss": w * w + more}),
            name="train",
            updates="w",
            outputs=("loss",),
        )
        hook = LRFinderHook(1e-3, 100.0, 50, output_dir=str(tmp_path))
        with MonitoredSession(graph, hooks=[hook], config=QUIET):
            pass
        ElementTree.parse(tmp_path / "lr-finder.svg")
        found.append((hook.sweep.best, len(hook.sweep.losses)))
    (best, tested), (best_lifted, tested_lifted) = found
    assert best_lifted == pytest.approx(best)
    assert 30 < tested <= tested_lifted < 50


@pytest.mark.parametrize(
    ("losses", "over"),
    [
        ([1.0, 3.9], False),
        ([1.0, 100.0], True),
        ([-1.0, -1.0], False),
        ([-1.0, -0.5, 0.0], False),
        ([-1.0, 10.0], True),
        ([0.0, 0.0], False),
        ([0.0, 0.1], True),
        ([5.0, -0.5, 8.0], False),
        ([5.0, -40.0, 199.0], True),
        ([-1.0, math.nan], True),
        ([math.inf], True),
        ([-math.inf], True),
    ],
)
def test_a_loss_that_rises_far_above_its_lowest_value_ends_the_test(losses, over):
    """Far is 3 times that value, or the largest one until then if it is not above 0."""
    assert Sweep(0.1, 1.0, 9, losses).is_over == over


def test_files_are_beside_the_checkpoints(tmp_path, monkeypatch):
    """Without checkpoints they are in the current directory; a setting wins over both."""
    monkeypatch.chdir(tmp_path)
    for saved, output_dir in ((None, None), ("saved", None), ("saved", "found")):
        hook = LRFinderHook(steps=2, output_dir=output_dir)
        hooks = [hook, *([CheckpointSaverHook(saved, save_steps=9)] if saved else [])]
        with MonitoredSession(short_graph(9), hooks=hooks, config=QUIET):
            pass
        folder = tmp_path / (output_dir or saved or ".")
        for suffix in ("csv", "svg"):
            (folder / f"lr-finder.{suffix}").unlink()
        if saved:
            shutil.rmtree(tmp_path / saved)


@pytest.mark.parametrize("suffix", ["csv", "svg"])
def test_a_link_in_the_place_of_a_file_is_replaced(suffix, tmp_path):
    """The directory may come from somebody else; what the link leads to stays as it is."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "found").mkdir()
    link = tmp_path / "found" / f"lr-finder.{suffix}"
    link.symlink_to(tmp_path / "precious")
    with MonitoredSession(short_graph(9), hooks=[finder(tmp_path)], config=QUIET):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
    assert not link.is_symlink()
    assert link.stat().st_size > 9


@pytest.mark.parametrize("place", ["loss", "train"])
def test_a_graph_that_the_program_feeds_is_an_error(place, tmp_path):
    """The message names the placeholder, and what to do."""
    graph = Graph()
    graph.placeholder("x")
    graph.variable("lr", 0.1)
    graph.op((lambda x: x) if place == "loss" else (lambda: 1.0), name="loss")
    graph.train_op((lambda x: None) if place == "train" else lambda: None, name="train")
    with pytest.raises(UsageError) as caught:
        MonitoredSession(graph, hooks=[finder(tmp_path)], config=QUIET)
    assert str(caught.value) == (
        "lr-finder runs 'loss' and 'train' by itself, where nobody feeds 'x': have the "
        "graph read it with graph.input('x', ...)"
    )


class WatchedSession(EmbeddedSession):
    """Keeps its forks, and counts how often all variables are read."""

    forks: ClassVar[list[EmbeddedSession]] = []
    reads: ClassVar[list[int]] = []

    def fork(self, inputs: Any = "copy") -> EmbeddedSession:
        self.forks.append(super().fork(inputs))
        return self.forks[-1]

    def variables(self) -> dict[str, Any]:
        self.reads.append(1)
        return super().variables()


class WatchedGraph(Graph):
    """A graph with such a session."""

    backend = WatchedSession


@pytest.mark.parametrize("fails", [True, False])
def test_the_fork_is_closed(fails, tmp_path):
    """Also if an op raises; and the variable is looked up once, not in each step."""
    WatchedSession.forks.clear()
    WatchedSession.reads.clear()
    graph = WatchedGraph()
    graph.variable("lr", 0.1)
    graph.op(lambda global_step: 1 / (3 - global_step) if fails else 1.0, name="loss")
    graph.train_op(lambda: None, name="train")
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        MonitoredSession(graph, hooks=[finder(tmp_path)], config=QUIET).close()
    assert len(WatchedSession.reads) == 1
    with pytest.raises(SessionClosedError):
        WatchedSession.forks[0].run("loss")


def test_a_loss_that_is_not_a_number_is_an_error(tmp_path):
    graph = Graph()
    graph.variable("lr", 0.1)
    graph.op(lambda: np.ones(2), name="loss")
    graph.train_op(lambda: None, name="train")
    with pytest.raises(UsageError) as caught:
        MonitoredSession(graph, hooks=[finder(tmp_path)], config=QUIET)
    assert str(caught.value) == (
        "lr-finder: 'loss' is not a single number (type ndarray). Name another with "
        "--lr-finder-loss"
    )


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
    message = "lr-finder: there is no variable 'rate'; lr can be the learning rate; name"
    with pytest.raises(UsageError, match=message):
        MonitoredSession(graph_of(), hooks=[hook], config=QUIET)
