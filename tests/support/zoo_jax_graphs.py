"""Trainings with JAX as graphs, beside the loops by hand that do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from hookbus_jax import JaxGraph

from tests.support.jax_parts import X, batches, dense, end_of
from tests.support.zoo import Run
from tests.support.zoo_jax import mean_loss


def data(epochs: int) -> Iterator[Any]:
    """Yield the batches of all epochs, each in an order of its own."""
    for epoch in range(epochs):
        key = jax.random.fold_in(jax.random.key(9), epoch)
        yield from batches(jax.random.permutation(key, len(X)))


def noisy_update(tx: Any, params: Any, opt_state: Any, key: Any, x: Any, y: Any) -> Any:
    """Return the values after a step with noise on the input."""
    key, noise = jax.random.split(key)
    x = x + 0.1 * jax.random.normal(noise, x.shape)
    slopes = jax.grad(mean_loss)(params, x, y)
    updates, opt_state = tx.update(slopes, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, key


def trained(run: Run, tx: Any, *, donate: bool = False) -> Any:
    """Train by hand, or as a graph with a key and the state of an optimizer."""
    params = dense(jax.random.key(1), 6, 8, 2)
    values = params, tx.init(params), jax.random.key(2)
    if run.by_hand:
        step = jax.jit(lambda *values: noisy_update(tx, *values))
        for x, y in data(run.epochs):
            values = step(*values, x, y)
        return end_of(values=values)
    graph = JaxGraph(donate=donate)
    for name, value in zip(("params", "opt_state", "key"), values, strict=True):
        graph.variable(name, value)
    graph.input("batch", lambda: data(run.epochs))

    @graph.train_op(updates=("params", "opt_state", "key"))
    def train(params: Any, opt_state: Any, key: Any, batch: Any) -> Any:
        return noisy_update(tx, params, opt_state, key, *batch)

    with run.session(graph) as session:
        for _ in session.loop():
            pass
        values = tuple(
            session.run(name, kind="aux") for name in ("params", "opt_state", "key")
        )
    return end_of(values=values)


def graph_with_adamw(run: Run) -> Any:
    """A graph with a key and the state of adamw among its variables."""
    return trained(run, optax.adamw(0.01))


def graph_with_multi_steps(run: Run) -> Any:
    """A donating graph that adds up gradients, and a rate that follows a schedule."""
    schedule = optax.exponential_decay(jnp.float32(0.02), 2, 0.5)
    inner = optax.inject_hyperparams(optax.adam)(learning_rate=schedule)
    tx = optax.MultiSteps(inner, every_k_schedule=2)
    return trained(run, tx, donate=True)


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each for each in (graph_with_adamw, graph_with_multi_steps)
}
