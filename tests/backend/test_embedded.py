"""The embedded session: what a run reads, what it commits, and what it refuses.

The suite for backends tests what every backend does, see tests/testing/test_backends.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import Graph, GraphError, RunMetadata, RunOptions
from hookbus.backend import Execution
from hookbus.backend.embedded import EmbeddedSession
from hookbus.errors import (
    FetchTypeError,
    SessionClosedError,
    UnknownNodeError,
    WriteConflictError,
)


@pytest.fixture
def graph() -> Graph:
    """W = [1, 2, 3], n = 0; train adds 1 to w; count adds 1 to n; seen reads both."""
    made = Graph()
    made.variable("w", np.array([1.0, 2.0, 3.0]))
    made.variable("n", 0)

    @made.op
    def seen(w, n, global_step):
        return float(w.sum()), n, global_step

    @made.train_op(updates="w")
    def train(w):
        return w + 1

    @made.train_op(updates="n")
    def count(n):
        return n + 1

    @made.op
    def boom(w):
        raise OSError("disk")

    return made


def state(session: EmbeddedSession) -> dict[str, Any]:
    values = {name: np.asarray(v).tolist() for name, v in session.variables().items()}
    return {**values, "global_step": session.global_step}


START = {"w": [1.0, 2.0, 3.0], "n": 0, "global_step": 0}


@pytest.mark.parametrize(
    "order",
    list(itertools.permutations(["w", "train", "seen", "global_step", "count"]))[::7],
)
def test_reads_see_the_values_from_before(graph: Graph, order: tuple[str, ...]) -> None:
    """Whatever the order of the fetches, all reads have the values from before the run."""
    session = EmbeddedSession(graph)
    for step in (0, 2):
        result = session.run({name: name for name in order})
        assert result["w"].tolist() == [1 + step / 2, 2 + step / 2, 3 + step / 2]
        assert result["seen"] == (6 + 3 * step / 2, step // 2, step)
        assert result["global_step"] == step
        assert result["train"] is result["count"] is None
        assert session.global_step == step + 2


@pytest.mark.parametrize("order", list(itertools.permutations(["train", "count", "boom"])))
def test_if_an_op_raises_nothing_changes(graph: Graph, order: tuple[str, ...]) -> None:
    """All updates of a run are committed, or none; the global step counts as one."""
    session = EmbeddedSession(graph)
    with pytest.raises(OSError, match="disk") as info:
        session.run(list(order))
    assert state(session) == START
    assert info.value.__notes__ == ["hookbus: raised in op 'boom'"]


def after_start(session: EmbeddedSession) -> None: ...


def after_train(session: EmbeddedSession) -> None:
    session.run("train")


def after_write(session: EmbeddedSession) -> None:
    session.write({"w": np.array([4.0, 5.0, 6.0])})


STAGES = [after_start, after_train, after_write]


@pytest.mark.parametrize("stage", STAGES)
def test_committed_arrays_are_read_only(graph: Graph, stage: Callable[..., None]) -> None:
    """A fetched variable cannot be changed in place, wherever its value came from."""
    session = EmbeddedSession(graph)
    stage(session)
    for array in (session.run("w"), session.variables()["w"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9


def add_in_place(w):
    w += 1
    return w


def set_an_item(w):
    w[0] = 9
    return w


def sort_in_place(w):
    w.sort()
    return w


def fill(w):
    w.fill(0)
    return w


def write_out(w):
    return np.add(w, 1, out=w)


def through_a_view(w):
    w[1:][...] = 0
    return w


def shuffle(w):
    np.random.default_rng(0).shuffle(w)
    return w


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "change",
    [add_in_place, set_an_item, sort_in_place, fill, write_out, through_a_view, shuffle],
)
def test_a_change_in_place_names_the_op_and_changes_nothing(
    graph: Graph, change: Callable[..., Any], stage: Callable[..., None]
) -> None:
    """An op that changes what it reads raises; its name and the remedy stand in a note."""
    graph.train_op(change, updates="w")
    session = EmbeddedSession(graph)
    stage(session)
    before = state(session)
    with pytest.raises(ValueError, match="read-only") as info:
        session.run(["count", change.__name__])
    notes = "\n".join(info.value.__notes__)
    assert f"op '{change.__name__}' changes an input in place" in notes
    assert "compute a new array and return it" in notes
    assert state(session) == before


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_increments_of_a_run_add_up(increments: list[int]) -> None:
    """A run of several train ops advances the global step by all their increments."""
    graph = Graph()
    for place, increment in enumerate(increments):
        graph.train_op(lambda: None, name=f"t{place}", increment=increment)
    session = EmbeddedSession(graph)
    names = [f"t{place}" for place in range(len(increments))]
    assert session.run([names, names]) == [[None] * len(names)] * 2
    assert session.global_step == sum(increments)


def test_an_op_may_ask_for_the_array_namespace(graph: Graph) -> None:
    """The parameter xp gets the backend's array namespace: NumPy."""
    graph.op(lambda xp, w: xp is np and xp.sum(w), name="total")
    graph.op(lambda lib, xp: lib is xp, name="same", reads={"lib": "xp"})
    assert EmbeddedSession(graph).run(["total", "same"]) == [6.0, True]


def test_a_default_parameter_keeps_its_default(graph: Graph) -> None:
    """A default counts where no node has the parameter's name."""
    graph.op(lambda w, n=5, rate=0.5: (n, rate), name="z")
    assert EmbeddedSession(graph).run("z") == (0, 0.5)


def test_results_have_the_structure_of_the_fetches(graph: Graph) -> None:
    """Run gives back any nesting of nodes and names."""
    session = EmbeddedSession(graph)
    fetches = {"a": ["n", ("seen", graph.nodes["n"])], "b": [], "c": {}}
    assert session.run(fetches) == {"a": [0, ((6.0, 0, 0), 0)], "b": [], "c": {}}


def test_an_unknown_fetch_lists_close_matches(graph: Graph) -> None:
    """A wrong name is an error that suggests the right one, wherever it is nested."""
    session = EmbeddedSession(graph)
    with pytest.raises(UnknownNodeError, match=r"no node 'trian'.*did you mean 'train'"):
        session.run(["w", {"t": "trian"}])
    with pytest.raises(UnknownNodeError, match=r"no node 'ww'.*did you mean 'w'"):
        session.run("w", {"ww": 1})
    with pytest.raises(FetchTypeError):
        session.run(None)


def test_a_changed_shape_names_op_and_variable(graph: Graph) -> None:
    """An update of another shape is refused; the message has both shapes."""
    graph.train_op(lambda w: w[:2], name="shrink", updates="w")
    session = EmbeddedSession(graph)
    with pytest.raises(GraphError, match=r"'w' has the shape \(3,\).*shape \(2,\)") as info:
        session.run(["count", "shrink"])
    assert "'shrink'" in "".join(info.value.__notes__)
    assert state(session) == START


def test_a_wrong_number_of_updates_names_the_op(graph: Graph) -> None:
    """An op that returns more or fewer updates than it promised changes nothing."""
    graph.train_op(lambda w: (w, 1, 2), name="many", updates=("w", "n"))
    session = EmbeddedSession(graph)
    with pytest.raises(GraphError, match=r"op 'many' promised updates \['w', 'n'\]"):
        session.run("many")
    assert state(session) == START


@pytest.mark.parametrize("value", [None, {"n": 1}, "one"], ids=repr)
def test_a_variable_takes_numbers_and_arrays_only(graph: Graph, value: Any) -> None:
    """A train op that forgets its return, or wraps the value, is refused by name."""
    graph.train_op(lambda n: value, name="forgetful", updates="n")
    session = EmbeddedSession(graph)
    with pytest.raises(GraphError) as info:
        session.run("forgetful")
    notes = "".join(getattr(info.value, "__notes__", []))
    assert "'forgetful'" in f"{info.value} {notes}"
    assert state(session) == START


def execute(session: EmbeddedSession, fetches: list[str], **writes: Any) -> list[Any]:
    """Run with writes that the hook 'decay' asked for."""
    asked = {name: ("decay", value) for name, value in writes.items()}
    program = session.compile(fetches, frozenset())
    return session.execute(Execution(program, writes=asked))


def test_a_hook_and_an_op_that_write_one_variable_conflict(graph: Graph) -> None:
    """Two parties that write one variable in one run are named, and nothing changes."""
    session = EmbeddedSession(graph)
    with pytest.raises(
        WriteConflictError, match=r"'w' is written by two.*'decay'.*'train'"
    ):
        execute(session, ["train"], w=np.zeros(3))
    assert state(session) == START


def test_a_write_of_another_shape_names_who_asked(graph: Graph) -> None:
    """A hook's value that does not fit is refused with the hook's name."""
    session = EmbeddedSession(graph)
    with pytest.raises(GraphError, match=r"'w' has the shape \(3,\)") as info:
        execute(session, ["count"], w=np.zeros(2))
    assert state(session) == START
    notes = "".join(getattr(info.value, "__notes__", []))
    assert "'decay'" in f"{info.value} {notes}"


def test_write_takes_all_values_or_none(graph: Graph) -> None:
    """If one value does not fit, none is written."""
    session = EmbeddedSession(graph)
    for wrong in ({"w": np.zeros(2)}, {"seen": 1}, {"global_step": 4}, {"nothing": 1}):
        with pytest.raises(GraphError):
            session.write({"n": 5, **wrong})
    assert state(session) == START


def test_a_closed_session_runs_no_more_and_can_be_read(graph: Graph) -> None:
    """After close a run is an error; the values are still there."""
    session = EmbeddedSession(graph)
    session.run("train")
    session.close()
    with pytest.raises(SessionClosedError):
        session.run("train")
    assert state(session)["w"] == [2.0, 3.0, 4.0]


def test_an_execution_needs_only_its_program(graph: Graph) -> None:
    """By default nothing is fed, written or recorded; two of them share no record."""
    session = EmbeddedSession(graph)
    program = session.compile(["count", "n"], frozenset())
    one, other = Execution(program), Execution(program)
    assert [session.execute(each)[1] for each in (one, other, one)] == [0, 1, 2]
    assert one.metadata is not other.metadata
    with pytest.raises(TypeError):
        one.feeds["n"] = 5  # type: ignore[index]


def test_a_traced_run_records_its_ops(graph: Graph) -> None:
    """trace_level=1 records each op of the run once, in order; 0 records nothing."""
    session, options = EmbeddedSession(graph), RunOptions(trace_level=1)
    program = session.compile(["seen", "train"], frozenset())
    traced, plain = RunMetadata(), RunMetadata()
    session.execute(Execution(program, options=options, metadata=traced))
    session.execute(Execution(program, metadata=plain))

    assert [op.name for op in traced.ops] == ["seen", "train"]
    first, second = traced.ops
    assert first.seconds >= 0
    assert second.start >= first.start + first.seconds
    assert (plain.ops, plain.start, plain.seconds) == ((), 0.0, 0.0)
