"""Tests what nan-tensor finds inside of structures, of names and of values, and where."""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook

import hookbus
from hookbus import Graph, MonitoredSession

QUIET = hookbus.Config(autoload=False)
NAN = float("nan")


class Pair(NamedTuple):
    one: Any
    other: Any


@attrs.frozen
class Losses:
    total: Any
    parts: Any = ()


@dataclasses.dataclass
class Plain:
    total: Any
    name: str = "plain"


def graph_of(**values) -> Graph:
    """Return a graph with an op for each value, and the op ``needed``."""
    graph = Graph()
    for name, value in values.items():
        graph.op(lambda value=value: value, name=name)
    graph.op(lambda: 1.0, name="needed")
    return graph


def run(graph: Graph, hook: NanTensorHook) -> MonitoredSession:
    """Run once, which fetches nothing that is watched."""
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("needed")
    return session


def found_in(graph: Graph, hook: NanTensorHook) -> str:
    """Return the name or path that the error of a run tells."""
    with pytest.raises(NanLossDuringTrainingError) as caught:
        run(graph, hook)
    match = re.search(r"^nan-tensor: (.*) is NaN at step 0\.", str(caught.value))
    assert match is not None
    return match[1]


@pytest.mark.parametrize("bad", ["a", "b", "c"])
@pytest.mark.parametrize(
    "watched",
    [
        ["a", ["b", ("c",)]],
        {"x": "a", "y": {"z": ["b", "c"]}},
        Pair("a", Losses("b", ["c"])),
        ("c", {"again": "c", "b": "b"}, "a"),
    ],
    ids=repr,
)
def test_names_may_stand_in_any_nesting(watched, bad):
    """As in a fetch; the error has the node's name, wherever it stands."""
    values = {**dict.fromkeys("abc", 0.5), bad: NAN}
    assert found_in(graph_of(**values), NanTensorHook(watched)) == bad


def test_nodes_may_stand_in_a_nesting():
    """Beside names."""
    graph = graph_of(a=0.5, b=NAN)
    assert found_in(graph, NanTensorHook({"x": ["a", graph.nodes["b"]]})) == "b"


@pytest.mark.parametrize(
    ("part", "error", "told"),
    [
        ("hafl", hookbus.errors.UnknownNodeError, "no node 'hafl'"),
        (3, hookbus.errors.FetchTypeError, "int is not a fetch"),
        (Graph().placeholder("x"), hookbus.GraphError, "belongs to another graph"),
    ],
)
def test_each_part_of_a_nesting_is_looked_at_before_the_first_step(part, error, told):
    """The error names the setting."""
    hook = NanTensorHook({"x": ["a", (part,)]})
    with pytest.raises(error, match=told) as caught:
        MonitoredSession(graph_of(a=0.5), hooks=[hook], config=QUIET)
    assert "the setting loss_tensor of nan-tensor" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"total": NAN}, "total"),
        ({"total": 1.0, "parts": [0.5, {"l2": NAN}]}, "parts/1/l2"),
        ([0.5, (1.0, NAN)], "1/1"),
        (Pair(1.0, NAN), "1"),
        (Losses(NAN), "total"),
        (Losses(1.0, [Losses(2.0, {"a": NAN})]), "parts/0/parts/a"),
        (Plain(NAN), "total"),
        (deque([1.0, NAN]), "1"),
        ({NAN}, "0"),
        (frozenset({NAN}), "0"),
        ({3: NAN}, "3"),
        ([np.ones(3), np.array([1.0, NAN])], "1"),
        ({"n": 1, "why": "words", "none": None, "x": np.float32(NAN)}, "x"),
        (({"deep": [[[(NAN,)]]]},), "0/deep/0/0/0/0"),
    ],
    ids=repr,
)
def test_the_message_names_the_path_to_a_part(value, path):
    """From the node's name on, by key, place or field."""
    assert found_in(graph_of(loss=value), NanTensorHook()) == f"loss/{path}"


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        (),
        {"a": 1.0, "b": [2, 3.0, "words", None, True]},
        [float("inf"), {"a": -float("inf")}],
        Losses(1.0, [np.ones(3), Losses(2)]),
        Plain(1.0),
        Plain,
        [np.array(["a"]), np.array([1, 2]), b"bytes", range(3)],
        {"loss": object()},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_structure_without_nan_passes(value):
    """Whatever else is in it."""
    assert run(graph_of(loss=value), NanTensorHook()).outcome.kind == "completed"


def test_the_first_of_several_is_told_and_the_session_stops_once(capsys):
    """Where it only stops, there is one warning of one run."""
    value = {"a": 1.0, "b": [NAN, NAN], "c": NAN}
    hook = NanTensorHook(["loss", "other"], fail_on_nan_loss=False)
    session = run(graph_of(loss=value, other=NAN), hook)
    assert session.outcome.why == "loss/b/0 is NaN at step 0"
    assert capsys.readouterr().err.count("NaN found") == 1


@pytest.mark.parametrize("name", ["loss", "accuracy", "grad"])
def test_declared_scalars_are_watched_when_nothing_is_named(name):
    """With loss and accuracy; the error has the name of the summary."""
    values = {"loss": 1.0, "accuracy": 0.5, "norm": 1.0, name.replace("grad", "norm"): NAN}
    graph = graph_of(**values)
    graph.summary.scalar("grad", "norm")
    assert found_in(graph, NanTensorHook()) == name


@pytest.mark.parametrize("kind", ["histogram", "image", "text"])
def test_what_else_is_declared_is_not_watched(kind):
    """An image may well have pixels that are no numbers."""
    graph = graph_of(loss=1.0, pixels=NAN)
    getattr(graph.summary, kind)("x", "pixels")
    assert run(graph, NanTensorHook()).outcome.kind == "completed"


def test_what_is_named_is_watched_instead_of_what_is_declared():
    """And nothing else is computed."""
    graph = graph_of(loss=NAN, norm=NAN, other=1.0)
    graph.summary.scalar("grad", "norm")
    assert run(graph, NanTensorHook("other")).outcome.kind == "completed"


@pytest.mark.parametrize(
    ("show", "path"),
    [
        (lambda step: step.report(loss={"total": [1.0, NAN]}), "loss/total/1"),
        (lambda step: step.report(loss=1.0, accuracy=lambda: NAN), "accuracy"),
        (lambda step: step.summary.scalar("grad", lambda: NAN), "grad"),
    ],
    ids=["reported", "called", "shown"],
)
def test_a_custom_loop_is_watched_in_the_same_way(show, path):
    """Its loss, its accuracy and the scalars that it shows."""
    hook = NanTensorHook()
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        step = session.step().__enter__()
        show(step)
        with pytest.raises(NanLossDuringTrainingError, match=rf": {path} is NaN at step 1"):
            step.__exit__(None, None, None)
