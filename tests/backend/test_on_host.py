"""Tests that fetched values arrive on the host, from every library in one transfer."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from hookbus import (
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.backend import create_session
from tests.support.libraries import install_library

OFF = Config(autoload=False, header=False)


@pytest.fixture
def fakelib(tmp_path, monkeypatch):
    """A library whose values live elsewhere, known to a plugin."""
    return install_library(tmp_path / "site", monkeypatch)


class Fetch(SessionRunHook):
    """Asks for the same in each run, and keeps what it got."""

    def __init__(self, fetches: Any) -> None:
        self.fetches, self.results = fetches, []

    def before_run(self):
        return SessionRunArgs(self.fetches)

    def after_run(self, run_values):
        self.results.append(run_values.results)


def number(fakelib, value):
    """Return a number on the device."""
    return fakelib.Tensor("float64", (), np.float64(value).tobytes())


def graph_of(fakelib) -> Graph:
    """Return a graph whose ops give values of the library."""
    graph = Graph()
    graph.variable("n", 0)
    graph.op(lambda global_step: number(fakelib, global_step), name="loss")
    graph.op(lambda loss: {"a": loss, "b": [(loss, "plain")], "n": 3}, name="metrics")
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


def test_values_that_a_foreign_loop_gives_arrive_on_the_host(fakelib) -> None:
    """They are moved together, wherever the loop has computed them."""
    hook = Fetch(["loss", "n"])
    graph = graph_of(fakelib)
    with DrivenSession(graph, [hook], config=OFF) as driven:
        driven.begin()
        driven.created(EmbeddedSession(graph))
        assert driven.before_step().fetches == ("loss", "n")
        driven.after_step({"loss": number(fakelib, 7.0), "n": number(fakelib, 1.0)})
    assert hook.results == [[7.0, 1.0]]
    assert fakelib.moved == [2]


def test_hooks_get_values_on_the_host_and_the_caller_gets_them_where_they_are(fakelib):
    """Both may ask for the same node; only the hook's value is moved."""
    hook = Fetch("loss")
    with session_of(graph_of(fakelib), hook) as session:
        loss, _ = session.run(["loss", "train"])
    assert isinstance(loss, fakelib.Tensor)
    (seen,) = hook.results
    assert (type(seen), seen.shape, float(seen)) == (np.ndarray, (), 0.0)


def test_the_values_for_all_hooks_of_a_run_are_moved_together_each_once(fakelib):
    hooks = Fetch("loss"), Fetch(["loss", "n"]), Fetch({"x": "loss"})
    with session_of(graph_of(fakelib), *hooks) as session:
        session.run("train")
        session.run("train")
    assert fakelib.moved == [1, 1]
    first, second, third = (hook.results[1] for hook in hooks)
    assert (float(first), float(second[0]), float(third["x"])) == (1.0, 1.0, 1.0)
    assert second[1] == 1


@pytest.mark.parametrize("names", [["loss"], ["n", "loss"], [*"abcdefgh", "loss"]])
def test_a_value_is_moved_when_it_stops_being_a_number_after_many_steps(names, fakelib):
    """Repeated steps test for numbers, alone and beside others, few or many."""
    graph, hook = Graph(), Fetch(names)
    graph.variable("n", 0)
    for name in "abcdefgh":
        graph.op(lambda n: 2 * n, name=name)

    @graph.op
    def loss(n):
        return number(fakelib, n) if n % 10 == 9 else float(n)

    graph.train_op(lambda n: n + 1, name="train", updates="n")
    with session_of(graph, hook) as session:
        for _ in range(30):
            session.run("train")
    assert fakelib.moved == [1, 1, 1]
    losses = [results[-1] for results in hook.results]
    assert [float(loss) for loss in losses] == [*range(30)]
    moved = [n for n, loss in enumerate(losses) if type(loss) is np.ndarray]
    assert moved == [9, 19, 29]


def test_values_inside_containers_are_moved_and_all_else_stays(fakelib):
    """Dicts, lists and tuples keep their kind and their order."""
    hook = Fetch(["metrics", "loss"])
    with session_of(graph_of(fakelib), hook) as session:
        session.run("train")
    ((metrics, loss),) = hook.results
    assert fakelib.moved == [3]
    assert [*metrics] == ["a", "b", "n"]
    assert (float(metrics["a"]), metrics["b"], metrics["n"]) == (0, [(loss, "plain")], 3)


def test_a_run_in_which_no_hook_asks_moves_nothing(fakelib):
    """Not for the caller, not for reads beside the hooks, and not for other values."""
    hook = Fetch("n")
    with session_of(graph_of(fakelib), hook) as session:
        session.run(["loss", "metrics", "train"])
        session.run("loss", kind="aux")
    assert fakelib.moved == []
    create_session(graph_of(fakelib)).run("loss")
    assert fakelib.moved == []


def test_a_library_that_a_step_imports_is_known_from_that_step_on(fakelib, monkeypatch):
    """The plan of a run may be older than the import."""
    library = sys.modules["fakelib"]
    monkeypatch.delitem(sys.modules, "fakelib")
    graph, hook = Graph(), Fetch("loss")

    @graph.op
    def loss(global_step):
        sys.modules["fakelib"] = library
        return number(library, global_step)

    graph.train_op(lambda: None, name="train")
    with session_of(graph, hook) as session:
        session.run("train")
        session.run("train")
    assert [type(value) for value in hook.results] == [np.ndarray, np.ndarray]


def test_what_a_custom_loop_reports_is_moved_as_in_a_graph(fakelib):
    """All reported values and those of tracked objects together, once a step."""
    model = fakelib.Scale(number(fakelib, 5))
    hooks = Fetch(["loss", "model.weight"]), Fetch("loss")
    with MonitoredTrainingSession(hooks=hooks, config=OFF) as session:
        session.track(model=model)
        for value in (1, 2):
            with session.step() as step:
                step.report(loss=number(fakelib, value), other=number(fakelib, 0))
    assert fakelib.moved == [2, 2]
    assert [[*map(float, pair)] for pair in hooks[0].results] == [[1, 5], [2, 5]]
    assert [float(loss) for loss in hooks[1].results] == [1, 2]


def test_a_loop_s_step_in_which_no_hook_asks_moves_nothing(fakelib):
    with MonitoredTrainingSession(hooks=[], config=OFF) as session:
        session.track(model=fakelib.Scale(number(fakelib, 5)))
        with session.step() as step:
            step.report(loss=number(fakelib, 1))
        assert isinstance(session.run("loss"), fakelib.Tensor)
        assert isinstance(session.run("model.weight"), fakelib.Tensor)
    assert fakelib.moved == []
