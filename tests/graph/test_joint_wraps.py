"""Wraps of several nodes together: a function gets all their values at once."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import Config, Graph, GraphError, MonitoredSession, SessionRunHook

OFF = Config(autoload=False, header=False)


class WrapHook(SessionRunHook):
    """Wraps nodes in ``begin``; sessions call it ``wrap``, ``wrap-2`` and so on."""

    def __init__(self, nodes, fn, **options) -> None:
        self.nodes, self.fn, self.options = nodes, fn, options

    def begin(self, graph) -> None:
        graph.wrap(self.nodes, self.fn, **self.options)


def descent() -> Graph:
    """Return a graph that trains two variables, each by a gradient."""
    graph = Graph()
    graph.placeholder("x")
    for name in "ab":
        graph.variable(name, np.ones(2))
    graph.op(lambda x, a: x * a, name="grad_a")
    graph.op(lambda x, b: 2 * x * b, name="grad_b")
    graph.train_op(
        lambda a, b, grad_a, grad_b: (a - grad_a, b - grad_b),
        name="train",
        updates=["a", "b"],
    )
    return graph


def clipped(values):
    """Scale all values so that their common norm is at most 1."""
    norm = np.sqrt(sum(np.sum(value**2) for value in values.values()))
    return {name: value / max(1.0, norm) for name, value in values.items()}


def same(values):
    return values


def by_hand(steps: int) -> list:
    a, b = np.ones(2), np.ones(2)
    for x in range(steps):
        grads = clipped({"a": x * a, "b": 2 * x * b})
        a, b = a - grads["a"], b - grads["b"]
    return [a, b]


def session_of(*hooks, graph=None) -> MonitoredSession:
    return MonitoredSession(graph or descent(), hooks=hooks, config=OFF)


def test_gradients_are_clipped_by_their_common_norm():
    """As in a loop by hand, also when the run is compiled."""
    with session_of(WrapHook(["grad_a", "grad_b"], clipped)) as session:
        for x in range(5):
            session.run("train", {"x": float(x)})
        assert np.array_equal(session.run(["a", "b"], kind="aux"), by_hand(5))
        assert session.graph.wraps == {
            "grad_a": ("grad_a:wrap",),
            "grad_b": ("grad_b:wrap",),
        }


def test_it_composes_with_wraps_of_single_nodes_in_the_order_of_the_hooks():
    """And with one of the same nodes."""
    hooks = (
        WrapHook("grad_a", lambda g: g + 1),
        WrapHook(["grad_a", "grad_b"], lambda v: {n: each * 10 for n, each in v.items()}),
        WrapHook(["grad_b", "grad_a"], lambda v: {n: each - 1 for n, each in v.items()}),
        WrapHook("grad_b", lambda g: -g),
    )
    with session_of(*hooks) as session:
        a, b = session.run(["grad_a", "grad_b"], {"x": 1.0})
    assert (a[0], b[0]) == (19.0, -19.0)


def test_a_list_of_one_node_gives_a_dict_as_well():
    """The form of what a function gets does not depend on the number."""
    with session_of(WrapHook(["x"], lambda v: {"x": v["x"] + 1})) as session:
        assert session.run("x", {"x": 1.0}) == 2.0


def test_a_node_that_is_given_twice_is_wrapped_once():
    """As the dict has it once."""
    with session_of(WrapHook(["x", "x"], lambda v: {"x": v["x"] + 1})) as session:
        assert session.run("x", {"x": 1.0}) == 2.0


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        (
            [WrapHook(["grad_a", "grad_b"], same), WrapHook(["grad_b", "x"], same)],
            "plugin 'wrap-2' wraps 'grad_b' and 'x' together, and plugin 'wrap' wraps "
            "'grad_a' and 'grad_b': both take 'grad_b'; wrap the same nodes, or nodes that "
            "the other does not take",
        ),
        (
            [WrapHook(["x", "grad_a"], same)],
            "plugin 'wrap' wraps 'x' and 'grad_a' together, and 'grad_a' is computed from "
            "another one of them; wrap them one by one",
        ),
        (
            [WrapHook(["grad_a", "x"], same)],
            "plugin 'wrap' wraps 'grad_a' and 'x' together, and 'grad_a' is computed from "
            "another one of them; wrap them one by one",
        ),
        ([WrapHook([], same)], "wrap() is given no nodes; name those to wrap"),
    ],
)
def test_nodes_that_have_no_common_place_are_refused(hooks, told):
    """The error names the hooks and the nodes."""
    graph = descent()
    with pytest.raises(GraphError) as caught, session_of(*hooks, graph=graph):
        pass
    assert str(caught.value).splitlines()[0] == told
    assert graph.wraps == {}
    assert not [name for name in graph.nodes if ":" in name]


def test_a_function_that_leaves_a_value_out_is_refused():
    """The error names the wrap, and the values that it promises."""
    told = r"op 'grad_a\+grad_b:wrap' promised outputs \['grad_a', 'grad_b'\]"
    hook = WrapHook(["grad_a", "grad_b"], lambda v: {"grad_a": v["grad_a"]})
    with session_of(hook) as session, pytest.raises(GraphError, match=told):
        session.run("train", {"x": 1.0})


def test_the_wraps_vanish_with_the_session():
    """Then other nodes can be wrapped together."""
    graph = descent()
    graph.placeholder("y")
    for nodes in (["grad_a", "grad_b"], ["grad_b", "y"]):
        with session_of(WrapHook(nodes, same), graph=graph):
            assert set(graph.wraps) == set(nodes)
    assert graph.wraps == {}
