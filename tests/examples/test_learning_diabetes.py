"""The example in slim's style as a user runs it: it trains, saves and evaluates."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import commands

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "learning_diabetes.py"
RUN = Path("runs/diabetes")
PLAIN = [sys.executable, str(SCRIPT)]


def hookbus(*flags: str) -> list[str]:
    return [sys.executable, "-m", "hookbus", "run", *flags, str(SCRIPT)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    done = commands.run(command, libraries=commands.EXAMPLES)
    assert done.returncode == 0, done.stderr
    return done


def held_out(text: str) -> tuple[int, int]:
    """Return the error that it printed, and what a constant would have."""
    found = re.search(r"held-out squared error: (\d+) \(variance (\d+)\)", text)
    return int(found[1]), int(found[2])


def outcome() -> dict:
    return json.loads((RUN / "outcome.json").read_text())


@pytest.mark.parametrize("command", [PLAIN, hookbus()], ids=["python", "hookbus run"])
def test_it_learns_something(command):
    """The held-out data is predicted better than by a constant."""
    error, variance = held_out(run(*command).stdout)
    assert error < 0.8 * variance
    assert outcome()["who"] == "learning.train()"
    assert (RUN / "ckpt-500").is_dir()


def test_it_takes_a_number_of_steps_and_a_directory():
    """As arguments of its own; a second call goes on where the first one stopped."""
    for steps in (20, 30):
        run(*hookbus(), "--steps", str(steps), "--logdir", "elsewhere")
    found = sorted(path.name for path in Path("elsewhere").glob("ckpt-*"))
    assert found == ["ckpt-0", "ckpt-20", "ckpt-30"]


def test_flags_of_the_command_reach_the_training():
    """It stops where a flag says, and that checkpoint is evaluated."""
    done = run(*hookbus("--stop-at-step", "20"))
    assert outcome()["who"] == "stop-at-step"
    assert "restored path=runs/diabetes/ckpt-20" in done.stderr
    assert "evaluated step=20" in done.stderr


def test_the_error_is_a_run_of_its_own_for_tensorboard():
    """Beside the curves of the training, at the step of the checkpoint."""
    error, _ = held_out(run(*hookbus()).stdout)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RUN / "eval"))
    events.Reload()
    (shown,) = events.Scalars("error")
    assert (shown.step, round(shown.value)) == (500, error)


def test_without_a_checkpoint_there_is_nothing_to_evaluate():
    """It says so, and its exit code tells it."""
    command = hookbus("-p", "no:checkpoint-saver")
    done = commands.run(command, libraries=commands.EXAMPLES)
    assert done.returncode == 1
    assert "nothing was saved, so there is nothing to evaluate" in done.stderr
