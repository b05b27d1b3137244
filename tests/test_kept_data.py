"""The checkpoints and the plugin of version 0.1 are read and run by this version.

``tests/kept/v0_1`` holds two scripts, a checkpoint of each in the middle of its run, the
lines that the uninterrupted run printed, and a plugin as pip had installed it. They are
never written again: docs/reference/stability.md promises that they stay valid.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from hookbus import latest_checkpoint, verify_checkpoint
from tests.support.commands import run

KEPT = Path(__file__).parent / "kept/v0_1"
VALUES = {"graph": "total", "loop": "loss"}


@pytest.fixture(params=sorted(VALUES))
def training(request, tmp_path):
    """A run of version 0.1 that was killed in the middle, in a folder of its own."""
    kept = KEPT / request.param
    shutil.copy(kept.with_suffix(".py"), tmp_path / "train.py")
    shutil.copytree(kept / "ckpt-6", tmp_path / "runs/ckpt-6")
    return request.param, tmp_path, (kept / "printed.txt").read_text()


def hookbus_run(folder, *words):
    """Run ``hookbus run`` with the kept plugin installed."""
    paths = [str(KEPT / "plugin"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "hookbus", "run", *words]
    return run(command, cwd=folder, env=variables)


def test_a_checkpoint_is_good(training):
    """Its hashes are those of its files, and it is found in its directory."""
    _, folder, _ = training
    verify_checkpoint(folder / "runs/ckpt-6")
    assert latest_checkpoint(folder / "runs").global_step == 6


def test_a_run_goes_on_as_if_it_had_not_been_killed(training):
    """State of the program, of generators, of the input and of the plugin are restored."""
    name, folder, printed = training
    done = hookbus_run(folder, "-q", "--kept", VALUES[name], "train.py")
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_a_plugin_keeps_its_flags_and_its_stop(tmp_path):
    """Its options, its settings, and its requests mean the same."""
    shutil.copy(KEPT / "loop.py", tmp_path / "train.py")
    flags = ["--kept", "loss", "--kept-limit=-1e9"]
    done = hookbus_run(tmp_path, *flags, "train.py")
    assert "kind=stopped who=kept" in done.stderr
    assert "['begin', 'after_create_session', 'end']" in done.stdout
