"""Tests what global-step-waiter waits for, and when it refuses to wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hookbus_global_step_waiter import GlobalStepWaiterHook

import hookbus
from hookbus import Config, MonitoredTrainingSession, SessionRunHook, UsageError
from hookbus.testing import run_steps
from tests.support import commands

QUIET = Config(autoload=False)
BOTH = pytest.mark.parametrize("custom_loop", [False, True])

CHIEF = """
import sys, time
import hookbus

graph = hookbus.Graph()
graph.train_op(lambda: {"x": 1}, outputs="x", name="train", increment=500)
with hookbus.MonitoredTrainingSession(graph, checkpoint_dir="chief",
                                      save_checkpoint_steps=1) as session:
    for _ in range(3):
        time.sleep(0.6)
        session.run("train")
"""


@pytest.fixture
def chief() -> Iterator[None]:
    """Train in another process, which saves the steps 500, 1000 and 1500 in ./chief."""
    process = subprocess.Popen([sys.executable, "-c", CHIEF])
    yield
    assert process.wait(30) == 0


class Reader(SessionRunHook):
    """Notes the step of the chief's newest checkpoint when the first run begins."""

    step = 0

    def before_run(self):
        newest = hookbus.latest_checkpoint("chief")
        self.step = self.step or (newest.global_step if newest else 0)


class StopLater(SessionRunHook):
    """Asks the session to stop from a thread, 0.3 seconds after it was created."""

    def after_create_session(self, coord):
        threading.Timer(0.3, coord.request_stop).start()


@BOTH
@pytest.mark.long
def test_it_waits_for_the_checkpoint_of_another_process(chief, custom_loop):
    """The first run begins when the chief has saved the step, or a later one."""
    reader = Reader()
    steps = run_steps(
        GlobalStepWaiterHook(800, "chief"), reader, steps=2, custom_loop=custom_loop
    )
    assert steps.global_step == 2
    assert reader.step >= 1000


def test_by_default_it_looks_into_the_sessions_own_directory(tmp_path):
    """Of a session that only restores from there, while others save."""
    run_steps(steps=1, directory=tmp_path)
    saver = threading.Timer(
        0.3, run_steps, kwargs={"steps": 4, "directory": tmp_path, "config": QUIET}
    )
    saver.start()
    steps = run_steps(
        GlobalStepWaiterHook(5), steps=1, directory=tmp_path, save_checkpoint_secs=None
    )
    saver.join()
    assert steps.global_step == 2
    assert hookbus.latest_checkpoint(tmp_path).global_step == 5


def test_the_step_of_the_session_itself_counts(tmp_path):
    """One that was restored at the step, or beyond, does not wait."""
    run_steps(steps=4, directory=tmp_path)
    steps = run_steps(GlobalStepWaiterHook(4), steps=1, directory=tmp_path)
    assert steps.global_step == 5


@BOTH
def test_nothing_to_wait_for_is_a_usage_error(custom_loop):
    """Only the session itself moves its step, and it names no place where others save."""
    with pytest.raises(UsageError, match="--global-step-waiter-checkpoint-dir DIR"):
        run_steps(GlobalStepWaiterHook(5), custom_loop=custom_loop)


@pytest.mark.parametrize("given", [None, "saved"])
def test_waiting_for_ones_own_checkpoints_is_a_usage_error(given):
    """Where a session saves itself nobody else does."""
    with pytest.raises(UsageError, match=r"wait for step 5 forever"):
        run_steps(GlobalStepWaiterHook(5, given), directory="saved")


@pytest.mark.long
def test_it_says_what_it_waits_for(chief, lines):
    """The step, the step that there is, and where it looks."""
    run_steps(GlobalStepWaiterHook(500, "chief"), steps=1)
    (line,) = [line for line in lines if "waiting" in line["event"]]
    assert (line["wait_until_step"], line["now"]) == (500, 0)
    assert line["checkpoint_dir"] == str(Path("chief").absolute())


@pytest.mark.long
def test_a_long_wait_is_not_silent(clock, lines):
    """Every minute it says that it still waits, though no step was done."""

    class Hours(SessionRunHook):
        """Lets eighty seconds go by at a time, twice, and then ends the wait."""

        def after_create_session(self, coord):
            def go_by():
                for _ in range(2):
                    time.sleep(0.7)
                    clock[0] += 80.0
                time.sleep(0.7)
                coord.request_stop()

            threading.Thread(target=go_by).start()

    run_steps(GlobalStepWaiterHook(5, "chief"), Hours(), reraise=False)
    assert len([line for line in lines if "waiting" in line["event"]]) == 3


@BOTH
def test_a_stop_that_a_thread_asks_for_ends_the_wait(custom_loop):
    """No run is done: the session leaves its block and ends well."""
    hooks = [GlobalStepWaiterHook(5, "chief"), StopLater()]
    steps = run_steps(*hooks, custom_loop=custom_loop, reraise=False)
    assert isinstance(steps.error, hookbus.errors.SessionInterruptedError | None)
    assert (steps.outcome.kind, steps.global_step) == ("completed", 0)


def test_what_a_thread_failed_with_ends_the_wait_and_the_session():
    """The error leaves the session."""

    class FailLater(SessionRunHook):
        def after_create_session(self, coord):
            error = OSError("the disk is full")
            threading.Timer(0.3, coord.request_stop, [error]).start()

    hooks = [GlobalStepWaiterHook(5, "chief"), FailLater()]
    with pytest.raises(OSError, match="the disk is full"):
        run_steps(*hooks)


def test_who_asked_to_stop_before_has_the_run():
    """A stop lets the run happen in which it was asked for; it waits for nothing."""

    class Stop(SessionRunHook):
        def before_run(self, run_context):
            run_context.request_stop("enough")

    steps = run_steps(Stop(), GlobalStepWaiterHook(5, "chief"))
    assert (steps.outcome.why, steps.global_step) == ("enough", 1)


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
    """Write SCRIPT, a worker that stops at step 3; return the command that runs it."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress"]
    return [*command, "--stop-at-step", "3", *flags, "script.py"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_the_wait(number, kind):
    """The session ends in good order, without a run."""
    flags = ["--global-step-waiter", "5", "--global-step-waiter-checkpoint-dir", "chief"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*flags), stdout=pipe, stderr=pipe, text=True) as process:
        assert any("waiting for" in line for line in process.stderr)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert out == ""
    assert f"session ended kind={kind}" in err
    assert "step=0" in err


def test_signal_handlers_are_as_they_were():
    """During the wait they are listened to, and put back after it."""
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    run_steps(GlobalStepWaiterHook(5, "chief"), StopLater(), reraise=False)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    "flag", ["--global-step-waiter", "--global-step-waiter-wait-until-step"]
)
def test_flags(flag):
    """One names the step, the other one the directory of the others."""
    run_steps(steps=5, directory="chief")
    words = command(flag, "5", "--global-step-waiter-checkpoint-dir", "chief")
    done = commands.run(words, timeout=30)
    assert done.stdout == "ended at 3\n", done.stderr
    assert "wait_until_step=5 now=5" in done.stderr


def test_a_worker_that_would_wait_for_ever_is_a_usage_error():
    """It exits with 4 before the first step and names the flag."""
    done = commands.run(command("--global-step-waiter", "5"), timeout=30)
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "--global-step-waiter-checkpoint-dir" in done.stderr


def test_the_session_of_a_chief_is_not_disturbed(tmp_path):
    """Looking into a directory takes no lock there."""
    run_steps(steps=5, directory=tmp_path)
    hooks = [GlobalStepWaiterHook(5, tmp_path)]
    with MonitoredTrainingSession(hooks=hooks, config=QUIET) as session:
        with session.step():
            pass
        assert run_steps(steps=1, directory=tmp_path).global_step == 6
