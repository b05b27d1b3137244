"""Runs the example as its readers do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import keras

from tests.support import commands

EXAMPLE = Path(__file__).parents[3] / "examples" / "keras_rings.py"


def test_the_example_learns_logs_and_stops() -> None:
    """A flag stops it; without the flag it trains to the end."""
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    hookbus = [sys.executable, "-m", "hookbus", "run", "--logging-tensor", "loss,accuracy"]
    done = commands.run_new([*hookbus, "--stop-at-step", "30", EXAMPLE], env=environment)
    assert done.returncode == 0, done.stderr
    assert "kind=stopped who=stop-at-step why='step 30 is reached' step=30" in done.stderr
    done = commands.run_new([*hookbus, EXAMPLE], env=environment)
    assert done.returncode == 0, done.stderr
    assert "session ended kind=completed" in done.stderr
    assert int(done.stdout.partition("accuracy: ")[2].partition("%")[0]) > 90
