"""Trainings as people write them, cut short and resumed, are replayed bit for bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hookbus import list_checkpoints
from tests.support import commands
from tests.support.profiles import cases
from tests.support.zoo import KINDS, SCRIPT
from tests.support.zoo_numpy import TRAININGS

from .conftest import KEPT

EVERY = [(name, kind) for name in TRAININGS for kind in KINDS]


def hookbus(*words: str | Path, cut: str = "") -> commands.Done:
    env = {**os.environ, "CUT": cut}
    command = [sys.executable, "-m", "hookbus", *words]
    return commands.run([*command], env=env)


@pytest.mark.page
@pytest.mark.parametrize(("name", "kind"), cases(EVERY[65:66], EVERY))
def test_a_replay_of_a_training_is_exact(name, kind):
    """However it was cut short; from its first checkpoint, and from each later one."""
    training = (SCRIPT, "tests.support.zoo_numpy", name)
    for cut in (f"{kind}:4", f"{kind}:9", ""):
        hookbus("run", "-q", *KEPT, *training, cut=cut)
    *steps, _ = sorted(info.global_step for info in list_checkpoints("runs"))
    for first in cases(steps[:1], steps):
        done = hookbus("replay", "runs", "--from", str(first), "-q", *training)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "exact at step" in done.stdout
