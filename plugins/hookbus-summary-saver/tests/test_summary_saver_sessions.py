"""Tests when a session gets a summary-saver, and what its files say after a kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hookbus
from hookbus import MonitoredTrainingSession
from tests.support import commands
from tests.support.profiles import cases

QUIET = hookbus.Config(autoload=False)
SAVED = Path("saved")

SCRIPT = """
import os, signal, sys
import hookbus

graph = hookbus.Graph()
graph.variable("w", 0.0)
graph.op(lambda w: w, name="loss")
graph.train_op(lambda w: w + 1, name="train", updates="w")
save_every, last, kill_at, period = map(int, sys.argv[1:])

with hookbus.MonitoredTrainingSession(
    graph,
    checkpoint_dir="saved",
    save_checkpoint_steps=save_every,
    save_summaries_steps=period,
    log_step_count_steps=None,
) as session:
    while session.global_step < last:
        session.run("train")
        if session.global_step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def script(save_every: int, last: int, kill_at: int = -1, period: int = 1) -> int:
    """Run SCRIPT in a process of its own; return its exit code."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    numbers = map(str, (save_every, last, kill_at, period))
    command = [sys.executable, "script.py", *numbers]
    return commands.run(command).returncode


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("save_every", "resumes_at"),
    [(300, 300), (10_000, 0)],
    ids=["from a checkpoint", "from step 0"],
)
def test_a_session_resumed_after_a_kill_leaves_no_duplicates_and_no_orphans(
    steps_in, save_every, resumes_at
):
    """TensorBoard forgets what the killed session wrote beyond the checkpoint."""
    assert script(save_every, 700, kill_at=590) == -9
    assert max(steps_in(SAVED)) > resumes_at + 100, "the kill left nothing beyond"
    assert script(save_every, 400) == 0
    assert steps_in(SAVED) == list(range(1, 401))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kill_at", cases([20, 22], [20, 21, 22, 23]))
def test_a_session_that_was_killed_goes_on_with_the_period(steps_in, kill_at):
    """It records the steps that one without a break does; the checkpoint is of step 20."""
    assert script(5, 40, kill_at, period=7) == -9
    assert script(5, 40, period=7) == 0
    assert steps_in(SAVED) == [1, 8, 15, 22, 29, 36]


def test_the_event_file_is_never_behind_a_checkpoint(steps_in):
    """Records up to a checkpoint survive a kill right after it."""
    assert script(5, 100, kill_at=10) == -9
    assert steps_in(SAVED) == list(range(1, 11))


def test_a_session_that_goes_on_adds_to_what_is_there(model, steps_in):
    """A second session over the same directory continues the curve."""
    for _ in range(2):
        with MonitoredTrainingSession(
            model(), checkpoint_dir="saved", save_summaries_steps=2, config=QUIET
        ) as session:
            for _ in range(4):
                session.run("train")
    assert steps_in(SAVED) == [1, 3, 5, 7]


def events(directory: str = "saved") -> list[Path]:
    """Return the event files in a directory."""
    return list(Path(directory).glob("events.*"))


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ({}, [1, 101]),
        ({"save_summaries_steps": 50}, [1, 51, 101]),
        ({"save_summaries_secs": 1e9}, [1]),
    ],
)
def test_a_checkpoint_directory_switches_it_on(model, steps_in, arguments, recorded):
    """By default every 100 steps, into the checkpoint directory."""
    with MonitoredTrainingSession(
        model(), checkpoint_dir="saved", config=QUIET, **arguments
    ) as session:
        for _ in range(120):
            session.run("train")
    assert steps_in(SAVED) == recorded


def test_a_summary_directory_takes_the_summaries(model, steps_in):
    """summary_dir= is where they go, with or without a checkpoint directory."""
    with MonitoredTrainingSession(
        model(), checkpoint_dir="saved", summary_dir="curves", config=QUIET
    ) as session:
        session.run("train")
    assert steps_in("curves") == [1]
    assert events("saved") == []


@pytest.mark.parametrize(
    "arguments", [{"save_summaries_steps": None}, {"save_summaries_steps": 0}]
)
def test_no_period_writes_nothing(model, arguments):
    """None or 0 says that no summaries are wanted."""
    with MonitoredTrainingSession(
        model(), checkpoint_dir="saved", config=QUIET, **arguments
    ) as session:
        session.run("train")
    assert events() == []


@pytest.fixture
def run_with():
    """Return a function that runs SCRIPT, 9 steps, under the command with flags."""

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        Path("script.py").write_text(SCRIPT, "utf-8")
        command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
        arguments = ["script.py", "100", "9", "-1", "1"]
        return commands.run([*command, *arguments])

    return run


def test_a_blocked_plugin_writes_nothing(run_with):
    """-p no:summary-saver is stronger than checkpoint_dir; checkpoints are still saved."""
    assert run_with("-p", "no:summary-saver").returncode == 0
    assert events() == []
    assert (SAVED / "ckpt-9").is_dir()


def test_flags_are_stronger_than_the_arguments_of_the_session(run_with, read_back):
    """The command line sets the period, the directory and the nodes."""
    flags = ["--summary-saver", "4", "--summary-saver-output-dir", "curves"]
    done = run_with(*flags, "--summary-saver-tensors", "w,loss")
    assert done.returncode == 0, done.stderr
    pairs = [(1, 0.0), (5, 4.0), (9, 8.0)]
    assert read_back("curves") == {"w": pairs, "loss": pairs}


def test_a_flag_in_seconds_clears_the_steps_of_the_session(run_with, steps_in):
    """One of the two periods on the command line replaces the other."""
    done = run_with("--summary-saver-save-secs", "1e9")
    assert done.returncode == 0, done.stderr
    assert steps_in(SAVED) == [1]
