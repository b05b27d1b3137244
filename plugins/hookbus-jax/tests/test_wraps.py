"""Wraps in a JaxGraph are compiled with the ops that read them, or run on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_gradient_accumulation import GradientAccumulationHook
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_jax import JaxGraph

from hookbus import GraphError, MonitoredSession, SessionRunHook
from tests.support.kinds import QUIET


class WrapHook(SessionRunHook):
    """Wraps one node in ``begin``."""

    def __init__(self, node, fn, **options) -> None:
        self.node, self.fn, self.options = node, fn, options

    def begin(self, graph) -> None:
        graph.wrap(self.node, self.fn, **self.options)


def descent() -> JaxGraph:
    """Return a graph that trains a tree of parameters."""
    graph = JaxGraph()
    graph.placeholder("x")
    graph.variable("params", {"w": jnp.ones(2), "b": jnp.zeros(())})
    graph.variable("rate", 0.5)

    @graph.op
    def gradient(params, x):
        return jax.grad(lambda p: ((p["w"] * x).sum() + p["b"]) ** 2)(params)

    @graph.train_op(updates="params")
    def train(params, gradient, rate):
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient)

    return graph


def clipped(gradient):
    """Clip each leaf to [-1, 1]."""
    return jax.tree.map(lambda leaf: jnp.clip(leaf, -1.0, 1.0), gradient)


def warm(rate, step):
    return rate * jnp.minimum(1.0, (step + 1) / 2)


def test_a_wrap_is_compiled_with_the_ops_that_read_it():
    """It is traced once, and trains like the same functions by hand."""
    traced = []

    def noted(gradient):
        traced.append(1)
        return clipped(gradient)

    hooks = [
        WrapHook("gradient", noted),
        WrapHook("rate", warm, reads={"step": "global_step"}),
    ]
    params, x = {"w": jnp.ones(2), "b": jnp.zeros(())}, np.float32([1.0, 2.0])
    slope = jax.grad(lambda p: ((p["w"] * x).sum() + p["b"]) ** 2)
    with MonitoredSession(descent(), hooks=hooks, config=QUIET) as session:
        for step in range(3):
            session.run("train", {"x": x})
            params = jax.tree.map(
                lambda p, g, at=step: p - warm(0.5, at) * g, params, clipped(slope(params))
            )
        found = session.run("params")
    assert len(traced) == 1
    assert jax.tree.map(np.array_equal, found, params) == {"w": True, "b": True}


@pytest.mark.parametrize("decorates", [True, False])
def test_a_wrap_on_the_host_gets_numpy_arrays(decorates):
    """For code that JAX cannot trace, like that of a library."""
    graph, kinds = descent(), []

    def noted(x):
        kinds.append(type(x))
        return np.asarray(x) * 2

    if decorates:
        graph.wrap("x", host=True)(noted)
    else:
        graph.wrap("x", noted, host=True)
    with MonitoredSession(graph, config=QUIET) as session:
        assert session.run("x", {"x": jnp.ones(2)}).tolist() == [2, 2]
    assert kinds == [np.ndarray]


def test_a_wrap_keeps_shape_and_dtype_of_each_leaf():
    """The error names the plugin, the node and both forms, in the first run."""
    hook = WrapHook("gradient", lambda g: {**g, "w": g["w"].astype(jnp.bfloat16)})
    session = MonitoredSession(descent(), hooks=[hook], config=QUIET)
    with pytest.raises(GraphError) as caught, session:
        session.run("train", {"x": jnp.ones(2)})
    assert str(caught.value) == (
        "plugin 'wrap' wraps 'gradient' and returned bfloat16 (2,) instead of float32 (2,) "
        "for gradient['w']; a wrap keeps shape and dtype, unless it is made with "
        "keeps_form=False"
    )


def test_gradients_are_accumulated_as_by_hand():
    """The plugin that NumPy uses also works with trees of arrays."""
    xs, runs = [np.float32([1.0, n / 7]) for n in range(6)], 3
    hook = GradientAccumulationHook(runs, gradients="gradient")
    with MonitoredSession(descent(), hooks=[hook], config=QUIET) as session:
        for x in xs:
            session.run("train", {"x": x})
        found, steps = session.run("params"), session.global_step
    slope = jax.jit(jax.grad(lambda p, x: ((p["w"] * x).sum() + p["b"]) ** 2))
    params = {"w": jnp.ones(2), "b": jnp.zeros(())}
    for group in (xs[:3], xs[3:]):
        sums = slope(params, group[0])
        for x in group[1:]:
            sums = jax.tree.map(jnp.add, sums, slope(params, x))
        params = jax.tree.map(lambda p, g: p - 0.5 * (g / runs), params, sums)
    assert steps == 6
    assert jax.tree.map(np.array_equal, found, params) == {"w": True, "b": True}


def test_gradients_are_clipped_by_their_common_norm():
    """Inside the compiled program, as by hand."""
    xs = [np.float32([1.0, n / 7]) for n in range(6)]
    hook = GradientClippingHook(0.5, gradients="gradient")
    with MonitoredSession(descent(), hooks=[hook], config=QUIET) as session:
        for x in xs:
            session.run("train", {"x": x})
        found = session.run("params")

    @jax.jit
    def update(params, x):
        slopes = jax.grad(lambda p: ((p["w"] * x).sum() + p["b"]) ** 2)(params)
        total = jnp.sqrt(sum(jnp.sum(jnp.abs(g) ** 2) for g in slopes.values()))
        scale = jnp.minimum(1.0, 0.5 / (total + 1e-6))
        return jax.tree.map(lambda p, g: p - 0.5 * (g * scale), params, slopes)

    params = {"w": jnp.ones(2), "b": jnp.zeros(())}
    for x in xs:
        params = update(params, x)
    assert jax.tree.map(np.allclose, found, params) == {"w": True, "b": True}
