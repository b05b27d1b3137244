"""Tests what hooks see of one run, and what they may do through it: the run context."""

from __future__ import annotations

from typing import Any

import pytest

import hookbus
from hookbus import (
    Graph,
    MonitoredSession,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
)
from tests.support.asking import Asker

OFF = hookbus.Config(autoload=False)


class OtherHook(Asker):
    """A second one, called ``other`` in messages."""


@pytest.fixture
def graph() -> Graph:
    """Return a graph with x, n, double = 2 * x, and a train op that counts in n."""
    made = Graph()
    made.placeholder("x")
    made.placeholder("y")
    made.variable("n", 0)
    made.op(lambda x: 2 * x, name="double")
    made.train_op(lambda n: n + 1, name="train", updates="n")
    return made


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


def run(graph: Graph, *hooks: Any, fetches: Any = "train", **more: Any) -> Any:
    """Do one run in a session of its own and return its values."""
    with session_of(graph, *hooks) as session:
        return session.run(fetches, **more)


@pytest.mark.parametrize("attribute", ["original_args", "stop_requested"])
def test_a_context_is_read_only(graph, attribute):
    """The requests and the stop flag can be read, and set by nobody."""
    hook = Asker()
    run(graph, hook)
    with pytest.raises(AttributeError):
        setattr(hook.contexts[0], attribute, None)


def test_original_args_are_the_callers_own(graph):
    """Its fetches and its feeds, the objects themselves, without what hooks add."""
    hook, feeds, fetches = Asker(SessionRunArgs("double", {"y": 1})), {"x": 3}, ["n"]
    run(graph, hook, fetches=fetches, feed_dict=feeds)
    for context in hook.contexts:
        assert context.original_args.fetches is fetches
        assert context.original_args.feed_dict is feeds


def test_original_args_have_no_options(graph):
    """The options of the caller are in the run values alone."""
    hook = Asker()
    run(graph, hook, options=RunOptions(2))
    assert hook.contexts[0].original_args.options is None
    assert hook.values[0].options == RunOptions(2)


class Runs(Asker):
    """Runs the backend session in both phases."""

    def before_run(self, run_context):
        self.before = run_context.session.run("double", {"x": 5})
        return super().before_run(run_context)

    def after_run(self, run_context, run_values):
        self.after = run_context.session.run("n")
        super().after_run(run_context, run_values)


def test_runs_through_the_contexts_session_reach_no_hook(graph):
    """A hook may run parts of the graph itself, before the run and after it."""
    hook, other = Runs(), OtherHook()
    run(graph, hook, other)
    assert (hook.before, hook.after) == (10, 1)
    assert len(other.values) == 1


def test_one_context_serves_all_hooks_in_both_phases(graph):
    """The same object is handed to everybody, and the next run has another."""
    hooks = Asker(), OtherHook()
    with session_of(graph, *hooks) as session:
        session.run("train")
        session.run("train")
    first, second = [[c for h in hooks for c in h.contexts[i : i + 2]] for i in (0, 2)]
    assert {id(context) for context in first} == {id(first[0])}
    assert {id(context) for context in second} == {id(second[0])}
    assert first[0] is not second[0]


@pytest.mark.parametrize("phase", ["before_run", "after_run"])
def test_a_hook_cannot_run_the_session_that_it_is_called_by(graph, phase):
    """It would be called by its own run again; the error names it and what to do."""

    class RecursiveHook(SessionRunHook):
        session: Any = None

    hook = RecursiveHook()
    setattr(RecursiveHook, phase, lambda self: self.session.run("n"))
    hook.session = session_of(graph, hook)
    with (
        pytest.raises(hookbus.UsageError, match=r"'recursive'.*run_context\.session\.run"),
        hook.session,
    ):
        hook.session.run("train")
