"""Tests how flags set in-memory-evaluator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hookbus
from tests.support import commands

SCRIPT = """
import hookbus
graph = hookbus.Graph()
graph.variable("w", 1.0)
graph.train_op(lambda w: w + 1, name="train", updates="w")
with hookbus.MonitoredSession(graph) as session:
    for _ in range(5):
        session.run("train")
"""
METRICS = """
def weight(session):
    return {"w": session.run("w")}
"""


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT, 5 steps, under the command, METRICS beside it."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    Path("metrics.py").write_text(METRICS, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    return commands.run([*command, "script.py"])


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--in-memory-evaluator", "metrics:weight"], [0, 5]),
        (["-o", "in-memory-evaluator.evaluate=metrics:weight"], [0, 5]),
        (
            [
                "--in-memory-evaluator-evaluate=metrics:weight",
                "--in-memory-evaluator-every-n-iter=2",
            ],
            [0, 2, 4, 5],
        ),
    ],
)
def test_flags(flags, steps):
    """Flags name the function, of a module beside the script, and the period."""
    done = run_script(*flags, "--log-format", "json")
    found = [json.loads(line) for line in done.stderr.splitlines()]
    found = [entry for entry in found if entry["event"] == "evaluated"]
    assert [entry["step"] for entry in found] == steps
    assert found[-1]["metrics"] == {"w": 6.0}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-p", "in-memory-evaluator"], "needs the setting --in-memory-evaluator-evaluate"),
        (
            ["--in-memory-evaluator", "metrics:accuracy"],
            "'metrics:accuracy' is not module:",
        ),
        (
            [
                "--in-memory-evaluator=metrics:weight",
                "--in-memory-evaluator-every-n-iter=0",
            ],
            "invalid every_n_iter=0",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_a_usage_error(flags, said):
    """It exits with 4, and says which."""
    done = run_script(*flags)
    assert done.returncode == hookbus.ExitCode.USAGE
    assert said in done.stderr
