"""At which steps step-counter measures, what it measures, and who is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hookbus_step_counter import StepCounterHook
from hypothesis import given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import Graph, MonitoredSession, MonitoredTrainingSession, UsageError
from tests.support import commands

QUIET = hookbus.Config(autoload=False)
NEITHER = {"every_n_steps": None, "every_n_secs": None}


class Listener(hookbus.SessionRunHook):
    """Collects what is emitted as ``measured``."""

    def __init__(self):
        self.heard = []

    @hookbus.hookimpl
    def measured(self, values, global_step):
        self.heard.append((global_step, dict(values)))

    @property
    def steps(self):
        return [step for step, _ in self.heard]


def model(increment: int = 1) -> Graph:
    """Return a graph whose runs add *increment* to the global step."""
    graph = Graph()
    graph.variable("w", 1.0)

    @graph.train_op(updates="w", increment=increment)
    def train(w):
        return w + 1

    return graph


def measure(
    hook: StepCounterHook, runs: int, increment: int = 1, directory: Path | None = None
) -> Listener:
    """Run so often; return who heard what was measured."""
    listener = Listener()
    with MonitoredTrainingSession(
        model(increment),
        checkpoint_dir=directory,
        hooks=[hook, listener],
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        for _ in range(runs):
            session.run("train")
    return listener


@pytest.mark.parametrize(
    "chosen", [{"every_n_secs": 5}, {"every_n_steps": 5, "every_n_secs": 5}, NEITHER]
)
def test_exactly_one_period_is_given(chosen):
    """As every_n_steps has a default, seconds need every_n_steps=None."""
    with pytest.raises(
        UsageError,
        match=r"^exactly one of every_n_steps and every_n_secs should be provided",
    ):
        StepCounterHook(**chosen)


@pytest.mark.parametrize(
    ("period", "increment", "runs", "steps"),
    [
        (10, 1, 30, [11, 21]),
        (2, 1, 7, [3, 5, 7]),
        (10, 5, 5, [15, 25]),
        (5, 5, 5, [10, 15, 20, 25]),
        (5, 10, 5, [20, 30, 40, 50]),
        (3, 2, 5, [6, 10]),
    ],
)
def test_the_first_run_starts_the_clock(period, increment, runs, steps):
    """Nothing is measured at the first run; then whenever the period is over."""
    hook = StepCounterHook(every_n_steps=period)
    assert measure(hook, runs, increment).steps == steps


@settings(deadline=None)
@given(st.integers(1, 9), st.sampled_from([1, 2, 5]), st.integers(1, 30))
def test_the_schedule_is_that_of_the_true_step(period, increment, runs):
    """Each measurement comes at the first step at least a period after the one before."""
    expected, last = [], increment
    for step in range(2 * increment, runs * increment + 1, increment):
        if step >= last + period:
            expected.append(step)
            last = step
    hook = StepCounterHook(every_n_steps=period)
    assert measure(hook, runs, increment).steps == expected


def test_the_default_is_every_100_steps():
    """Without settings the first measurement comes at step 101."""
    assert measure(StepCounterHook(), 202).steps == [101, 201]


def test_a_restored_session_starts_its_own_clock(tmp_path):
    """The steps of the session before, and the time between, do not count."""
    measure(StepCounterHook(every_n_steps=5), 20, directory=tmp_path)
    resumed = measure(StepCounterHook(every_n_steps=5), 12, directory=tmp_path)
    assert resumed.steps == [26, 31]


def test_the_rate_is_steps_by_seconds(clock, lines):
    """It emits and logs elapsed steps through elapsed seconds."""
    listener = Listener()
    hooks = [StepCounterHook(every_n_steps=4), listener]
    with MonitoredSession(model(2), hooks=hooks, config=QUIET) as session:
        for _ in range(5):
            session.run("train")
            clock[0] += 0.5
    assert listener.heard == [
        (6, {"global_step/sec": 4.0}),
        (10, {"global_step/sec": 4.0}),
    ]
    speeds = [line for line in lines if line["event"] == "speed"]
    assert speeds == [
        {"event": "speed", "log_level": "info", "step": step, "steps_per_sec": 4.0}
        for step in (6, 10)
    ]


def test_a_period_in_seconds(clock):
    """A measurement comes at the first run after the period is over."""
    listener = Listener()
    hooks = [StepCounterHook(every_n_steps=None, every_n_secs=1.0), listener]
    with MonitoredSession(model(), hooks=hooks, config=QUIET) as session:
        for _ in range(10):
            session.run("train")
            clock[0] += 0.25
    assert listener.heard == [
        (5, {"global_step/sec": 4.0}),
        (9, {"global_step/sec": 4.0}),
    ]


def test_a_clock_that_stands_still_measures_nothing(clock):
    """No time between two steps gives no rate, and no error."""
    assert measure(StepCounterHook(every_n_steps=2), 9).heard == []


def test_runs_that_do_not_train_do_not_count():
    """The period goes by global steps, not by runs."""
    listener = Listener()
    hooks = [StepCounterHook(every_n_steps=2), listener]
    with MonitoredSession(model(), hooks=hooks, config=QUIET) as session:
        for _ in range(5):
            session.run("train")
            session.run("w")
    assert listener.steps == [3, 5]


def test_it_fetches_nothing():
    """Measuring adds no node to the runs."""
    computed = []
    graph = model()
    graph.op(lambda: computed.append(1), name="loss")
    hook = StepCounterHook(every_n_steps=1)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("train")
        session.run("train")
    assert computed == []


@pytest.mark.parametrize(("runs", "times"), [(2, 1), (9, 5)])
def test_a_step_that_does_not_increase_is_warned_of(lines, runs, times):
    """Runs that do not train are reported, five times at most."""
    hooks = [StepCounterHook()]
    with MonitoredSession(model(), hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("w")
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert len(warnings) == times
    assert "has not been increased" in warnings[0]["event"]


SCRIPT = """
import hookbus
graph = hookbus.Graph()
graph.variable("w", 1.0)
train = graph.train_op(lambda w: w + 1, name="train", updates="w")
with hookbus.MonitoredTrainingSession(graph, checkpoint_dir=DIRECTORY) as session:
    for _ in range(210):
        session.run("train")
"""


def speeds(*flags: str, directory: str | None = None) -> list[int]:
    """Run SCRIPT under the command; return the steps at which a speed was logged."""
    Path("script.py").write_text(SCRIPT.replace("DIRECTORY", repr(directory)), "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    command += ["--log-format", "json", "script.py"]
    done = commands.run(command, check=True)
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    return [entry["step"] for entry in entries if entry["event"] == "speed"]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ([], []),
        (["-p", "step-counter"], [101, 201]),
        (["--step-counter", "80"], [81, 161]),
        (["--step-counter-every-n-steps", "150"], [151]),
        (["--step-counter-every-n-secs", "1e9"], []),
    ],
)
def test_flags(flags, steps):
    """The main flag is the period in steps; one in seconds takes its place."""
    assert speeds(*flags) == steps


def test_a_flag_in_seconds_clears_the_default_in_steps():
    """Seconds from the command line replace the weaker period of the session."""
    assert speeds("--step-counter-every-n-secs", "1e9", directory="saved") == []


def test_a_checkpoint_directory_switches_it_on():
    """A training session with checkpoint_dir counts steps, every 100 by default."""
    assert speeds(directory="saved") == [101, 201]


def test_it_can_be_switched_off_by_name():
    """-p no:step-counter is stronger than checkpoint_dir."""
    assert speeds("-p", "no:step-counter", directory="saved") == []
