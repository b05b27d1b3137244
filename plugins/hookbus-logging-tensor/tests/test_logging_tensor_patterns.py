"""Tests what logging-tensor logs for patterns."""

from __future__ import annotations

import pytest
from hookbus_logging_tensor import LoggingTensorHook

import hookbus
from hookbus import Graph, MonitoredSession
from hookbus.errors import UnfedPlaceholderError

QUIET = hookbus.Config(autoload=False, header=False)


class Collect(hookbus.SessionRunHook):
    """Collects what is emitted as ``logged``."""

    def __init__(self):
        self.values = []

    @hookbus.hookimpl
    def logged(self, values):
        self.values.append(values)


def looped(hooks):
    """Do three steps of a custom loop."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in range(3):
            with session.step() as step:
                step.report(loss=1.0, lr=0.5)


def test_a_pattern_logs_all_that_matches_under_its_own_name():
    """Names beside it stay in their order; what a run does not have is left out."""
    collect, graph = Collect(), Graph()
    graph.placeholder("x")
    for name in ("w", "v"):
        graph.variable(name, 1.0)
    graph.op(lambda w, x: w * x, name="wx")
    hooks = [LoggingTensorHook(["v", "w*"], every_n_iter=1), collect]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        session.run("w")
        session.run("w", {"x": 3.0})

    assert [*collect.values[0].items()] == [("v", 1.0), ("w", 1.0)]
    assert collect.values[1] == {"v": 1.0, "w": 1.0, "wx": 3.0}


def test_a_tag_of_a_pattern_gets_a_dict():
    """In code a mapping from tag to pattern keeps the tag."""
    collect = Collect()
    hooks = [LoggingTensorHook({"all": "l*"}, every_n_iter=1), collect]
    looped(hooks)

    assert collect.values == [{"all": {"loss": 1.0, "lr": 0.5}}] * 3


def test_a_name_beside_a_pattern_must_exist():
    """Only the values of the pattern may be missing."""
    hooks = [LoggingTensorHook(["los", "l*"], every_n_iter=1)]
    with pytest.raises(UnfedPlaceholderError, match="'los' is not reported"):
        looped(hooks)


def test_a_pattern_that_matches_nothing_is_warned_of_once(lines):
    """The training goes on; the warning names the pattern, and where to look."""
    hooks = [LoggingTensorHook("modl.*", every_n_iter=1)]
    looped(hooks)

    [warning] = [line for line in lines if line["event"] == "nothing to log"]
    assert warning["why"] == "no value matches 'modl.*'"


def test_a_pattern_is_logged_at_the_end(lines):
    """Inputs are left out, because reading one would pull from it."""
    graph = Graph()
    graph.input("wide", lambda: range(9))
    graph.variable("w", 1.0)
    hooks = [LoggingTensorHook({"all": "w*"}, at_end=True)]
    with MonitoredSession(graph, hooks=hooks, config=QUIET):
        pass

    [logged] = [line for line in lines if line["event"] == "logged"]
    assert logged["values"] == {"all": {"w": 1.0}}
