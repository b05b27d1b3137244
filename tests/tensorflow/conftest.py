"""Hooks that note their calls and fail on demand, and a graph that notes its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    Recovery,
    SessionRunHook,
    SingularMonitoredSession,
)
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

Errors = Iterable[BaseException | None]


class Recorder(SessionRunHook):
    """Notes each call as ``NAME.EVENT``, then raises what it was given for that call.

    The events are called begin, create, before, after, end and failed.
    """

    def __init__(self, name: str, calls: list[str], errors: dict[str, Errors]) -> None:
        self.name, self.calls = name, calls
        self.errors: dict[str, Iterator[Any]] = {k: iter(v) for k, v in errors.items()}

    def note(self, event: str) -> None:
        self.calls.append(f"{self.name}.{event}")
        error = next(self.errors.get(event, iter(())), None)
        if error is not None:
            raise error

    def begin(self):
        self.note("begin")

    def after_create_session(self):
        self.note("create")

    def before_run(self):
        self.note("before")

    def after_run(self):
        self.note("after")

    def end(self):
        self.note("end")

    def on_exception(self):
        self.note("failed")


@pytest.fixture
def calls() -> list[str]:
    """The calls of hooks and ops, in order."""
    return []


@pytest.fixture
def hook(calls: list[str]) -> Callable[..., Recorder]:
    """Make a hook: ``hook("b", before=[None, error])`` raises at its second run."""
    return lambda name, **errors: Recorder(name, calls, errors)


@pytest.fixture
def make_graph(calls: list[str]) -> Callable[..., Graph]:
    """Make a graph with one train op, which counts in n, and raises as hooks do."""

    def make(*errors: BaseException | None) -> Graph:
        graph = Graph()
        graph.variable("n", 0)
        left = iter(errors)

        @graph.train_op(updates="n")
        def train(n):
            calls.append("RUN")
            error = next(left, None)
            if error is not None:
                raise error
            return n + 1

        return graph

    return make


@pytest.fixture
def graph(make_graph: Callable[..., Graph]) -> Graph:
    """A graph whose train op never fails."""
    return make_graph()


@pytest.fixture
def open_session(graph: Graph) -> Callable[..., MonitoredSession]:
    """Make a session of some class around hooks, which recovers without waiting."""

    def make(
        *hooks: Any, cls: type[MonitoredSession] = MonitoredSession, **given: Any
    ) -> MonitoredSession:
        arguments: dict[str, Any] = {"hooks": hooks, "config": Config(autoload=False)}
        if "session_creator" not in given:
            arguments["graph"] = graph
        if cls is not SingularMonitoredSession:
            arguments["recovery"] = Recovery(first_wait=0)
        return cls(**{**arguments, **given})

    return make
