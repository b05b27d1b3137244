"""Trainings with JAX whose arrays are spread over several devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.jax_parts import X, Y, batches, compiled_again, dense, end_of
from tests.support.zoo import Run
from tests.support.zoo_jax import mean_loss

TX = optax.adamw(0.01)


def devices(count: int) -> dict[str, str]:
    """Return the variables of a process that has some devices."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def spread(run: Run, shape: tuple[int, int]) -> Any:
    """Weights that both axes of a mesh share, and batches that one axis shares."""
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("a", "b"))
    on = partial(NamedSharding, mesh)
    params = spread_params(on)
    state = {"params": params, "opt_state": TX.init(params), "key": jax.random.key(3)}
    # A step would put counters and keys on the mesh, so they begin there.
    state = jax.tree.map(
        lambda x: x if x.ndim else jax.device_put(x, on(PartitionSpec())), state
    )

    @partial(jax.jit, out_shardings=jax.tree.map(lambda x: x.sharding, state))
    def train(state: Any, x: Any, y: Any) -> Any:
        key, drop = jax.random.split(state["key"])
        x = x * jax.random.bernoulli(drop, 0.9, x.shape)
        slopes = jax.grad(mean_loss)(state["params"], x, y)
        updates, opt_state = TX.update(slopes, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "key": key}

    with run.session() as session:
        held = session.hold(state=state)
        for epoch in session.epochs(run.epochs):
            for batch in session.iterate(batches(np.random.permutation(len(X)))):
                x, y = jax.device_put(batch, on(PartitionSpec("a")))
                with session.step():
                    held.state = train(held.state, x, y)
            loss = float(mean_loss(held.state["params"], X, Y))
            # Compiled once; but a call finds the keys of device_put in another form.
            run.say(epoch, loss, compiled_again(train, 2))
    return end_of(state=held.state)


def spread_params(on: Any) -> Any:
    """Return weights that are spread over the mesh."""
    params = dense(jax.random.key(2), 6, 8, 2)
    specs = {
        "layer0": {"w": PartitionSpec("a", "b"), "b": PartitionSpec("b")},
        "layer1": {"w": PartitionSpec("b", None), "b": PartitionSpec()},
    }
    if on(PartitionSpec()).mesh.shape["a"] == 4:  # does not divide six rows
        specs["layer0"]["w"] = PartitionSpec("b", "a")
    shardings = jax.tree.map(on, specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return jax.device_put(params, shardings)


def square(run: Run) -> Any:
    """A mesh of two times two devices."""
    return spread(run, (2, 2))


def line(run: Run) -> Any:
    """A mesh of four devices in a line."""
    return spread(run, (4, 1))


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each for each in (square, line)
}
