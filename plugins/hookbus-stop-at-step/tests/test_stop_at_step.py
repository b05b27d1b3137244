"""At which step stop-at-step ends a session, and what a resumed session has left to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hookbus_stop_at_step import StopAtStepHook
from hypothesis import given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import Graph, MonitoredSession, MonitoredTrainingSession, UsageError
from tests.support import commands

MANY = 60

SCRIPT = """
import os, signal, sys
import hookbus

graph = hookbus.Graph()
graph.variable("w", 0.0)

@graph.train_op(updates="w")
def train(w):
    return w + 1

with hookbus.MonitoredTrainingSession(graph, checkpoint_dir=DIRECTORY,
                                      save_checkpoint_steps=1) as session:
    for _ in range(60):
        if session.should_stop():
            break
        session.run("train")
        if session.global_step == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
print("stopped at", session.global_step)
"""


def toy(increment: int = 1) -> Graph:
    """Return a graph whose runs add *increment* to the global step."""
    graph = Graph()
    graph.variable("w", np.zeros(2))

    @graph.train_op(updates="w", increment=increment)
    def train(w):
        return w + 1

    return graph


def train(*hooks, directory: Path | None = None, increment: int = 1) -> MonitoredSession:
    """Run until the session stops, MANY runs at most; save at each step."""
    with MonitoredTrainingSession(
        toy(increment),
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=hookbus.Config(autoload=False),
    ) as session:
        for _ in range(MANY):
            if session.should_stop():
                break
            session.run("train")
    return session


def run_script(*flags: str, kill_at: int = -1) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT under the command; its checkpoints go to ./saved."""
    source = SCRIPT.replace("DIRECTORY", repr("saved")).replace("KILL_AT", str(kill_at))
    Path("script.py").write_text(source, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    return commands.run([*command, "script.py"])


def test_neither_target_is_an_error():
    """One of the two targets must be given."""
    with pytest.raises(UsageError, match=r"^One of num_steps or last_step must be spec"):
        StopAtStepHook()


def test_both_targets_are_an_error():
    """Only one of the two targets can be given."""
    with pytest.raises(UsageError, match=r"^Only one of num_steps or last_step can be"):
        StopAtStepHook(num_steps=1, last_step=1)


@pytest.mark.parametrize("chosen", [{"last_step": 5}, {"num_steps": 5}])
def test_it_stops_at_the_target(chosen):
    """A session that starts at step 0 ends at the target, whichever way it is given."""
    assert train(StopAtStepHook(**chosen)).global_step == 5


def test_the_outcome_names_the_hook_and_the_step():
    """The outcome of the session has the plugin that stopped it, and the reason."""
    outcome = train(StopAtStepHook(last_step=3)).outcome
    assert outcome == hookbus.Outcome("stopped", "stop-at-step", "step 3 is reached", 3)


def test_a_later_run_is_refused():
    """After the stop, run() raises and names who stopped the session."""
    hooks = [StopAtStepHook(last_step=1)]
    config = hookbus.Config(autoload=False)
    with MonitoredSession(toy(), hooks=hooks, config=config) as session:
        session.run("train")
        with pytest.raises(hookbus.RunAfterStopError, match="stop-at-step stopped"):
            session.run("train")


@settings(deadline=None)
@given(increment=st.sampled_from([1, 2, 5]), num_steps=st.integers(1, 40))
def test_it_stops_after_the_first_run_that_reaches_the_target(increment, num_steps):
    """The true step counts, with any increment."""
    runs = -(-num_steps // increment)
    session = train(StopAtStepHook(num_steps=num_steps), increment=increment)
    assert session.global_step == runs * increment


def test_a_session_that_never_advances_never_stops():
    """Runs that do not move the global step do not bring the target closer."""
    hooks = [StopAtStepHook(num_steps=2)]
    config = hookbus.Config(autoload=False)
    with MonitoredSession(toy(), hooks=hooks, config=config) as session:
        for _ in range(MANY):
            session.run("w")
        assert not session.should_stop()


@pytest.mark.parametrize("last_step", [5, 7])
def test_a_session_that_starts_at_or_beyond_the_target_runs_nothing(last_step, tmp_path):
    """Three more starts stay at step 7, and each is stopped by the hook."""
    train(StopAtStepHook(last_step=7), directory=tmp_path)
    for _ in range(3):
        outcome = train(StopAtStepHook(last_step=last_step), directory=tmp_path).outcome
        why = f"step {last_step} is reached"
        assert outcome == hookbus.Outcome("stopped", "stop-at-step", why, 7)


@pytest.mark.parametrize("flag", ["--stop-at-step", "--stop-at-step-num-steps"])
def test_a_flag_with_a_target_below_1_is_a_usage_error(flag):
    """A target that is reached before any step is a mistake; the message names the flag."""
    done = run_script(flag, "0")
    assert done.returncode == hookbus.ExitCode.USAGE
    assert f"({flag} 0)" in done.stderr or f"{flag} 0" in done.stderr
    assert "StopAtStepHook expects a number above 0" in done.stderr


def test_num_steps_begins_anew_after_a_kill_at_the_target(tmp_path):
    """Killed after the last save, nothing is left to do; the start after that does N."""

    class Dies(hookbus.SessionRunHook):
        def end(self):
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        train(StopAtStepHook(num_steps=3), Dies(), directory=tmp_path)
    reached = [
        train(StopAtStepHook(num_steps=3), directory=tmp_path).global_step for _ in range(3)
    ]
    assert reached == [3, 6, 9]


def test_num_steps_counts_from_the_restored_step(tmp_path):
    """After a session that had ended, num_steps begins anew at the restored step."""
    train(StopAtStepHook(last_step=4), directory=tmp_path)
    assert train(StopAtStepHook(num_steps=3), directory=tmp_path).global_step == 7


def test_num_steps_begins_anew_after_each_end(tmp_path):
    """Every session that follows one that reached its target does all its steps."""
    reached = [
        train(StopAtStepHook(num_steps=3), directory=tmp_path).global_step for _ in range(3)
    ]
    assert reached == [3, 6, 9]


def test_num_steps_does_the_rest_after_a_kill(tmp_path, monkeypatch):
    """A process killed at step 3 of 10 leaves 7 steps for the next one."""
    monkeypatch.chdir(tmp_path)
    killed = run_script("--stop-at-step-num-steps", "10", kill_at=3)
    assert killed.returncode == -9, killed.stderr
    resumed = run_script("--stop-at-step-num-steps", "10")
    # The kill came after the checkpoint of step 3 was written.
    assert resumed.stdout == "stopped at 10\n", resumed.stderr


def test_num_steps_does_the_rest_after_a_failure(tmp_path):
    """A session that failed had not ended either: the next one does the rest."""

    class Fail(hookbus.SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == 4:
                raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        train(StopAtStepHook(num_steps=6), Fail(), directory=tmp_path)
    assert train(StopAtStepHook(num_steps=6), directory=tmp_path).global_step == 6


def test_last_step_is_not_changed_by_a_checkpoint(tmp_path):
    """An absolute target is a setting: what the hook is given now counts."""
    train(StopAtStepHook(last_step=3), directory=tmp_path)
    assert train(StopAtStepHook(last_step=9), directory=tmp_path).global_step == 9


def test_a_relative_target_is_fixed_once_for_a_hook_object():
    """A hook object used a second time keeps the step that it computed first."""
    hook = StopAtStepHook(num_steps=3)
    assert train(hook).global_step == 3
    assert train(hook).global_step == 3


def test_a_reused_hook_object_runs_nothing_where_the_model_goes_on(tmp_path):
    """The old target is reached already."""
    hook = StopAtStepHook(num_steps=3)
    train(hook, directory=tmp_path)
    assert train(hook, directory=tmp_path).global_step == 3


def test_other_hooks_can_read_the_target():
    """run_context.last_step is the step at which the session will stop."""
    seen = []

    class Reader(hookbus.SessionRunHook):
        def after_run(self, run_context):
            seen.append(run_context.last_step)

    hooks = [StopAtStepHook(num_steps=2), Reader()]
    config = hookbus.Config(autoload=False)
    with MonitoredSession(toy(), hooks=hooks, config=config) as session:
        session.run("train")
    assert seen == [2]


def test_the_hooks_after_it_see_the_last_run():
    """Asking to stop takes effect after the run: every hook still sees it."""
    steps = []

    class Reader(hookbus.SessionRunHook):
        def after_run(self, run_values):
            steps.append(run_values.global_step)

    hooks = [StopAtStepHook(last_step=2), Reader()]
    config = hookbus.Config(autoload=False)
    with MonitoredSession(toy(), hooks=hooks, config=config) as session:
        while not session.should_stop():
            session.run("train")
    assert steps == [1, 2]


@pytest.mark.parametrize("flag", ["--stop-at-step", "--stop-at-step-last-step"])
def test_the_main_flag_sets_last_step(flag):
    """--stop-at-step N is short for --stop-at-step-last-step N."""
    assert run_script(flag, "4").stdout == "stopped at 4\n"


def test_both_flags_are_a_usage_error():
    """Two targets on one command line exit with 4 and name both flags."""
    done = run_script("--stop-at-step", "4", "--stop-at-step-num-steps", "5")
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "Only one of num_steps or last_step can be specified." in done.stderr
    assert "--stop-at-step 4" in done.stderr
    assert "--stop-at-step-num-steps 5" in done.stderr


def test_switched_on_without_a_target_is_a_usage_error():
    """-p stop-at-step alone exits with 4 and names the flags that are missing."""
    done = run_script("-p", "stop-at-step")
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "--stop-at-step-num-steps, --stop-at-step-last-step" in done.stderr
