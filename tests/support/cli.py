"""Gives the tests of the command a script, plugins, and the command in a process."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus.testing import fake_dist
from tests.support import commands

Done = commands.Done

GRAPH = """
import sys
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.variable("w", 1.0)

@graph.op
def loss(w):
    return 1 / w

@graph.train_op(updates="w")
def train(w):
    return w + 1
"""
LOOP = """
with MonitoredTrainingSession(graph) as session:
    while not session.should_stop() and session.global_step < 5:
        session.run(["loss", "train"])
print("steps", session.global_step)
"""


ESTIMATOR = """
import os
import signal

import numpy as np

from hookbus import Estimator, EstimatorSpec, ModeKeys, SessionRunHook, hookimpl, metrics


class Watch(SessionRunHook):
    @hookimpl
    def finished(self):
        print("watched")


def numbers():
    for n in range(10):
        if n == 4 and "SIGNAL" in os.environ:
            signal.raise_signal(int(os.environ["SIGNAL"]))
        print("batch", n)
        yield {"x": np.array([n, n + 0.5])}, np.array([3.0 * n, 3.0 * n + 1.5])


def model_fn(features, labels, mode):
    graph = features.graph
    graph.variable("w", 1.0)
    graph.op(lambda x, w: w * x, name="y", reads={"x": features["x"]})
    graph.op(lambda y: y > 4, name="large")
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"y": "y", "large": "large"})
    graph.op(lambda y, labels: ((y - labels) ** 2).mean(), name="loss")
    graph.train_op(lambda w: w + (3 - w) / 2, name="train", updates="w")
    graph.op(lambda w: np.array([w, 2 * w]), name="pair")
    mean = metrics.mean(graph.resolve("y"))
    found = {"mean": mean, "pair": ("pair", mean.update)}
    hooks = [Watch()]
    return EstimatorSpec(
        mode,
        loss="loss",
        train_op="train",
        eval_metric_ops=found,
        training_hooks=hooks,
        evaluation_hooks=hooks,
    )


def make(model_dir="runs/model"):
    return Estimator(model_fn, model_dir)


estimator = make()
"""
WATCHER = """
import sys
import hookbus

class Watcher(hookbus.SessionRunHook):
    options = hookbus.HookOptions(kinds=("train", "eval", "predict"))

    def __init__(self, word: str = "seen") -> None:
        self.word, self.runs = word, 0

    def after_run(self):
        self.runs += 1

    def end(self, outcome):
        print(self.word, self.runs, outcome.kind, file=sys.stderr)
"""


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder on the path of every process that a test starts."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture
def process(site: Path) -> Callable[..., Done]:
    """Return a function that runs Python with some arguments and variables."""

    def run(*arguments: str | Path, **environment: str) -> Done:
        variables = os.environ | {"PYTHONPATH": str(site), "COLUMNS": "80"} | environment
        # The command is compared with plain Python, to the last line.
        start = commands.run if "hookbus" in arguments[:2] else commands.run_new
        return start([sys.executable, *arguments], env=variables, timeout=60)

    return run


@pytest.fixture
def hookbus(process: Callable[..., Done]) -> Callable[..., Done]:
    """Return a function that runs the command in the current folder."""

    def run(*arguments: str | Path, **environment: str) -> Done:
        return process("-m", "hookbus", *arguments, **environment)

    return run


@pytest.fixture
def script() -> Callable[..., Path]:
    """Return a function that writes a script, with a graph before its own code."""

    def write(code: str = LOOP, name: str = "train.py", before: str = GRAPH) -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before + textwrap.dedent(code))
        return path

    return write


@pytest.fixture
def install(site: Path) -> Callable[..., None]:
    """Return a function that installs a plugin: a module and its metadata."""

    def write(name: str, code: str, attribute: str = "", **more: Any) -> None:
        module = more.get("module", f"fake_{name.replace('-', '_')}")
        entry = {name: f"{module}{attribute and ':'}{attribute}"}
        groups = {"hookbus": entry} | (
            {"hookbus.autouse": entry} if more.get("autouse") else {}
        )
        fake_dist(site, f"fake-{name}", groups, modules={module: code})

    return write


@pytest.fixture
def estimator() -> Callable[..., Path]:
    """Return a function that writes a module with an Estimator and its input."""

    def write(code: str = "", name: str = "model.py") -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ESTIMATOR + textwrap.dedent(code))
        return path

    return write


@pytest.fixture
def about(hookbus: Callable[..., Done]) -> Callable[..., Done]:
    """Return a function that runs a command about the Estimator of model.py."""

    def run(command: str, *arguments: str, **environment: str) -> Done:
        named = ("model.py:estimator", "--input", "model.py:numbers")
        return hookbus(command, *arguments, *named, **environment)

    return run


@pytest.fixture
def trained(estimator: Callable[..., Path], about: Callable[..., Done]) -> None:
    """Have model.py, and a checkpoint of it after three steps."""
    estimator()
    assert about("train", "--max-steps", "3").returncode == 0


@pytest.fixture
def watcher(install: Callable[..., None]) -> None:
    """Install a plugin that tells, at the end of any session, how many runs it saw."""
    install("watcher", WATCHER, "Watcher")
