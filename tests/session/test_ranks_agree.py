"""Tests what a hook of one rank asks for, and what all ranks do and are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookbus import Config, Graph, MonitoredSession, SessionRunHook
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)


@pytest.fixture(autouse=True)
def _library(tmp_path) -> Iterator[None]:
    """The library whose ranks are threads."""
    with thread_library(tmp_path / "library"):
        yield


def in_a_graph(*hooks: Any, steps: int = 4) -> MonitoredSession:
    """Train on a graph; return the session."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(steps):
            if not session.should_stop():
                session.run("train")
    return session


def in_a_loop(*hooks: Any, steps: int = 4) -> MonitoredSession:
    """Train in a custom loop; return the session."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in session.iterate(range(steps)):
            with session.step():
                pass
    return session


LOOPS = {"graph": in_a_graph, "custom loop": in_a_loop}


@pytest.fixture(params=LOOPS)
def train(request) -> Callable[..., MonitoredSession]:
    """Return a function that trains."""
    return LOOPS[request.param]


class AsksHook(SessionRunHook):
    """Does something after the first run."""

    def __init__(self, asks: Callable[[Any], None]) -> None:
        self.asks = asks

    def after_run(self, run_context: Any) -> None:
        if run_context.global_step == 0:
            self.asks(run_context)


def test_all_ranks_end_with_the_label_of_the_one_that_asked(train):
    """As with the reason."""

    def run(rank: int) -> Any:
        def asks(context: Any) -> None:
            if rank == 1:
                context.request_stop("bad", label="pruned")

        outcome = train(AsksHook(asks)).outcome
        return outcome.kind, outcome.who, outcome.why, outcome.label

    assert ranked(2, run) == [("stopped", "asks", "bad (rank 1)", "pruned")] * 2
