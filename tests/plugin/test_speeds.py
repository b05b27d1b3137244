"""Tests what plugins count as training when they measure its speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_progress import ProgressHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_throughput import ThroughputHook
from hookbus_time_limit import TimeLimitHook

from hookbus import Config, Graph, MonitoredSession, SessionRunHook, hookimpl
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

QUIET = Config(autoload=False, header=False)
STEP, LONG = 0.5, 100.0


class SlowSavesHook(SessionRunHook):
    """Makes each save take long."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    @hookimpl
    def before_save(self) -> None:
        self.clock[0] += LONG


class HeardHook(SessionRunHook):
    """Keeps what is measured."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    @hookimpl
    def measured(self, values: Mapping[str, float]) -> None:
        self.values |= values


def graph_of(clock: list[float]) -> Graph:
    """Return a graph whose steps take their time."""
    graph = Graph()
    graph.variable("w", 0.0)

    def turn(w: float) -> float:
        clock[0] += STEP
        return w + 1

    graph.train_op(turn, name="train", updates="w")
    return graph


def evaluates_in_a_block(clock: list[float], hooks: list[Any]) -> None:
    """Evaluate after each other step of a loop, in a block."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for number in range(9):
            with session.step():
                clock[0] += STEP
            if number % 2:
                with session.evaluation() as evaluation:
                    clock[0] += LONG
                    evaluation.report(loss=1.0)


def evaluates_in_steps_of_a_kind(clock: list[float], hooks: list[Any]) -> None:
    """Evaluate after each other step of a loop, in a step of another kind."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for number in range(9):
            with session.step():
                clock[0] += STEP
            if number % 2:
                with session.step(kind="eval"):
                    clock[0] += LONG


def evaluates_in_runs_of_a_kind(clock: list[float], hooks: list[Any]) -> None:
    """Evaluate after each other run of a graph, in a run of another kind."""
    graph = graph_of(clock)

    @graph.op
    def score(w: float) -> float:
        clock[0] += LONG
        return w

    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for number in range(9):
            session.run("train")
            if number % 2:
                session.run("score", kind="eval")


def evaluates_in_step_functions(clock: list[float], hooks: list[Any]) -> None:
    """Evaluate after each other run of a graph, in a function of the program."""
    graph = graph_of(clock)

    @graph.op
    def score(w: float) -> float:
        clock[0] += LONG
        return w

    def train_and_score(step_context: Any) -> None:
        step_context.run_with_hooks("train")
        step_context.run_with_hooks("score", kind="eval")

    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(9):
            session.run_step_fn(train_and_score)


def evaluates_in_a_hook(clock: list[float], hooks: list[Any]) -> None:
    """Let a plugin evaluate after each other run."""

    def score(session: Any) -> dict[str, float]:
        clock[0] += LONG
        return {"w": 0.0}

    evaluator = InMemoryEvaluatorHook(score, every_n_iter=2)
    with MonitoredSession(
        graph_of(clock), hooks=[*hooks, evaluator], config=QUIET
    ) as session:
        for _ in range(9):
            session.run("train")


def saves(clock: list[float], hooks: list[Any]) -> None:
    """Save after each other run."""
    hooks = [*hooks, CheckpointSaverHook("runs", save_steps=2), SlowSavesHook(clock)]
    with MonitoredSession(graph_of(clock), hooks=hooks, config=QUIET) as session:
        for _ in range(9):
            session.run("train")


TRAININGS = [
    evaluates_in_a_block,
    evaluates_in_steps_of_a_kind,
    evaluates_in_runs_of_a_kind,
    evaluates_in_step_functions,
    evaluates_in_a_hook,
    saves,
]


@pytest.mark.parametrize("train", TRAININGS)
def test_a_speed_is_that_of_the_training_alone(
    train: Callable[..., None], clock: list[float], lines: list[Any]
) -> None:
    """Evaluations, saves and runs of other kinds do not count as time of training."""
    heard = HeardHook()
    train(
        clock,
        [
            StepCounterHook(every_n_steps=3),
            ThroughputHook(every_n_steps=3),
            ProgressHook(every_secs=0),
            heard,
        ],
    )
    assert heard.values["global_step/sec"] == pytest.approx(1 / STEP)
    assert heard.values["throughput/steps_per_sec"] == pytest.approx(1 / STEP)
    assert heard.values["throughput/input_wait"] == pytest.approx(0.0)
    shown = [line["steps_per_sec"] for line in lines if line["event"] == "progress"]
    assert shown[-1] == pytest.approx(1 / STEP)


def test_time_left_counts_what_comes_between_the_steps(
    clock: list[float], lines: list[Any]
) -> None:
    """Evaluations take as much of the time to come as of the time that has passed."""
    hooks = [ProgressHook(every_secs=0), StopAtStepHook(last_step=16)]
    evaluates_in_a_block(clock, hooks)
    left = [line["secs_left"] for line in lines if line["event"] == "progress"]
    assert left[8 - 1] == round(8 * STEP + 3 * LONG)


def test_a_time_limit_keeps_free_what_a_step_takes(clock: list[float]) -> None:
    """A long evaluation is not a part of its steps, so the session may go on."""
    hooks: list[Any] = [TimeLimitHook(1.4 * LONG)]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        with session.step():
            clock[0] += STEP
        with session.evaluation() as evaluation:
            clock[0] += LONG
            evaluation.report(loss=1.0)
        with session.step():
            clock[0] += STEP
        assert not session.should_stop()
