"""Runs the example as a user does: it trains, stops, and goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "examples" / "ignite_digits.py"


def run(*flags: str) -> str:
    command = [sys.executable, "-m", "hookbus", "run", *flags, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_example_trains_and_goes_on() -> None:
    """It has 23 steps an epoch, and evaluates behind each."""
    first = run("--stop-at-step", "46")
    assert "session ended kind=stopped who=stop-at-step" in first
    files = {path.name for path in Path("runs/ignite_digits").iterdir()}
    assert files == {"checkpoint_23.pt", "checkpoint_46.pt"}
    again = run("--logging-tensor", "loss", "--logging-tensor-every-n-iter", "1")
    assert "logged step=47" in again
    assert "logged step=46" not in again
    accuracy = re.search(r"evaluated step=92 metrics={'accuracy': ([\d.]+)", again)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.8
    assert "session ended kind=completed" in again
    assert "the training was complete" in run()
