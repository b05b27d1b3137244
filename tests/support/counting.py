"""Gives tests a graph that counts, and ways to train, save and kill it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookbus


def _graph(length: int = 1000, increment: int = 1) -> hookbus.Graph:
    graph = hookbus.Graph()
    graph.input("batch", lambda: iter(range(length)))
    graph.variable("w", np.zeros(4))
    graph.variable("seen", -1)

    @graph.train_op(updates=["w", "seen"], increment=increment)
    def train(w, batch):
        return w + 1, batch

    return graph


@pytest.fixture
def counting() -> Callable[..., hookbus.Graph]:
    """Make a graph whose state tells its past: after N runs ``w`` is full of N.

    ``seen`` is the last value of the input, which counts from 0.
    """
    return _graph


@pytest.fixture
def opened() -> Callable[..., hookbus.MonitoredTrainingSession]:
    """Open a training session that saves after every run, with no other plugin."""

    def opened(directory: Path, *hooks: Any, graph: Any = None, **arguments: Any) -> Any:
        defaults = {
            "save_checkpoint_steps": 1,
            "save_summaries_steps": None,
            "log_step_count_steps": None,
            "config": hookbus.Config(autoload=False),
        }
        if hooks:
            arguments["hooks"] = hooks
        return hookbus.MonitoredTrainingSession(
            graph or _graph(), checkpoint_dir=directory, **defaults | arguments
        )

    return opened


@pytest.fixture
def trained(opened) -> Callable[..., hookbus.MonitoredTrainingSession]:
    """Train some steps and leave the block, by an error where one is given."""

    def trained(directory, steps, *hooks, error=None, **arguments):
        with opened(directory, *hooks, **arguments) as session:
            for _ in range(steps):
                session.run("train")
            if error is not None:
                raise error
        return session

    return trained


@pytest.fixture
def killed(trained) -> Callable[..., None]:
    """Train some steps and end as a crash does: no end, no final save."""

    def killed(directory, steps, *hooks, **arguments):
        with pytest.raises(ZeroDivisionError):
            trained(directory, steps, *hooks, error=ZeroDivisionError(), **arguments)

    return killed


@pytest.fixture
def names() -> Callable[[Path], list[str]]:
    """List the checkpoints in a directory and whatever is called like one, sorted."""

    def names(directory):
        found = [path.name for path in Path(directory).iterdir() if "ckpt-" in path.name]
        return sorted(found, key=lambda name: (int(name.split("-")[1].split(".")[0]), name))

    return names


@pytest.fixture
def python(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a Python of its own.

    It writes no bytecode, since some programs count what they write, and buffers nothing,
    since some do not come to their end.
    """

    def python(program: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(program, "utf-8")
        command = [sys.executable, "-B", "-u", str(script), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return python
