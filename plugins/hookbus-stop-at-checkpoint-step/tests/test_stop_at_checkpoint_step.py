"""Tests when stop-at-checkpoint-step stops a worker, and how its pauses end."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hookbus_stop_at_checkpoint_step import StopAtCheckpointStepHook

import hookbus
from hookbus import SessionRunHook, UsageError
from hookbus.testing import run_steps
from tests.support import commands

BOTH = pytest.mark.parametrize("custom_loop", [False, True])
FLAGS = ["--stop-at-checkpoint-step", "3", "--stop-at-checkpoint-step-model-dir", "chief"]

CHIEF = """
import time
from hookbus.testing import run_steps
run_steps(steps=2, directory="chief")
time.sleep(1.5)
run_steps(steps=3, directory="chief")
"""


class StopLater(SessionRunHook):
    """Asks the session to stop from a thread, 0.3 seconds after it was created."""

    def after_create_session(self, coord):
        threading.Timer(0.3, coord.request_stop).start()


def pauses(lines) -> list[dict]:
    """Return the lines about pauses among all log lines."""
    return [
        line for line in lines if line["event"].startswith("waiting for the checkpoint")
    ]


@BOTH
@pytest.mark.long
def test_a_worker_goes_on_until_its_chief_has_saved(custom_loop):
    """It steps slowly, and stops when the checkpoint of another process is there."""
    chief = subprocess.Popen([sys.executable, "-c", CHIEF])
    hook = StopAtCheckpointStepHook("chief", 5, 0.1)
    steps = run_steps(hook, steps=1000, custom_loop=custom_loop)
    assert chief.wait(30) == 0
    assert steps.outcome.who == "stop-at-checkpoint-step"
    assert steps.outcome.why == "the checkpoint of step 5 is on disk"
    assert 5 < steps.global_step < 1000


def test_a_negative_pause_is_a_usage_error():
    """Zero seconds are no pause; fewer there are not."""
    StopAtCheckpointStepHook("chief", 5, 0)
    given = r"^invalid wait_after_file_check_secs=-1\. "
    message = rf"{given}StopAtCheckpointStepHook expects a number of at least 0\.$"
    with pytest.raises(UsageError, match=message):
        StopAtCheckpointStepHook("chief", 5, -1)


def test_a_pause_is_told_in_a_line(lines):
    """The message has the step, the directory and the checkpoints there."""
    run_steps(steps=1, directory="chief")
    run_steps(StopAtCheckpointStepHook("chief", 3, 0), steps=4)
    assert [
        (line["step"], line["last_step"], line["newest"]) for line in pauses(lines)
    ] == [
        (3, 3, 1),
        (4, 3, 1),
    ]
    assert pauses(lines)[0]["model_dir"] == "chief"


@BOTH
def test_a_stop_that_a_thread_asks_for_ends_a_pause(custom_loop):
    """The session leaves its loop."""
    began = time.monotonic()
    hooks = [StopAtCheckpointStepHook("chief", 1, 60), StopLater()]
    config = hookbus.Config(autoload=False)
    with hookbus.MonitoredTrainingSession(hooks=hooks, config=config) as session:
        for _ in session.iterate(range(9)):
            with session.step():
                pass
    assert session.global_step == 1
    assert time.monotonic() - began < 30


def test_who_asked_to_stop_before_waits_for_nothing(lines):
    """Nobody needs the checkpoint then."""

    class Stop(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_stop("enough")

    steps = run_steps(Stop(), StopAtCheckpointStepHook("chief", 1, 60))
    assert (steps.outcome.why, steps.global_step) == ("enough", 1)
    assert pauses(lines) == []


def test_a_directory_that_cannot_be_read_is_a_warning(monkeypatch, lines):
    """A file server that is away for a moment does not fail a worker."""
    run_steps(steps=1, directory="chief")

    def refuse(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        steps = run_steps(StopAtCheckpointStepHook("chief", 2, 0), steps=2)
    assert steps.outcome.kind == "completed"
    (warning,) = [line for line in lines if "cannot read" in line["event"]]
    assert warning["log_level"] == "warning"


def test_other_hooks_can_read_the_last_step():
    """run_context.last_step is the step from which on the session may stop."""
    seen = []

    class Reader(SessionRunHook):
        def after_run(self, run_context):
            seen.append(run_context.last_step)

    run_steps(StopAtCheckpointStepHook("chief", 7), Reader(), steps=1)
    assert seen == [7]


def test_a_resumed_worker_stops_at_the_same_step(tmp_path):
    """The last step is absolute, and a setting."""
    run_steps(steps=6, directory="chief")
    for steps, wanted in [(2, 2), (9, 4)]:
        hook = StopAtCheckpointStepHook("chief", 4)
        assert run_steps(hook, steps=steps, directory=tmp_path).global_step == wanted


SCRIPT = """
import hookbus

graph = hookbus.Graph()
graph.train_op(lambda: {"x": 1}, outputs="x", name="train")
with hookbus.MonitoredTrainingSession(graph, is_chief=False) as session:
    while not session.should_stop():
        session.run("train")
    print("ended at", session.global_step)
"""


def command(*flags: str) -> list[str]:
    """Write SCRIPT, a worker; return the command that runs it."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress"]
    return [*command, *flags, "script.py"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_a_pause(number, kind):
    """The session ends in good order, after the run in which it came."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*FLAGS), stdout=pipe, stderr=pipe, text=True) as process:
        assert any("waiting for" in line for line in process.stderr)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert out == "ended at 3\n", err
    assert f"kind={kind}" in err


@pytest.mark.parametrize(
    "flags", [FLAGS, ["--stop-at-checkpoint-step-last-step", *FLAGS[1:]]]
)
def test_flags(flags):
    """The main flag names the step; another one the directory."""
    run_steps(steps=5, directory="chief")
    done = commands.run(command(*flags), timeout=30)
    assert done.stdout == "ended at 3\n", done.stderr


@pytest.mark.parametrize(
    ("flags", "missing"), [(FLAGS[:2], "model-dir"), (FLAGS[2:], "last-step")]
)
def test_a_setting_that_is_missing_is_a_usage_error(flags, missing):
    """It exits with 4 and names the flag."""
    done = commands.run(command(*flags), timeout=30)
    assert done.returncode == hookbus.ExitCode.USAGE
    assert f"--stop-at-checkpoint-step-{missing}" in done.stderr
