"""Trainings to replay, and the command that replays them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.commands import Done
from tests.support.folders import new_folder
from tests.support.profiles import FULL

TRAINING = """
import sys
import numpy as np
from hookbus import MonitoredTrainingSession

w, data = np.zeros(3), np.random.default_rng(0).normal(size=(5, 3))
np.random.seed(1)
with MonitoredTrainingSession(
    checkpoint_dir="runs", save_checkpoint_steps=2, save_summaries_steps=None
) as session:
    session.record({"rate": 1.0})
    session.track(w=w)
    for epoch in session.epochs(3):
        for row in session.iterate(np.random.permutation(5)):
            with session.step() as step:
                w += data[row] + np.random.random()
                step.report(loss=float(w.sum()))
        with session.evaluation("val") as evaluation:
            evaluation.report(noise=np.random.random())
print("w", *sys.argv[1:], w.sum())
"""
IN_FULL = pytest.mark.skipif(not FULL, reason="a part of the profile full")
KEPT = ("--checkpoint-saver-max-to-keep", "0")


def run(*words: str | Path, cwd: str | Path = ".") -> Done:
    """Run the command ``hookbus``."""
    env = {**os.environ, "COLUMNS": "80"}
    for name in ("RANK", "WORLD_SIZE"):
        env.pop(name, None)
    return commands.run([sys.executable, "-m", "hookbus", *words], env=env, cwd=cwd)


def files_in(folder: Path) -> Mapping[str, tuple[bytes, int]]:
    """Return the bytes and the time of each file in a folder, and the times of folders."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes() if path.is_file() else b"",
            path.lstat().st_mtime_ns,
        )
        for path in (folder, *sorted(folder.rglob("*")))
    }


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch) -> Path:
    """Return the folder for temporary directories, which each test has for itself."""
    folder = new_folder(tmp_path_factory, "temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was stopped after step 7, and resumed."""
    folder = new_folder(tmp_path_factory, "trained")
    (folder / "train.py").write_text(TRAINING)
    for flags in (("--stop-at-step", "7"), ()):
        done = run("run", "-q", *KEPT, *flags, "train.py", cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def replay(trained: Path, temporary: Path) -> Callable[..., Done]:
    """Return a function that replays this run, and checks that it stays as it is."""

    def replay(*words: str | Path) -> Done:
        before = files_in(trained / "runs")
        done = run("replay", *words, cwd=trained)
        assert files_in(trained / "runs") == before
        assert not [*temporary.iterdir()]
        return done

    return replay
