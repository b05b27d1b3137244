"""Tests how flags set logging-tensor."""

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
graph.op(lambda w: w / 2, name="loss")
train = graph.train_op(lambda w: w + 1, name="train", updates="w")

def shout(values):
    return f"LOSS {values['loss']}"

if __name__ == "__main__":
    with hookbus.MonitoredSession(graph) as session:
        for _ in range(250):
            session.run("train")
"""


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT, 250 steps, under the command."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    return commands.run([*command, "script.py"])


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["-p", "logging-tensor"], [1, 101, 201]),
        (["--logging-tensor", "loss,w", "--logging-tensor-every-n-iter", "200"], [1, 201]),
        (["--logging-tensor-at-end", "true"], [1, 101, 201, 250]),
        (["--logging-tensor-every-n-secs", "1e9"], [1]),
    ],
)
def test_flags(flags, steps):
    """Flags name the nodes and the period; without one it is every 100 runs."""
    done = run_script(*flags, "--log-format", "json")
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert [e["step"] for e in entries if e["event"] == "logged"] == steps


def test_a_formatter_is_given_as_module_and_attribute():
    """A setting that is no text is named as module:attribute."""
    done = run_script("--logging-tensor-formatter", "script:shout")
    assert "LOSS 0.5" in done.stderr


def test_two_periods_in_flags_are_a_usage_error():
    """Both periods on one command line exit with 4."""
    periods = ["--logging-tensor-every-n-iter", "1", "--logging-tensor-every-n-secs", "1"]
    done = run_script(*periods)
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "exactly one of every_n_iter and every_n_secs" in done.stderr
