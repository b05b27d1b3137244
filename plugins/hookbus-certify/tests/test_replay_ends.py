"""The debugger opens in the loop, and signals end a replay without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiles import cases

from .conftest import IN_FULL, TRAINING, files_in

SLOW = TRAINING.replace(
    "step.report(", "__import__('time').sleep(0.2)\n                step.report("
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hookbus", "replay", *words]


def debugged(folder: Path, typed: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Replay with words that are typed into the debugger."""
    words = command("runs", "--from", "4", "--break-at", "5", "--to", "6", "-q", "train.py")
    return subprocess.run(
        words,
        cwd=folder,
        input=typed,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_the_debugger_opens_in_the_loop_of_the_user(trained):
    """With its values at hand, after the step; the replay goes on then."""
    done = debugged(trained, "p 'at', session.global_step, epoch\nc\n")
    assert done.returncode == 0, done.stderr
    assert "train.py(14)<module>()\n-> for row in session.iterate" in done.stdout
    assert "('at', 5, 0)" in done.stdout
    assert "exact at step 6 (from step 4)" in done.stdout
    assert "hookbus replay: step 5 is done, in train.py:15 (<module>)" in done.stderr


@IN_FULL
def test_leaving_the_debugger_ends_the_replay(trained, temporary):
    """The result tells at which step."""
    done = debugged(trained, "q\n")
    assert done.returncode == 1
    assert "the replay was cut short at step 5" in done.stdout
    assert not [*temporary.iterdir()]


@IN_FULL
def test_another_debugger_may_be_named(trained):
    """In the variable that Python has for it."""
    done = debugged(trained, "", PYTHONBREAKPOINT="faulthandler.dump_traceback")
    assert done.returncode == 0, done.stderr
    assert "most recent call first" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"),
    cases([(signal.SIGTERM, 75)], [(signal.SIGINT, 2), (signal.SIGTERM, 75)]),
)
def test_a_signal_ends_the_replay_without_leftovers(number, code, trained, temporary):
    """With the exit code of hookbus run."""
    Path("train.py").write_text(SLOW)
    before = files_in(trained / "runs")
    with subprocess.Popen(
        command(str(trained / "runs"), "train.py"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "the replay is exact" in line:
                process.send_signal(number)
                break
        rest = process.stdout.read()
        assert process.wait(60) == code, rest
    assert "the replay was cut short at step" in rest
    assert not [*temporary.iterdir()]
    assert files_in(trained / "runs") == before
