"""Ranks whose hooks change their models in different ways end with an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hookbus import Config, Graph, MonitoredSession, SessionRunHook
from hookbus.errors import PeersDisagreeError
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)


@pytest.fixture(autouse=True)
def _library(tmp_path) -> Iterator[None]:
    """The library whose ranks are threads."""
    with thread_library(tmp_path / "library"):
        yield


class DoesHook(SessionRunHook):
    """Does something in each step, before or after the run."""

    def __init__(self, does: Callable[[Any], None], event: str) -> None:
        self.does, self.event = does, event

    def before_run(self, run_context: Any) -> None:
        if self.event == "before_run":
            self.does(run_context)

    def after_run(self, run_context: Any) -> None:
        if self.event == "after_run":
            self.does(run_context)


def in_a_graph(does: Callable[[Any], None], event: str) -> int:
    """Train; return the number of steps."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.variable("rate", 0.1)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    hooks = [DoesHook(does, event)]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(4):
            session.run("train")
    return session.global_step


def outcomes(train: Callable[[int], Any]) -> list[Any]:
    """Return the result of each of two ranks, or its error."""

    def run(rank: int) -> Any:
        try:
            return train(rank)
        except PeersDisagreeError as error:
            return str(error)

    return ranked(2, run)


ASSIGNED = {
    "numbers": lambda rank: {"rate": 0.1 * (1 + rank)},
    "arrays": lambda rank: {"w": np.full(3, float(rank))},
    "variables": lambda rank: {("w" if rank else "rate"): 0.0 if not rank else np.zeros(3)},
}


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize(
    ("what", "event"),  # the run itself updates the arrays
    [("numbers", "before_run"), *((what, "after_run") for what in ASSIGNED)],
)
def test_other_values_on_each_rank_are_an_error(what, event, now):
    """Though each rank assigns as often."""

    def train(rank: int) -> int:
        values = ASSIGNED[what](rank)
        return in_a_graph(lambda context: context.assign(values, now=now), event)

    for told in outcomes(train):
        assert told.startswith(
            "the ranks differ in the values that hooks have assigned until step "
        )
        assert "With --log-level debug each rank logs which variables" in told


def test_the_same_values_on_all_ranks_are_none():
    """Also arrays that are equal, and not the same."""

    def train(rank: int) -> int:
        same = {"rate": 0.5, "w": np.ones(3)}
        return in_a_graph(lambda context: context.assign(same), "after_run")

    assert outcomes(train) == [4, 4]


def test_updates_skipped_in_other_steps_are_an_error():
    """Each rank skips as many."""

    def train(rank: int) -> int:
        def skip(context: Any) -> None:
            if context.global_step == 1 + rank:
                context.skip_update()

        return in_a_graph(skip, "before_run")

    for told in outcomes(train):
        assert told.startswith("the ranks differ in ")
        assert "have skipped updates until step" in told


def test_what_each_rank_has_for_itself_may_differ():
    """An array that the loop tracks is saved by each rank."""

    def train(rank: int) -> int:
        hook = DoesHook(
            lambda context: context.assign({"seen": np.full(2, rank)}), "after_run"
        )
        with MonitoredSession(hooks=[hook], config=QUIET) as session:
            session.track(seen=np.zeros(2))
            for _ in range(4):
                with session.step():
                    pass
        return session.global_step

    assert outcomes(train) == [4, 4]
