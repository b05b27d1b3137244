"""Tests what hooks write into variables: when it is seen, and who may write what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hookbus
from hookbus import Graph, MonitoredSession, SessionRunHook

OFF = hookbus.Config(autoload=False)


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


class Assigns(SessionRunHook):
    """Assigns once, before or after the run that starts at a step."""

    def __init__(self, values: dict[str, Any], when: str, at: int = 0) -> None:
        self.values, self.when, self.at = values, when, at

    def before_run(self, run_context):
        if self.when == "before" and run_context.global_step == self.at:
            run_context.assign(self.values)

    def after_run(self, run_context):
        if self.when == "after" and run_context.global_step == self.at:
            run_context.assign(self.values)


def two_variables() -> Graph:
    """Return a graph with v, w and a train op that adds v to w."""
    graph = Graph()
    graph.variable("v", 1.0)
    graph.variable("w", 10.0)

    @graph.train_op(updates="w")
    def train(v, w):
        if v < 0:
            raise ArithmeticError("v is negative")
        return w + v

    return graph


def test_an_assignment_before_a_run_is_committed_with_its_updates():
    """The run's own reads do not see it; the next run's do."""
    with session_of(two_variables(), Assigns({"v": 5.0}, "before")) as session:
        assert session.run(["v", "w", "train"])[:2] == [1.0, 10.0]
        assert session.run(["v", "w"]) == [5.0, 11.0]


def test_an_assignment_after_a_run_is_there_before_the_next():
    """What ``after_run`` assigns comes on top of the run's own updates."""
    with session_of(two_variables(), Assigns({"w": 100.0}, "after")) as session:
        assert session.run(["w", "train"])[0] == 10.0
        assert session.run(["w", "train"])[0] == 100.0


def test_an_assignment_before_a_run_that_fails_is_dropped():
    """All that a run changes is committed when it succeeded, else nothing."""
    with session_of(two_variables(), Assigns({"v": 0.0}, "before")) as session:
        with pytest.raises(ArithmeticError):
            session.run("train", {"v": -1.0})
        assert session.run(["v", "w"], kind="aux") == [1.0, 10.0]


@pytest.mark.parametrize("phases", ["before before", "after after", "before after"])
def test_two_hooks_that_assign_one_variable_are_both_named(phases):
    """Two parties that write one variable in one run are an error."""
    first, second = phases.split()
    hooks = type("FirstHook", (Assigns,), {}), type("SecondHook", (Assigns,), {})
    pair = hooks[0]({"v": 5.0}, first), hooks[1]({"v": 5.0}, second)
    with (
        pytest.raises(
            hookbus.errors.WriteConflictError, match=r"'v'.*'first' and 'second'"
        ),
        session_of(two_variables(), *pair) as session,
    ):
        session.run("train")


def test_a_hook_and_an_op_that_write_one_variable_are_both_named():
    """An op of the run is a party too; afterwards, the hook may write what it wrote."""
    with (
        pytest.raises(
            hookbus.errors.WriteConflictError, match=r"'w'.*'assigns' and op 'train'"
        ),
        session_of(two_variables(), Assigns({"w": 0.0}, "before")) as session,
    ):
        session.run("train")


def test_an_assignment_that_does_not_fit_changes_nothing_and_names_its_hook():
    """All assignments after a run are committed together or not at all."""
    hook = Assigns({"v": 7.0, "w": np.zeros(2)}, "after")
    with session_of(two_variables(), hook) as session:
        with pytest.raises(hookbus.GraphError) as caught:
            session.run("train")
        assert session.run("v") == 1.0
    told = " ".join([str(caught.value), *caught.value.__notes__])
    assert "'w'" in told
    assert "'assigns'" in told


@pytest.mark.parametrize("name", ["train", "global_step", "nothing"])
def test_only_variables_can_be_assigned(name):
    """An op, the global step and an unknown name are refused in the hook's own call."""
    with (
        pytest.raises(hookbus.GraphError, match=f"'?{name}'?") as caught,
        session_of(two_variables(), Assigns({name: 1.0}, "after")) as session,
    ):
        session.run("train")
    assert "'assigns'" in "".join(caught.value.__notes__)
