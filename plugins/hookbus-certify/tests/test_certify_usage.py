"""Tests what scripts and flags are refused, and with which words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hookbus_certify.command import certify

from hookbus import TrainingError, UsageError
from tests.support import commands
from tests.support.certified import BODY, EXACT, HEAD
from tests.support.profiles import FULL, cases

QUIET = ("-p", "no:progress", "-p", "no:step-counter")
IN_FULL = pytest.mark.skipif(not FULL, reason="takes several runs")

SCRIPTS = {
    "no session": (
        "print('nothing to train')",
        "opens no session that trains; certify needs a script with a MonitoredTraining",
    ),
    "two sessions": (
        EXACT + BODY.format(step="pass"),
        "has several training sessions, and certify compares one",
    ),
    "two directories": (
        EXACT + EXACT.replace("runs/own", "runs/other"),
        "has several training sessions, and certify compares one",
    ),
    "no directory": (
        EXACT.replace('checkpoint_dir="runs/own", ', ""),
        "gives its session no checkpoint_dir, so a restarted job would begin anew",
    ),
    "one step": (
        EXACT.replace("range(12)", "range(1)"),
        "ends after 1 steps; there must be 2 to be interrupted between",
    ),
    "no saver": (
        EXACT.replace("hooks=hooks", "save_checkpoint_secs=None"),
        "no hook saves checkpoints in train.py: switch checkpoint-saver on",
    ),
    "a directory of another session": (
        HEAD
        + """
from hookbus import ChiefSessionCreator, Graph, MonitoredSession

graph = Graph()
graph.train_op(lambda: (), name="train")
creator = ChiefSessionCreator(graph, checkpoint_dir="runs/own")
with MonitoredSession(session_creator=creator) as session:
    session.run("train")
""",
        "which --checkpoint-dir does not replace",
    ),
}


@pytest.mark.parametrize("name", cases(("no directory",), SCRIPTS))
def test_a_script_that_cannot_be_examined_is_refused(name):
    """The message tells what it lacks, before anything is interrupted."""
    script, message = SCRIPTS[name]
    Path("train.py").write_text(script, "utf-8")
    with pytest.raises(UsageError) as raised:
        certify([*QUIET, "train.py"])
    assert message in " ".join(str(raised.value).split())
    assert not Path("runs").exists()


@pytest.mark.long
def test_a_script_that_fails_by_itself_is_shown():
    """With the last lines that it has written to stderr."""
    Path("train.py").write_text(EXACT.replace("size=3", "size=4"), "utf-8")
    with pytest.raises(TrainingError, match="ends with the exit code 1 without") as raised:
        certify([*QUIET, "train.py"])
    assert "could not be broadcast together" in str(raised.value)


def test_a_run_that_takes_too_long_is_killed():
    """The message tells how to give it more time."""
    Path("train.py").write_text("import time\ntime.sleep(600)", "utf-8")
    with pytest.raises(TrainingError, match=r"took more than 0.4 seconds.*--timeout SECS"):
        certify(["--timeout", "0.4", "train.py"])


@pytest.mark.long
def test_a_step_behind_the_last_one_is_refused():
    """The message names the last step."""
    Path("train.py").write_text(EXACT, "utf-8")
    with pytest.raises(UsageError, match="--at 12: the training ends at step 12"):
        certify(["--at", "3,12", *QUIET, "train.py"])


@IN_FULL
def test_a_directory_that_is_drawn_at_random_is_refused():
    """A restarted job would not find its checkpoints."""
    drawn = '"runs/own" + __import__("uuid").uuid1().hex'
    Path("train.py").write_text(EXACT.replace('"runs/own"', drawn), "utf-8")
    with pytest.raises(UsageError, match="another checkpoint_dir at each start"):
        certify([*QUIET, "train.py"])


@IN_FULL
def test_plugins_that_watch_are_needed_to_compare_without_them():
    """A script without any is refused."""
    Path("train.py").write_text(EXACT, "utf-8")
    with pytest.raises(UsageError, match="no plugin that only watches is on in train"):
        certify(["--observers", *QUIET, "train.py"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "hookbus certify needs a script"),
        ("missing.py", "the script missing.py does not exist"),
        ("--kinds sigquit train.py", "there is no kind 'sigquit'; the kinds are stop,"),
        ("--kinds sigkil train.py", "'sigkil'; did you mean 'sigkill'?"),
        ("--kinds , train.py", "there is no kind ','"),
        ("--at x train.py", "--at x: expected a whole number from 1 on"),
        ("--at 0 train.py", "--at 0: expected a whole number from 1 on"),
        ("--at , train.py", "--at : expected a whole number"),
        ("--at 3 --runs 2 train.py", "give --at or --runs, not both"),
        ("--runs 0 train.py", "--runs 0: expected a whole number from 1 on"),
        ("--steps 1 train.py", "--steps 1: expected a whole number from 2 on"),
        ("--timeout soon train.py", "--timeout soon: expected a number of seconds"),
        ("--again train.py", "--again has no place in hookbus certify"),
        ("--checkpoint-dir x train.py", "--checkpoint-dir has no place in"),
        ("--at", "--at needs a value after it"),
    ],
)
def test_flags_that_are_wrong_are_refused(words, message):
    """Before any run, with the flag and what it takes."""
    with pytest.raises(UsageError) as raised:
        certify(words.split())
    assert message in str(raised.value)


def test_the_command_is_found_and_shows_its_help():
    """`hookbus --help` lists it, and `hookbus help certify` tells its flags."""
    listed = commands.run([sys.executable, "-m", "hookbus", "--help"])
    assert "  certify   Interrupts a script in each way, and shows" in listed.stdout
    told = commands.run([sys.executable, "-m", "hookbus", "help", "certify"])
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("usage: hookbus certify [flags] SCRIPT [ARGS ...]\n")
