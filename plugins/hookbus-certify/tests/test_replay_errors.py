"""A replay refuses wrong requests, and says what is wrong with each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import commands

from .conftest import TRAINING, run

TWICE = TRAINING + TRAINING.partition("np.random.seed(1)")[2].replace(
    "epochs(3)", "epochs(4)"
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "hookbus replay needs the directory of a run: write hookbus replay DIR"),
        (["--from", "3"], "hookbus replay needs the directory of a run"),
        (["runs"], "hookbus replay needs the script of the training"),
        (["runs", "--from"], "--from needs a value after it"),
        (["runs", "--to", "-1", "train.py"], "--to needs a value after it"),
        (["runs", "--to", "end", "train.py"], "--to end: expected the number of a step"),
        (["runs", "--into=", "train.py"], "--into needs the name of a directory"),
        (["none", "train.py"], "'none' is no directory: give hookbus replay the directory"),
        (["..", "train.py"], "'..' has no checkpoints: give hookbus replay"),
        (
            ["runs", "--to", "16", "train.py"],
            "--to 16 is after the end of 'runs': its newe",
        ),
        (["runs", "--from", "9", "--to", "8", "train.py"], "--to 8 is before --from 9"),
        (
            ["runs", "--from", "15", "train.py"],
            "there is nothing to replay from step 15 to",
        ),
        (["runs", "--from", "9", "--to", "9", "train.py"], "--from, or a later --to"),
        (
            ["runs", "--from", "9", "--break-at", "9", "train.py"],
            "--break-at 9 is outside of the replay, which does the steps 10 to 15",
        ),
        (["runs", "--into", "runs", "train.py"], "runs' is not an empty directory"),
    ],
)
def test_a_wrong_argument_is_an_error_that_says_which(words, message, replay):
    """Nothing is run."""
    done = replay(*words)
    assert (done.returncode, done.stdout) == (4, "")
    assert message in done.stderr


def test_a_start_before_the_first_checkpoint_is_an_error():
    """It names the first one."""
    Path("train.py").write_text(TRAINING)
    flags = ("--stop-at-step", "9", "--checkpoint-saver-max-to-keep", "2")
    assert run("run", "-q", *flags, "train.py").returncode == 0
    done = run("replay", "runs", "--from", "5", "train.py")
    assert done.returncode == 4
    assert (
        "--from 5 is before the first checkpoint in 'runs', that of step 8" in done.stderr
    )


def test_the_help_tells_of_its_flags(replay):
    """It needs no directory."""
    done = run("replay", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--break-at STEP open the debugger after this step" in done.stdout


def test_a_script_without_a_session_is_an_error(replay, tmp_path: Path):
    """There is nothing to replay."""
    (tmp_path / "empty.py").write_text("print('nothing')")
    done = replay("runs", tmp_path / "empty.py")
    assert done.returncode == 4
    assert "has opened no session that trains and takes plugins" in done.stderr


@pytest.mark.long
def test_a_script_with_two_sessions_that_train_is_an_error(replay, tmp_path: Path):
    """A replay follows one of them."""
    (tmp_path / "twice.py").write_text(TWICE)
    done = replay("runs", "--from", "13", "-q", tmp_path / "twice.py")
    assert done.returncode == 4
    assert "the script opens a second session that trains, and hookbus re" in done.stderr


def test_several_processes_need_a_directory_in_common(trained):
    """They cannot agree on a temporary one."""
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "hookbus", "replay", "runs", "train.py"]
    done = commands.run(command, env=env, cwd=trained)
    assert done.returncode == 4
    assert "name an empty one, which all of them see, with --into DIR" in done.stderr
