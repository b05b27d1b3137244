"""Tests how flags set early-stopping."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hookbus
from tests.support import commands

SCRIPT = """
import hookbus
graph = hookbus.Graph()
graph.op(lambda global_step: max(9 - global_step, 5), name="loss")
graph.op(lambda global_step: global_step / 20, name="accuracy")
graph.train_op(lambda: None, name="train")
with hookbus.MonitoredSession(graph) as session:
    while session.global_step < 20 and not session.should_stop():
        session.run("train")
print(session.outcome.kind, session.global_step)
"""
BESIDE = """
asked = []

def enough():
    asked.append(1)
    return len(asked) == 3

def metrics(session):
    return {"accuracy": session.run("accuracy")}
"""
STEPS = "--early-stopping-run-every-steps"
EVALUATE = "--in-memory-evaluator=beside:metrics"


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT, 20 steps at most, under the command, BESIDE beside it."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    Path("beside.py").write_text(BESIDE, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    return commands.run([*command, "script.py"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--early-stopping", "loss", "--early-stopping-patience", "4", STEPS, "1"], 9),
        (["--early-stopping-patience", "4", STEPS, "3"], 13),
        (["-o", "early-stopping.patience=2", "-o", "early-stopping.run_every_steps=1"], 7),
        (
            [
                "--early-stopping=accuracy",
                "--early-stopping-mode=higher",
                "--early-stopping-threshold=0.5",
                f"{STEPS}=1",
            ],
            12,
        ),
        (["--early-stopping-should-stop-fn", "beside:enough", STEPS, "2"], 5),
        (
            [
                "--early-stopping=accuracy",
                "--early-stopping-mode=higher",
                "--early-stopping-threshold=0.5",
                "--early-stopping-from-evaluations=true",
                EVALUATE,
                "--in-memory-evaluator-every-n-iter=4",
            ],
            12,
        ),
        (
            [
                "--early-stopping=accuracy",
                "--early-stopping-mode=higher",
                "--early-stopping-threshold=0.1",
                "--early-stopping-from-evaluations=valid",
                EVALUATE,
                "--in-memory-evaluator-every-n-iter=4",
                "--in-memory-evaluator-name=valid",
            ],
            4,
        ),
    ],
)
def test_flags(flags, said):
    """Each of the settings has one, and the file takes the same names."""
    done = run_script(*flags)
    assert done.stdout == f"stopped {said}\n", done.stderr


def test_by_default_it_looks_at_every_run():
    """So it also stops a run that takes less than a second."""
    assert run_script("--early-stopping-patience", "4").stdout == "stopped 9\n"


def test_a_period_that_is_longer_than_the_run_is_told():
    """The flag had no effect, so the last lines say why."""
    flags = "--early-stopping-patience=4", "--early-stopping-run-every-secs=60"
    done = run_script(*flags)
    assert done.stdout == "completed 20\n"
    assert "only the first step was checked steps=20 run_every_secs=60.0" in done.stderr


def test_steps_in_flags_take_the_place_of_seconds_in_a_file():
    """Giving one of the two clears the other from weaker places."""
    Path("hookbus.toml").write_text("[early-stopping]\nrun_every_secs = 60\n", "utf-8")
    assert run_script("--early-stopping-patience=4", f"{STEPS}=1").stdout == "stopped 9\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-p", "early-stopping"], "early-stopping: mode=no_decrease needs patience"),
        (
            [
                "--early-stopping-patience=4",
                f"{STEPS}=1",
                "--early-stopping-run-every-secs=1",
            ],
            "Only one of `run_every_secs` and `run_every_steps` must be set.",
        ),
        (
            [
                "--early-stopping-patience=4",
                "--early-stopping-reduce=mean",
                "--early-stopping-run-every-secs=1",
            ],
            "ERROR: early-stopping: reduce='mean' needs a node",
        ),
        (["--early-stopping", "accuracy"], "mode is required for the metric 'accuracy'"),
        (
            ["--early-stopping-should-stop-fn", "beside:asked"],
            "`should_stop_fn` must be call",
        ),
    ],
)
def test_settings_that_do_not_suffice_are_a_usage_error(flags, said):
    """They exit with 4, and say what is missing or too much."""
    done = run_script(*flags)
    assert done.returncode == hookbus.ExitCode.USAGE
    assert said in done.stderr
