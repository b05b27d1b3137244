"""TensorFlow's rules for FeedFnHook, kept by feed-fn."""

from __future__ import annotations

from itertools import count

import pytest
from hookbus_feed_fn import FeedFnHook

from hookbus import Graph, SessionRunArgs
from hookbus.errors import FeedConflictError
from hookbus.testing import run_steps


@pytest.fixture
def graph() -> Graph:
    """A graph that needs x fed."""
    graph = Graph()
    graph.placeholder("x")
    graph.op(lambda x: x * 2, name="y")
    return graph


def test_what_the_function_gives_reaches_the_run(graph, open_session):
    """A placeholder is fed by it, in each run anew."""
    numbers = count(1)
    with open_session(FeedFnHook(lambda: {"x": next(numbers)}), graph=graph) as session:
        assert [session.run("y") for _ in range(3)] == [2, 4, 6]


@pytest.mark.parametrize("nothing", [None, {}])
def test_the_function_may_give_nothing(nothing, graph, open_session):
    """The caller's own feeds count then."""
    with open_session(FeedFnHook(lambda: nothing), graph=graph) as session:
        assert session.run("y", {"x": 3}) == 6


def test_it_fetches_nothing():
    """A run costs what it cost before; the hook is called before it and not after it."""
    steps = run_steps(FeedFnHook(lambda: {"w": 1.0}), steps=2)
    asked = [call.result for call in steps.calls_of("before_run", "feed-fn")]
    assert [args.fetches for args in asked] == [None, None]
    assert steps.calls_of("end", "feed-fn") == []


def test_the_caller_may_not_feed_the_same(graph, open_session):
    """Two feeds of one node are an error, though the values are equal."""
    session = open_session(FeedFnHook(lambda: {"x": 1}), graph=graph)
    with session, pytest.raises(FeedConflictError, match="Same tensor is fed"):
        session.run("y", {"x": 1})


def test_another_hook_may_not_feed_the_same(graph, open_session):
    """Nor may another hook; the error names both."""

    class Other:
        def before_run(self):
            return SessionRunArgs(feed_dict={"x": 1})

    session = open_session(FeedFnHook(lambda: {"x": 1}), Other(), graph=graph)
    with session, pytest.raises(FeedConflictError, match="by feed-fn and other"):
        session.run("y")


def test_the_function_can_be_read_back():
    """feed_fn is a public attribute."""

    def feed():
        return {}

    assert FeedFnHook(feed).feed_fn is feed
