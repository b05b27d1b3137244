"""Tests what a traced run records: each op and input, its time, what it read and gave."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import hookbus
from hookbus import (
    EmbeddedSession,
    Graph,
    MonitoredSession,
    OpRecord,
    OutOfRangeError,
    RunMetadata,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
    ValueRecord,
)
from hookbus.backend import Execution

QUIET = hookbus.Config(autoload=False)
TRACED = RunOptions(trace_level=RunOptions.FULL_TRACE)


def traced(
    graph: Graph, fetches: list[str], feeds: dict[str, Any] | None = None
) -> RunMetadata:
    """Run a graph once, traced; return what was recorded."""
    session, metadata, feeds = EmbeddedSession(graph), RunMetadata(), feeds or {}
    program = session.compile(fetches, frozenset(feeds))
    session.execute(Execution(program, feeds, options=TRACED, metadata=metadata))
    return metadata


def values(records: tuple[ValueRecord, ...]) -> dict[str, tuple[Any, ...]]:
    """Return name to type, shape and bytes."""
    return {value.name: (value.type, value.shape, value.nbytes) for value in records}


def the_op(metadata: RunMetadata) -> OpRecord:
    """Return the one op of a run."""
    (op,) = metadata.ops
    return op


def test_an_op_is_recorded_with_what_it_read_and_gave():
    """Arrays tell dtype, shape and bytes; anything else the name of its class."""
    graph = Graph()
    graph.variable("w", np.zeros((2, 3), dtype="float32"))
    graph.placeholder("text")
    graph.op(lambda w, text: w[0].astype("int16"), name="first")
    op = the_op(traced(graph, ["first"], {"text": "hello"}))
    assert (op.name, op.kind, op.updates) == ("first", "op", ())
    assert values(op.inputs) == {"w": ("float32", (2, 3), 24), "text": ("str", (), None)}
    assert values(op.outputs) == {"first": ("int16", (3,), 6)}


def test_a_train_op_is_recorded_with_its_updates():
    """Its updates are told apart from the values that others can read in this run."""
    graph = Graph()
    graph.variable("w", np.zeros(3))

    @graph.train_op(updates="w", outputs=["size"])
    def train(w):
        return w + 1, {"size": 1.5}

    op = the_op(traced(graph, ["train", "size"]))
    assert values(op.updates) == {"w": ("float64", (3,), 24)}
    assert values(op.outputs) == {"size": ("float", (), None)}


def test_an_op_with_several_outputs_is_recorded_with_each():
    """The nodes bear the names under which others read them."""
    graph = Graph()
    graph.op(lambda: {"low": 1, "high": 2}, name="range", outputs=("low", "high"))
    op = the_op(traced(graph, ["range.high"]))
    assert [value.name for value in op.outputs] == ["range.low", "range.high"]


def test_an_output_that_is_fed_is_not_the_ops():
    """Whoever reads the node gets what is fed, so the op is not where it comes from."""
    graph = Graph()
    graph.op(lambda: (1, 2), name="pair", outputs=("a", "b"))
    op = the_op(traced(graph, ["pair.a", "pair.b"], {"pair.b": 9}))
    assert [value.name for value in op.outputs] == ["pair.a"]


def test_a_node_that_is_read_twice_is_an_input_once():
    """Two parameters may read one node; the array namespace is no node."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.op(lambda a, b, xp: a + b, name="sum", reads={"a": "w", "b": "w"})
    assert [value.name for value in the_op(traced(graph, ["sum"])).inputs] == ["w"]


def test_a_value_from_an_input_is_recorded():
    """The time that an input takes is told, as that of an op."""

    def slow():
        time.sleep(0.01)
        yield np.zeros(4)

    graph = Graph()
    graph.input("batch", slow)
    op = the_op(traced(graph, ["batch"]))
    assert (op.name, op.kind, op.inputs) == ("batch", "input", ())
    assert op.seconds >= 0.01
    assert values(op.outputs) == {"batch": ("float64", (4,), 32)}


def test_the_times_are_those_of_the_ops():
    """Each op lies inside the run, behind the one before it, and takes what it takes."""
    graph = Graph()
    graph.op(lambda: time.sleep(0.02), name="slow")
    graph.op(lambda slow: 1, name="quick")
    before = time.perf_counter()
    metadata = traced(graph, ["quick"])
    after = time.perf_counter()
    slow, quick = metadata.ops
    assert slow.seconds >= 0.02
    ends = [op.start + op.seconds for op in metadata.ops]
    end = metadata.start + metadata.seconds
    moments = [
        before,
        metadata.start,
        slow.start,
        ends[0],
        quick.start,
        ends[1],
        end,
        after,
    ]
    assert moments == sorted(moments)


def test_what_is_not_traced_is_not_recorded():
    """Metadata stays empty without a trace level."""
    graph = Graph()
    graph.op(lambda: 1, name="one")
    metadata = RunMetadata()
    with MonitoredSession(graph, config=QUIET) as session:
        session.run("one", run_metadata=metadata)
    assert (metadata.ops, metadata.start, metadata.seconds) == ((), 0.0, 0.0)


@pytest.mark.parametrize("level", [1, 2, RunOptions.FULL_TRACE])
def test_each_trace_level_records_the_same(level):
    """TensorFlow's levels are accepted; there is but one thing to tell."""
    graph = Graph()
    graph.op(lambda: 1, name="one")
    metadata = RunMetadata()
    with MonitoredSession(graph, config=QUIET) as session:
        options = RunOptions(trace_level=level)
        session.run("one", options=options, run_metadata=metadata)
    assert the_op(metadata).outputs == (ValueRecord("one", "int"),)


def test_tracing_changes_no_value():
    """A traced run commits and returns what any run does, and variables stay unshared."""
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.op(lambda w: w * 2, name="double")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    plain, followed = EmbeddedSession(graph), EmbeddedSession(graph)
    for session, options in ((plain, RunOptions()), (followed, TRACED)):
        program = session.compile(["train", "double"], frozenset())
        for _ in range(3):
            session.execute(Execution(program, options=options))
    assert followed.run(["w", "double"])[1].tolist() == [6.0, 6.0]
    assert followed.variables()["w"].tolist() == plain.variables()["w"].tolist()
    assert followed.global_step == plain.global_step == 3


def test_an_op_that_raises_is_not_recorded():
    """Those before it are, and the error leaves as in any run."""
    graph = Graph()
    graph.op(lambda: 1, name="fine")
    graph.op(lambda fine: fine / 0, name="bad")
    session, metadata = EmbeddedSession(graph), RunMetadata()
    program = session.compile(["bad"], frozenset())
    with pytest.raises(ZeroDivisionError) as caught:
        session.execute(Execution(program, options=TRACED, metadata=metadata))
    assert [op.name for op in metadata.ops] == ["fine"]
    assert caught.value.__notes__ == ["hookbus: raised in op 'bad'"]


def test_the_end_of_an_input_leaves_a_traced_run():
    """Nothing is pulled from the others then, traced or not."""
    graph = Graph()
    graph.input("long", lambda: iter("abc"))
    graph.input("short", lambda: iter("a"))
    session = EmbeddedSession(graph)
    program = session.compile(["long", "short"], frozenset())
    session.execute(Execution(program, options=TRACED))
    with pytest.raises(OutOfRangeError, match="short"):
        session.execute(Execution(program, options=TRACED))
    assert session.run("long") == "b"


class Odd:
    """Calls things by names that arrays use, and cannot tell some of them."""

    shape = "round"
    dtype = None

    @property
    def nbytes(self):
        raise RuntimeError("not now")


class Unknown:
    """Has a shape that is known in part, a dtype without a hash, and sizes of NumPy."""

    shape = (None, 3)
    dtype = bytearray()
    nbytes = np.int64(24)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Odd(), ("Odd", (), None)),
        (Unknown(), ("bytearray(b'')", (), 24)),
        (np.float32(1), ("float32", (), 4)),
        (True, ("bool", (), None)),
        (None, ("NoneType", (), None)),
        ([1, 2], ("list", (), None)),
        (Odd, ("type", (), None)),
    ],
    ids=["odd", "unknown", "numpy scalar", "bool", "none", "list", "class"],
)
def test_any_value_can_be_told_of(value, told):
    """Its attributes shape and so on may not be those of an array."""
    record = ValueRecord.of("x", value)
    assert (record.type, record.shape, record.nbytes) == told
    assert type(record.nbytes) in (int, type(None))


def test_a_hook_can_have_a_run_traced():
    """It asks with its request, and finds the records in its run values."""

    class TracingHook(SessionRunHook):
        def before_run(self):
            return SessionRunArgs(options=TRACED)

        def after_run(self, run_values):
            self.ops = [op.name for op in run_values.run_metadata.ops]

    graph, hook = Graph(), TracingHook()
    graph.op(lambda: 1, name="one")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        assert session.run("one") == 1
    assert hook.ops == ["one"]


def test_a_traced_step_of_a_custom_loop_records_what_hooks_derive():
    """Nodes made of reported values are recorded as ops, if somebody wants them."""

    class DerivingHook(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda loss: loss * 2, name="twice")

        def before_run(self):
            return SessionRunArgs("twice", options=TRACED)

        def after_run(self, run_values):
            self.metadata = run_values.run_metadata

    hook, asked = DerivingHook(), []
    with (
        MonitoredSession(hooks=[hook], config=QUIET) as session,
        session.step() as step,
    ):
        step.report(loss=2.0, accuracy=lambda: asked.append(1))
    assert [op.name for op in hook.metadata.ops] == ["twice"]
    assert hook.metadata.seconds > 0
    assert asked == []
