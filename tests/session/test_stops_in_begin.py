"""Tests a hook that stops its session in ``begin``, before anything is opened."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from hookbus import (
    Config,
    DrivenSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Outcome,
    PluginError,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
    latest_checkpoint,
)
from hookbus.evaluation import evaluate_once

OFF = Config(autoload=False, header=False)


class BeginHook(SessionRunHook):
    """Answers in ``begin``, and notes its events."""

    def __init__(self, answer: Any = None) -> None:
        self.answer, self.told = answer, []

    def begin(self) -> Any:
        self.told.append("begin")
        return self.answer

    def after_create_session(self) -> None:
        self.told.append("created")

    @hookimpl
    def before_first_run(self) -> None:
        self.told.append("before the first run")

    def before_run(self) -> None:
        self.told.append("run")

    def end(self, outcome: Outcome) -> None:
        self.told.append(outcome.kind)

    def on_exception(self, exception: BaseException) -> None:
        self.told.append(type(exception).__name__)


def counting() -> Graph:
    """Return a graph whose train op counts."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def train(hooks: list[Any], graph: Graph | None) -> MonitoredSession:
    """Train four steps, as far as the session wants them."""
    with MonitoredTrainingSession(
        graph, hooks=hooks, checkpoint_dir="runs", config=OFF
    ) as session:
        while session.global_step < 4 and not session.should_stop():
            if graph is not None:
                session.run("train")
                continue
            with session.step():
                pass
    return session


@pytest.mark.parametrize("graph", [None, "graph"])
def test_a_reason_from_begin_stops_before_the_first_run(graph):
    """All hooks begin and end, and the first reason decides."""
    hooks = [BeginHook(), BeginHook("no data"), BeginHook("no time")]
    session = train(hooks, graph and counting())
    assert session.outcome == Outcome("stopped", "begin-2", "no data", 0)
    assert [hook.told for hook in hooks] == [["begin", "created", "stopped"]] * 3
    outcome = json.loads(Path("runs/outcome.json").read_text())
    assert (outcome["kind"], outcome["who"]) == ("stopped", "begin-2")


def test_the_loop_of_such_a_session_does_nothing():
    """It yields no value, and a step that comes anyway leaves the block."""
    with MonitoredSession(hooks=[BeginHook("no data")], config=OFF) as session:
        assert list(session.iterate(range(3))) == []
        with session.step():
            raise AssertionError("a step was run")
    assert session.outcome.why == "no data"
    with MonitoredSession(counting(), hooks=[BeginHook("no data")], config=OFF) as session:
        assert list(session.loop()) == []


def test_a_finished_training_is_not_asked_whether_it_is_finished():
    """The restored step stays; the checkpoint says that the session was stopped."""
    train([], counting())
    hook = BeginHook("no data")
    session = train([hook], counting())
    assert session.outcome == Outcome("stopped", "begin", "no data", 4)
    assert "before the first run" not in hook.told


def test_a_driven_loop_is_told_when_its_session_has_begun():
    """Before it creates anything."""
    driven = DrivenSession(hooks=[BeginHook("no data")], config=OFF)
    driven.begin()
    assert driven.stop.why == "no data"
    driven.created()
    assert driven.stop.who == "begin"
    assert driven.end() == Outcome("stopped", "begin", "no data", 0)


def test_an_evaluation_stops_as_well():
    """The hook knows the kind of the session."""
    train([], counting())
    path = latest_checkpoint("runs").path
    hook = BeginHook("no data")
    evaluate_once(path, graph=counting(), eval_ops="n", hooks=[hook], config=OFF)
    assert hook.told == ["begin", "created", "stopped"]


@pytest.mark.parametrize("answer", [False, 0, ["no data"]])
def test_any_other_answer_is_an_error_that_names_the_hook(answer):
    """All hooks have begun, so all are told."""
    hooks = [BeginHook(answer), BeginHook()]
    with pytest.raises(PluginError) as caught:
        train(hooks, counting())
    assert str(caught.value) == (
        f"plugin 'begin' (hooks=): begin() returned {answer!r}; return a reason to stop, "
        "as a str, or None"
    )
    note = "hookbus: raised by plugin 'begin' (hooks=) in begin()"
    assert caught.value.__notes__ == [note]
    assert [hook.told for hook in hooks] == [["begin", "PluginError"]] * 2


def test_begin_asks_for_no_fetches():
    """Only before_run does."""
    with pytest.raises(PluginError, match=r"begin\(\) returned SessionRunArgs"):
        train([BeginHook(SessionRunArgs("n"))], counting())


def test_a_wrapper_of_begin_returns_nothing():
    """It neither sees the reasons nor loses them."""

    class WrapsHook(SessionRunHook):
        @hookimpl(wrapper=True)
        def begin(self) -> Generator[None, Any, None]:
            assert (yield) is None

    session = train([WrapsHook(), BeginHook("no data")], counting())
    assert session.outcome.why == "no data"
