"""Tests that a run ends well where its lines reach nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiles import sample

TRAIN = """
import os, sys
import hookbus

class Own:
    def write(self, text):
        1 / 0

    def flush(self): ...

LOSE_BEFORE
graph = hookbus.Graph()
graph.op(lambda: 0.5, name="loss")
graph.train_op(lambda loss: (), name="train")
with hookbus.MonitoredTrainingSession(
    graph, checkpoint_dir="run", save_checkpoint_steps=1
) as session:
    for _ in session.loop():
        if session.global_step == 2:
            LOSE_WITHIN
        if session.global_step == 5:
            break
END
"""
WAYS = {
    "removed": "sys.stderr = sys.__stderr__ = None",
    "closed": "sys.stderr.close()",
    "closed below": "os.close(2)",
    "without a reader": "read, write = os.pipe(); os.dup2(write, 2); os.close(read)",
    "on a full disk": "full = os.open('/dev/full', os.O_WRONLY); os.dup2(full, 2)",
    "of the program": "sys.stderr = Own()",
}
"""The ways in which a process can lose its stderr."""
UNTOLD = {"on a full disk"}
"""The ways after which Python itself exits with 120: it cannot write what is left."""


def train(command: list[str], before: str, within: str, end: str = "") -> int:
    """Train in a new process and return its exit code."""
    script = TRAIN.replace("LOSE_BEFORE", before).replace("LOSE_WITHIN", within)
    Path("script.py").write_text(script.replace("END", end))
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # as a user's
    words = [sys.executable, *command, "script.py"]
    done = subprocess.run(words, capture_output=True, env=environment)
    assert done.stdout == b""
    return done.returncode


COMMANDS = {
    "python": [],
    "hookbus": ["-m", "hookbus", "run", "--progress-every-secs", "0"],
    "for machines": ["-m", "hookbus", "run", "--log-format", "json"],
}


CASES = [
    *(("python", way, "within") for way in WAYS),
    *(("hookbus", way, "within") for way in WAYS),
    ("python", "removed", "before"),
    ("hookbus", "closed", "before"),
    ("for machines", "closed", "within"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("command", "way", "moment"), sample(CASES, 6))
def test_a_training_whose_stderr_is_lost_ends_well(command, way, moment):
    """All its steps are done and saved, and it exits with 0."""
    lost = {"before": "pass", "within": "pass", moment: WAYS[way]}
    code = train(COMMANDS[command], **lost)
    assert code == 0 or (code, way in UNTOLD) == (120, True)
    assert Path("run/ckpt-5").is_dir()
    assert '"completed"' in Path("run/outcome.json").read_text()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", sample([*COMMANDS], 2))
def test_a_training_that_never_had_a_stderr_ends_well(command):
    """As a daemon, or a shell's ``2>&-``, or Windows' ``pythonw`` starts it."""
    Path("script.py").write_text(
        TRAIN.replace("LOSE_BEFORE", "").replace("LOSE_WITHIN", "pass").replace("END", "")
    )
    words = [sys.executable, *COMMANDS[command], "script.py"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *words])
    assert done.returncode == 0
    assert Path("run/ckpt-5").is_dir()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", sample(["removed", "closed"], 1))
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise KeyError('x')", 1),
        ("raise hookbus.UsageError('x')", 4),
        ("raise KeyboardInterrupt", 2),
        ("sys.stdout.close()", 0),
        ("sys.stdout = None", 0),
    ],
)
def test_the_command_keeps_its_exit_code_without_streams(way, end, code):
    """The reader of the error is gone; nothing of it goes to stdout instead."""
    assert train(COMMANDS["hookbus"], "pass", WAYS[way], end) == code


@pytest.mark.long
def test_a_signal_without_a_stderr_saves():
    """The handler's line is dropped, and the training ends as one that was preempted."""
    signal = "os.kill(os.getpid(), 15)"
    assert train(COMMANDS["python"], "pass", f"{WAYS['closed']}; {signal}") == 75
    assert Path("run/ckpt-2").is_dir()
