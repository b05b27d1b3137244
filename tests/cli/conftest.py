"""What tests of the command need: a script, plugins, and the command in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus.testing import fake_dist

Done = subprocess.CompletedProcess[str]

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


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder on the path of every process that a test starts."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture
def process(site: Path) -> Callable[..., Done]:
    """Return a function that runs Python with some arguments and variables."""

    def run(*arguments: str | Path, **environment: str) -> Done:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(site)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

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
