"""Trains with checkpoints, in a process that kills itself or in this one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from hookbus.backend.protocol import Execution
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook import SessionRunHook
from hookbus.session.training import MonitoredTrainingSession
from hookbus.testing._backend.candidate import Backend
from hookbus.testing._backend.kinds import session_arguments
from hookbus.testing._backend.runner import np
from hookbus.testing.backend_model import BackendModel
from hookbus.testing.scenarios import saving

STEPS, KILLED_AFTER, SAVED_EVERY = 8, 5, 2
_NAMES = ("v", "w")
_COMMAND = "from hookbus.testing._backend.killed import main; main()"


def train(model: BackendModel, directory: Path, *hooks: Any) -> dict[str, bytes]:
    """Train up to the last step, resuming; return the bits of all variables."""
    graph, bits = model.graph(), _Bits()
    for name in _NAMES:
        model.variable(graph, name, 0.1)
    draw = random.Random(7)
    numbers = [draw.random() for _ in range(STEPS + 1)]
    model.input(graph, "x", lambda: numbers)
    model.train_op(graph, "train", {"v": ["v", "w", "x"], "w": ["v", "w"]})
    with MonitoredTrainingSession(
        graph,
        hooks=[saving(directory, SAVED_EVERY), *hooks, bits],
        **session_arguments(directory),
    ) as session:
        while session.global_step < STEPS:
            session.run("train")
    return bits.found


def kill_in_the_middle(backend: Backend, directory: Path) -> int:
    """Train in a new process, which kills itself; return its exit code."""
    command = [sys.executable, "-c", _COMMAND, backend.spelled, str(directory)]
    paths = os.pathsep.join(filter(None, sys.path))  # the backend may not be installed
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, env=environ, check=False).returncode


def main() -> None:
    """Train a backend in a directory, both given as arguments, until it is killed."""
    spelled, directory = sys.argv[1:]
    train(Backend.named(spelled).model, Path(directory), _Killer())


class _Killer(SessionRunHook):
    """Kills the process."""

    def after_run(self, run_context: SessionRunContext) -> None:
        if run_context.session.global_step == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


class _Bits(SessionRunHook):
    """Reads the bits of all variables at the end."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def end(self, session: Any) -> None:
        program = session.compile((), frozenset(), _NAMES)
        values = session.execute(Execution(program))
        for name, value in zip(_NAMES, values, strict=True):
            self.found[name] = np.asarray(value).tobytes()
