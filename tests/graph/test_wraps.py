"""Tests wraps: every reader of a node sees what the functions of hooks make of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    GraphError,
    MonitoredSession,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.backend import Execution, RunMetadata
from hookbus.backend.embedded import EmbeddedSession
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.errors import GraphFinalizedError, UnknownNodeError
from tests.support.watching import lines as lines

OFF = Config(autoload=False, header=False)


class WrapHook(SessionRunHook):
    """Wraps one node in ``begin``; sessions call it ``wrap``, ``wrap-2`` and so on."""

    def __init__(self, node, fn, **options) -> None:
        self.node, self.fn, self.options = node, fn, options

    def begin(self, graph) -> None:
        self.op = graph.wrap(self.node, self.fn, **self.options)


def descent() -> Graph:
    """Return a graph that trains ``w`` on ``x`` with the learning rate ``rate``."""
    graph = Graph()
    graph.placeholder("x")
    graph.variable("w", 1.0)
    graph.variable("rate", 0.5)
    graph.op(lambda x, w: x * w, name="gradient")
    graph.train_op(lambda w, gradient, rate: w - rate * gradient, name="train", updates="w")
    return graph


def session_of(*hooks, graph=None, **more) -> MonitoredSession:
    return MonitoredSession(graph or descent(), hooks=hooks, config=OFF, **more)


@pytest.mark.parametrize("node", ["x", "gradient"])
def test_readers_and_fetches_see_the_wrapped_value(node):
    """A placeholder that is fed, or an op: all get what the function returns."""
    with session_of(WrapHook(node, lambda value: value + 10.0)) as session:
        for _ in range(3):  # a run that repeats is compiled
            w, found, gradient, _ = session.run(
                ["w", node, "gradient", "train"], {"x": 1.0}
            )
            raw = w * 1.0 if node == "gradient" else 1.0
            assert found == raw + 10.0
            assert session.run("w") == w - 0.5 * gradient


def test_wraps_compose_in_the_order_of_the_hooks():
    """Each one gets the value of the one before it."""
    hooks = WrapHook("x", lambda x: x + 1.0), WrapHook("x", lambda x: x * 10.0)
    with session_of(*hooks) as session:
        assert session.run("x", {"x": 1.0}) == 20.0
        assert session.graph.wraps == {"x": ("x:wrap", "x:wrap-2")}
        assert session.run(["x:wrap", "x:wrap-2"], {"x": 1.0}) == [2.0, 20.0]


def test_a_wrap_reads_nodes_like_an_op():
    """By the names of its further parameters, or by reads=; those may also be wrapped."""
    hooks = (
        WrapHook("rate", lambda rate: rate * 3.0),
        WrapHook("x", lambda x, by, w: x + by + w, reads={"by": "rate"}),
    )
    with session_of(*hooks) as session:
        assert session.run("x", {"x": 1.0}) == 1.0 + 1.5 + 1.0


def test_a_variable_keeps_its_value_and_ops_see_the_wrapped_one():
    """A warm-up stands beside a hook that reads and assigns the learning rate."""

    class Halving(SessionRunHook):
        def before_run(self):
            return SessionRunArgs("rate")

        def after_run(self, run_context, run_values):
            run_context.assign({"rate": run_values.results / 2})

    def warm(rate, step):
        return rate * min(1.0, (step + 1) / 2)

    warm_up = WrapHook("rate", warm, reads={"step": "global_step"})
    with session_of(warm_up, Halving()) as session:
        for _ in range(2):
            session.run("train", {"x": 1.0})
        assert session.run("rate") == 0.125
        assert session.run("w") == (1.0 - 0.25) * (1.0 - 0.25)


def test_a_node_that_a_run_feeds_is_wrapped_too():
    """A hook that feeds a node takes the place of its source, not of its wraps."""
    with session_of(WrapHook("gradient", lambda value: -value)) as session:
        assert session.run("gradient", {"gradient": 4.0}) == -4.0


def test_an_input_and_an_output_can_be_wrapped():
    """An input is pulled once, and the output of an op is wrapped by itself."""
    graph = Graph()
    graph.input("x", lambda: [1.0, 2.0])
    graph.op(lambda x: (x, -x), name="both", outputs=("plus", "minus"))
    hooks = (
        WrapHook("x", lambda x: x * 10.0),
        WrapHook("both.minus", lambda minus: minus - 1.0),
    )
    with session_of(*hooks, graph=graph) as session:
        names = ["x", "both.plus", "both.minus"]
        assert [session.run(names) for _ in range(2)] == [[10, 10, -11], [20, 20, -21]]


def test_wraps_vanish_with_the_session():
    """The graph is afterwards what it was before."""
    graph = descent()
    graph.wrap("x", lambda x: x + 1.0)
    with session_of(WrapHook("x", lambda x: x * 10.0), graph=graph) as session:
        assert session.run("x", {"x": 1.0}) == 20.0
    assert graph.wraps == {"x": ("x:wrap",)}
    with session_of(graph=graph) as session:
        assert session.run("x", {"x": 1.0}) == 2.0


def test_the_op_of_a_wrap_bears_the_name_of_the_plugin_or_the_function():
    """Messages, traces and checkpoints tell by it who wraps what."""
    graph = descent()

    @graph.wrap("x")
    def shifted(x):
        return x + 1.0

    assert (shifted.name, shifted.owner) == ("x:shifted", None)
    assert [graph.wrap("x", lambda x: x).name for _ in range(2)] == ["x:wrap", "x:wrap-2"]


def test_a_trace_shows_each_wrap():
    """It has the value that the wrap read, and the one that it gave."""
    graph = descent()
    graph.wrap("x", lambda x: x + 1.0)
    session, metadata = EmbeddedSession(graph), RunMetadata()
    program = session.compile(["gradient"], frozenset(["x"]))
    options = RunOptions(RunOptions.FULL_TRACE)
    execution = Execution(program, {"x": 1.0}, options=options, metadata=metadata)
    session.execute(execution)
    seen = [
        (op.name, [each.name for each in op.inputs], [each.name for each in op.outputs])
        for op in metadata.ops
    ]
    assert seen == [
        ("x:wrap", ["x"], ["x:wrap"]),
        ("gradient", ["x:wrap", "w"], ["gradient"]),
    ]


def test_a_checkpoint_and_the_log_tell_who_wraps_what(lines):
    """The manifest lists the ops of the wraps, also in the last checkpoint."""

    class Saves(SessionRunHook):
        def begin(self, checkpoints):
            self.checkpoints = checkpoints
            checkpoints.enable("run")

        def end(self):
            self.checkpoints.request_save("end")

    with session_of(Saves(), WrapHook("x", lambda x: x + 1.0)) as session:
        session.run("train", {"x": 1.0})
    manifest = read_checkpoint("run/ckpt-1").manifest
    assert manifest.wraps == {"x": ["x:wrap"]}
    line = {"event": "node wrapped", "log_level": "debug", "node": "x", "by": "x:wrap"}
    assert line in lines


@pytest.mark.parametrize("draws", [random.random, np.random.random])
def test_the_numbers_that_a_wrap_draws_are_part_of_the_training(draws):
    """They are those that the program would draw itself, one after the other."""
    random.seed(1)
    np.random.seed(1)
    by_hand = [draws() for _ in range(4)]
    random.seed(1)
    np.random.seed(1)
    with session_of(WrapHook("x", lambda x: x + draws())) as session:
        assert [session.run("x", {"x": 0.0}) for _ in range(4)] == by_hand


FORMS = [
    (np.ones((2, 3)), np.ones((2, 4)), "float64 (2, 4) instead of float64 (2, 3)"),
    (np.ones(3), np.ones(3, np.float32), "float32 (3,) instead of float64 (3,)"),
    (1.0, 1, "int64 () instead of float64 ()"),
    (1.0, None, "a NoneType instead of float64 ()"),
    ((1.0, 2), (1.0,), "a tuple of 1 instead of a tuple of 2"),
    ({"a": 1.0}, {"b": 1.0}, "a dict of ['b'] instead of a dict of ['a']"),
    ({"a": (1.0, 2)}, {"a": (1.0, 2.0)}, "float64 () instead of int64 () for x['a'][1]"),
]


@pytest.mark.parametrize(("fed", "returned", "words"), FORMS)
def test_a_wrap_keeps_the_form_of_the_value(fed, returned, words):
    """The error names the plugin, the node and both forms, in the first run."""
    session = session_of(WrapHook("x", lambda _: returned))
    with pytest.raises(GraphError) as caught, session:
        session.run("x", {"x": fed})
    assert str(caught.value) == (
        f"plugin 'wrap' wraps 'x' and returned {words}; a wrap keeps shape and dtype, "
        "unless it is made with keeps_form=False"
    )
    assert caught.value.__notes__[0] == "hookbus: raised in op 'x:wrap'"


@pytest.mark.parametrize("number", [np.float64(2.0), np.array(2.0)])
def test_a_number_of_numpy_may_take_the_place_of_a_python_number(number):
    """Both have the dtype and the shape of a number."""
    with session_of(WrapHook("x", lambda x: x * number)) as session:
        assert session.run("x", {"x": 1.5}) == 3.0


def refusal(node, fn=lambda value: value, graph=None, **options) -> str:
    """Return the message with which a session refuses a wrap."""
    with pytest.raises(GraphError) as caught:
        session_of(WrapHook(node, fn, **options), graph=graph)
    return str(caught.value)


def test_what_cannot_be_wrapped_is_refused():
    """Each message names the plugin, the node, and what to do instead."""
    graph = descent()
    graph.op(lambda x: (x, x), name="two", outputs=("a", "b"))
    graph.wrap("x", lambda x: x)
    assert refusal("train", graph=graph) == (
        "plugin 'wrap' cannot wrap 'train': it is a train op, and what it writes into "
        "variables cannot be wrapped; wrap a node that it reads"
    )
    assert refusal("global_step", graph=graph) == (
        "plugin 'wrap' cannot wrap 'global_step': the session counts it; wrap a node that "
        "reads it"
    )
    assert refusal("two", graph=graph) == (
        "plugin 'wrap' cannot wrap 'two': it has several outputs; wrap one of them: "
        "'two.a', 'two.b'"
    )
    assert refusal("x:wrap", graph=graph) == (
        "plugin 'wrap' cannot wrap 'x:wrap': it is itself a wrap; wrap 'x' again, and the "
        "wraps compose"
    )


def test_a_wrapped_value_of_a_variable_is_never_written_back():
    """A train op that reads and updates the variable would let the wrap grow each step."""
    assert refusal("w") == (
        "plugin 'wrap' cannot wrap variable 'w': op 'train' reads and updates it, so it "
        "would write the wrapped value back; wrap another op, which computes the part "
        "that depends on 'w'"
    )


def test_a_wrap_reads_nothing_that_depends_on_the_node():
    """Else the value would be needed to compute itself; the wrap is then not added."""
    graph = descent()
    words = (
        "plugin 'wrap' wraps 'x' and reads 'gradient', which is computed from 'x'; read "
        "nodes that do not depend on it"
    )
    assert refusal("x", lambda x, gradient: x, graph=graph) == words
    assert graph.wraps == {}
    with session_of(graph=graph) as session:
        assert session.run("gradient", {"x": 3.0}) == 3.0


def test_two_wraps_that_read_the_nodes_of_each_other_are_refused():
    """The second one is, because the first one's node is then computed from its own."""
    graph = descent()
    graph.wrap("x", lambda x, rate: x)
    assert refusal("rate", lambda rate, x: rate, graph=graph) == (
        "plugin 'wrap' wraps 'rate' and reads 'x', which is computed from 'rate'; read "
        "nodes that do not depend on it"
    )


def test_a_function_of_a_wrap_takes_the_value_first():
    """Without a parameter it cannot have it, and reads= cannot name that one."""
    assert refusal("x", lambda: 1.0) == (
        "op 'x:wrap': the function takes no parameter; the first one gets the value of the "
        "wrapped node"
    )
    assert refusal("x", lambda x: x, reads={"x": "w"}) == (
        "op 'x:wrap': reads= names 'x', the first parameter, which gets the value of the "
        "wrapped node"
    )


def test_an_unknown_node_is_refused_with_close_matches():
    """The message names who wanted it."""
    with pytest.raises(UnknownNodeError) as caught:
        session_of(WrapHook("gradent", lambda value: value))
    assert str(caught.value) == (
        "the graph has no node 'gradent' (wanted by the wrap of plugin 'wrap'); did you "
        "mean 'gradient'?"
    )


def test_after_begin_nothing_can_be_wrapped():
    """The graph is finalized, and compiled runs know its wraps."""

    class Late(SessionRunHook):
        def after_create_session(self, session):
            session.graph.wrap("x", lambda x: x)

    with pytest.raises(GraphFinalizedError) as caught:
        session_of(Late())
    assert str(caught.value) == (
        "cannot wrap 'x': the graph is finalized. Wrap nodes before the session is made, "
        "or in a hook's begin()"
    )
