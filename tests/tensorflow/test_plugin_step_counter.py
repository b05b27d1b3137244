"""TensorFlow's rules for StepCounterHook: when it measures, what, and who hears of it."""

from __future__ import annotations

import inspect

import pytest
from hookbus_step_counter import StepCounterHook
from hookbus_summary_saver import SummarySaverHook

from hookbus import (
    ChiefSessionCreator,
    EmbeddedSession,
    Graph,
    OutOfRangeError,
    SessionRunHook,
    hookimpl,
)
from hookbus.testing import run_steps


class Listener(SessionRunHook):
    """Keeps what is emitted as ``measured``."""

    def __init__(self):
        self.heard = []

    @hookimpl
    def measured(self, values, global_step):
        self.heard.append((global_step, dict(values)))

    @property
    def steps(self):
        return [step for step, _ in self.heard]


@pytest.fixture
def listener() -> Listener:
    """A listener to measurements in this test."""
    return Listener()


def graph_adding(increment: int) -> Graph:
    """Return a graph whose train op adds so much to the global step."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    return graph


@pytest.fixture
def measure(open_session, clock, listener):
    """Return a function that trains, and returns the steps at which was measured."""

    def measure(hook, runs, increment=1, pause=0.2):
        with open_session(hook, listener, graph=graph_adding(increment)) as session:
            for _ in range(runs):
                session.run("train")
                clock[0] += pause
        return listener.steps

    return measure


def warnings(lines) -> list[dict]:
    """Return the warnings among log lines."""
    return [line for line in lines if line["log_level"] == "warning"]


def test_steps_come_first_and_are_100_by_default():
    """The arguments are every_n_steps and every_n_secs."""
    parameters = list(inspect.signature(StepCounterHook).parameters.values())[:2]
    given = [(parameter.name, parameter.default) for parameter in parameters]
    assert given == [("every_n_steps", 100), ("every_n_secs", None)]


@pytest.mark.parametrize("periods", [(None, None), (10, 0.1), (1, 0), (None,)])
def test_exactly_one_period_is_given(periods):
    """Both are there if neither is None, and 0 is not None."""
    told = r"^exactly one of every_n_steps and every_n_secs should be provided\.$"
    with pytest.raises(ValueError, match=told):
        StepCounterHook(*periods)


def test_seconds_alone_are_not_enough():
    """The default in steps has to be taken back."""
    with pytest.raises(ValueError, match="exactly one of every_n_steps and every_n_secs"):
        StepCounterHook(every_n_secs=0.1)
    assert StepCounterHook(every_n_steps=None, every_n_secs=0.1).every_n_secs == 0.1


@pytest.mark.parametrize(
    ("period", "runs", "steps"), [(10, 30, [11, 21]), (2, 7, [3, 5, 7]), (100, 99, [])]
)
def test_the_first_run_starts_the_clock(period, runs, steps, measure):
    """Nothing is told of it, and the next is due a period later."""
    assert measure(StepCounterHook(period), runs) == steps


def test_by_time_each_run_after_a_period_is_measured(measure):
    """0.1 s, and runs that begin 0.2 s after each other: 2, 3."""
    assert measure(StepCounterHook(None, 0.1), 3, pause=0.2) == [2, 3]


@pytest.mark.parametrize(
    ("increment", "period", "steps"),
    [(5, 10, [15, 25]), (5, 5, [10, 15, 20, 25]), (10, 5, [20, 30, 40, 50])],
)
def test_the_true_step_counts_whatever_a_run_adds(increment, period, steps, measure):
    """TensorFlow needs to be told how many steps a run does."""
    assert measure(StepCounterHook(period), 5, increment) == steps


@pytest.mark.parametrize(("increment", "rate"), [(1, 5.0), (4, 20.0)])
def test_the_rate_is_steps_through_seconds(increment, rate, measure, listener):
    """Since the measurement before, under the step of the run."""
    measure(StepCounterHook(2 * increment), 5, increment, pause=0.2)
    rates = [(step, round(values["global_step/sec"], 6)) for step, values in listener.heard]
    assert rates == [(3 * increment, rate), (5 * increment, rate)]


def test_each_rate_is_logged(measure, lines):
    """Whether somebody writes it or not, with the step."""
    measure(StepCounterHook(2), 5, pause=0.25)
    told = [line for line in lines if line["event"] == "speed"]
    assert [(line["step"], line["steps_per_sec"]) for line in told] == [(3, 4.0), (5, 4.0)]
    assert {line["log_level"] for line in told} == {"info"}


def test_a_rate_is_called_after_the_global_step(measure, listener):
    """NAME/sec, and there is one name."""
    measure(StepCounterHook(2), 3)
    assert [list(values) for _, values in listener.heard] == [["global_step/sec"]]


def test_the_rate_stands_in_the_event_file():
    """At the true step; another hook writes it, and none is opened behind the scenes."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    saver = SummarySaverHook(99, output_dir="out")
    run_steps(StepCounterHook(2), saver, steps=5)
    rates = EventAccumulator("out").Reload().Scalars("global_step/sec")
    assert [rate.step for rate in rates] == [3, 5]
    assert all(rate.value > 0 for rate in rates)


def test_without_anybody_who_writes_nothing_is_written(tmp_path, monkeypatch):
    """It has no directory of its own."""
    monkeypatch.chdir(tmp_path)
    run_steps(StepCounterHook(1), steps=3)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_measured_at_the_end(measure):
    """The last step is measured only if it was due."""
    assert measure(StepCounterHook(4), 8) == [5]


def test_it_asks_for_nothing_and_runs_nothing(calls, open_session):
    """TensorFlow reads the step in every run, and once more when it is due."""

    class Backend(EmbeddedSession):
        def execute(self, execution):
            calls.append(len(execution.program.results))
            return super().execute(execution)

    creator = ChiefSessionCreator(graph_adding(1), backend=Backend)
    with open_session(StepCounterHook(1), session_creator=creator) as session:
        for _ in range(3):
            session.run("train")
    assert calls == [1, 1, 1]


def test_a_step_that_does_not_increase_is_warned_of(open_session, lines):
    """With the step, and what it may be that is missing."""
    with open_session(StepCounterHook()) as session:
        session.run("train")
        session.run("n")
    (warning,) = warnings(lines)
    assert "global step has not been increased" in warning["event"]
    assert "is a train op fetched?" in warning["event"]
    assert warning["step"] == 1


@pytest.mark.parametrize(("runs", "times"), [(6, 5), (20, 5)])
def test_it_warns_five_times_at_most(runs, times, open_session, lines):
    """TensorFlow counts them for the process; here each hook counts its own."""
    for _ in range(2):
        lines.clear()
        with open_session(StepCounterHook()) as session:
            for _ in range(runs):
                session.run("n")
        assert len(warnings(lines)) == times


def test_steps_that_increase_are_not_warned_of(measure, lines):
    """Neither by 1 nor by more."""
    measure(StepCounterHook(10), 30)
    assert warnings(lines) == []


def test_a_hook_that_is_used_again_does_not_know_the_last_step(open_session, lines):
    """In TensorFlow it warns where the next session begins at the same one."""
    hook = StepCounterHook(2)
    for _ in range(2):
        with open_session(hook) as session:
            session.run("train")
    assert warnings(lines) == []


def test_a_hook_that_is_used_again_starts_its_clock_anew(clock, listener):
    """In TensorFlow the first rate of a session that goes on spans the pause before it."""
    hook = StepCounterHook(2)
    for _ in range(2):
        run_steps(hook, listener, steps=2, directory="saved")
        clock[0] += 1000
    assert listener.heard == []


def test_a_restored_session_measures_its_own_speed(listener):
    """From its first run on: at 6 the clock starts, and 11 is measured."""
    run_steps(StepCounterHook(5), steps=5, directory="saved")
    run_steps(StepCounterHook(5), listener, steps=7, directory="saved")
    assert listener.steps == [11]


def test_the_end_of_input_measures_nothing(listener):
    """A run that meets the end of input does not count as a step."""
    hooks = [StepCounterHook(2), listener]
    run_steps(*hooks, errors={3: OutOfRangeError()}, reraise=False)
    assert listener.steps == []
