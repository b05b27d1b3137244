"""Trainings with JAX as graphs, beside the loops by hand that do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from hookbus_jax import JaxGraph
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.jax_parts import ROWS, STEPS, X, Y, batches, dense, end_of
from tests.support.zoo import Run
from tests.support.zoo_jax import SEVERAL, Halves, halves_slopes, mean_loss, new_state
from tests.support.zoo_jax_libraries import Deep, Network
from tests.support.zoo_jax_spread import TX, spread_params


def data(epochs: int) -> Iterator[Any]:
    """Yield the batches of all epochs, each in an order of its own."""
    for epoch in range(epochs):
        key = jax.random.fold_in(jax.random.key(9), epoch)
        yield from batches(jax.random.permutation(key, len(X)))


def trained(
    run: Run,
    values: Mapping[str, Any],
    update: Callable[..., Any],
    inputs: Callable[[int], Iterator[Any]] = data,
    increment: int = 1,
    donate: bool = False,
) -> Any:
    """Train by hand, or as a graph whose variables are trees.

    Args:
        run: how.
        values: the variables, by name.
        update: takes them by their names, and a ``batch``; returns them after a step.
        inputs: takes the number of epochs, and yields all batches.
        increment: how many steps one call does.
        donate: whether the graph donates its variables.
    """
    names = tuple(values)
    if run.by_hand:
        step, now = jax.jit(update), tuple(values.values())
        for batch in inputs(run.epochs):
            now = step(*now, batch)
        return end_of(**dict(zip(names, now, strict=True)))
    graph = JaxGraph(donate=donate)
    for name, value in values.items():
        graph.variable(name, value)
    graph.input("batch", lambda: inputs(run.epochs))
    graph.train_op(update, name="train", updates=names, increment=increment)
    with run.session(graph) as session:
        for _ in session.loop():
            pass
        found = {name: session.run(name, kind="aux") for name in names}
    return end_of(**found)


def noisy_update(tx: Any, params: Any, opt_state: Any, key: Any, batch: Any) -> Any:
    """Return the values after a step with noise on the input."""
    x, y = batch
    key, noise = jax.random.split(key)
    x = x + 0.1 * jax.random.normal(noise, x.shape)
    slopes = jax.grad(mean_loss)(params, x, y)
    updates, opt_state = tx.update(slopes, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, key


def noisy(run: Run, tx: Any, *, donate: bool = False) -> Any:
    """Train a network with noise from a key."""
    params = dense(jax.random.key(1), 6, 8, 2)
    values = {"params": params, "opt_state": tx.init(params), "key": jax.random.key(2)}
    return trained(run, values, partial(noisy_update, tx), donate=donate)


def graph_with_adamw(run: Run) -> Any:
    """A graph with a key and the state of adamw among its variables."""
    return noisy(run, optax.adamw(0.01))


def graph_with_multi_steps(run: Run) -> Any:
    """A donating graph that adds up gradients, and a rate that follows a schedule."""
    schedule = optax.exponential_decay(jnp.float32(0.02), 2, 0.5)
    inner = optax.inject_hyperparams(optax.adam)(learning_rate=schedule)
    tx = optax.MultiSteps(inner, every_k_schedule=2)
    return noisy(run, tx, donate=True)


def graph_with_train_state(run: Run) -> Any:
    """A TrainState of flax, whose dropout draws from a key."""
    state = new_state(optax.adamw(0.01)).replace(step=jnp.zeros((), jnp.int32))

    def update(state: Any, key: Any, batch: Any) -> Any:
        x, y = batch
        key, dropout = jax.random.split(key)

        def loss_of(params: Any) -> Any:
            out = state.apply_fn({"params": params}, x, True, rngs={"dropout": dropout})
            return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

        return state.apply_gradients(grads=jax.grad(loss_of)(state.params)), key

    return trained(run, {"state": state, "key": jax.random.key(7)}, update)


def graph_with_lookahead(run: Run) -> Any:
    """optax.lookahead, with fast and slow weights."""
    tx = optax.lookahead(optax.sgd(0.3), sync_period=3, slow_step_size=0.5)

    def update(params: Any, opt_state: Any, batch: Any) -> Any:
        slopes = jax.grad(mean_loss)(params.fast, *batch)
        updates, opt_state = tx.update(slopes, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = optax.LookaheadParams.init_synced(dense(jax.random.key(2), 6, 2))
    return trained(run, {"params": params, "opt_state": tx.init(params)}, update)


def graph_with_lbfgs(run: Run) -> Any:
    """optax.lbfgs with its line search."""
    tx = optax.lbfgs(memory_size=3)

    def update(params: Any, opt_state: Any, batch: Any) -> Any:
        loss_of = partial(mean_loss, x=batch[0], y=batch[1])
        value, slopes = optax.value_and_grad_from_state(loss_of)(params, state=opt_state)
        updates, opt_state = tx.update(
            slopes, opt_state, params, value=value, grad=slopes, value_fn=loss_of
        )
        return optax.apply_updates(params, updates), opt_state

    params = dense(jax.random.key(3), 6, 2)
    return trained(run, {"params": params, "opt_state": tx.init(params)}, update)


def graph_that_scans(run: Run) -> Any:
    """Eight steps in one call, with a key among what they carry."""
    tx = optax.adam(0.01)

    def one(carried: Any, _: Any) -> Any:
        params, opt_state, key = carried
        key, draw = jax.random.split(key)
        rows = jax.random.randint(draw, (4,), 0, len(X))
        slopes = jax.grad(mean_loss)(params, jnp.asarray(X)[rows], jnp.asarray(Y)[rows])
        updates, opt_state = tx.update(slopes, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, key), None

    def update(carried: Any, batch: Any) -> Any:
        del batch
        return (jax.lax.scan(one, carried, length=SEVERAL)[0],)

    params = dense(jax.random.key(4), 6, 8, 2)
    carried = params, tx.init(params), jax.random.key(5, impl="rbg")
    return trained(
        run,
        {"carried": carried},
        update,
        lambda epochs: iter(range(epochs * STEPS)),
        increment=SEVERAL,
    )


def graph_with_halves(run: Run) -> Any:
    """A dataclass with bfloat16 and arrays of other dtypes."""
    w = jax.random.normal(jax.random.key(6), (6,), jnp.bfloat16)
    scale, rate = jnp.float32(0.1), jnp.float32(0.1)
    net = Halves(w, jnp.zeros(()), scale, rate, jnp.int32(0))

    def update(net: Any, batch: Any) -> Any:
        w_slope, b_slope = halves_slopes(net, *batch)
        w = (net.w - net.scale * w_slope).astype(jnp.bfloat16)
        b = net.b - net.rate * b_slope
        return (Halves(w, b, net.scale * 0.99, net.rate * 0.97, net.count + 1),)

    return trained(run, {"net": net}, update)


def graph_with_nnx(run: Run) -> Any:
    """A network of flax.nnx with dropout and batch norm, split into what changes."""
    tx = optax.adamw(0.01)
    model = Network(nnx.Rngs(params=0, dropout=1))
    definition, params, rest = nnx.split(model, nnx.Param, ...)

    def update(params: Any, rest: Any, opt_state: Any, batch: Any) -> Any:
        x, y = batch

        def loss_of(params: Any) -> Any:
            model = nnx.merge(definition, params, rest, copy=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
            return losses.mean(), nnx.split(model, nnx.Param, ...)[2]

        slopes, after = jax.grad(loss_of, has_aux=True)(params)
        updates, opt_state = tx.update(slopes, opt_state, params)
        return optax.apply_updates(params, updates), after, opt_state

    values = {"params": params, "rest": rest, "opt_state": tx.init(params)}
    return trained(run, values, update)


def graph_with_equinox(run: Run) -> Any:
    """A module of equinox without its functions, and a key split in each step."""
    tx = optax.adam(0.01)
    params, rest = eqx.partition(Deep(jax.random.key(1)), eqx.is_inexact_array)

    def update(params: Any, opt_state: Any, key: Any, batch: Any) -> Any:
        x, y = batch
        key, draw = jax.random.split(key)

        def loss_of(params: Any) -> Any:
            whole = eqx.combine(params, rest)
            out = jax.vmap(whole)(x, jax.random.split(draw, len(x)))
            return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

        updates, opt_state = tx.update(jax.grad(loss_of)(params), opt_state, params)
        return eqx.apply_updates(params, updates), opt_state, key

    values = {"params": params, "opt_state": tx.init(params), "key": jax.random.key(2)}
    return trained(run, values, update)


def graph_with_grain(run: Run) -> Any:
    """A pipeline of Grain as the input of a graph."""
    tx = optax.sgd(0.1, momentum=0.9)

    def piped(epochs: int) -> Iterator[Any]:
        numbers = grain.MapDataset.range(len(X)).seed(5).shuffle().repeat(epochs)
        return iter(numbers.map(lambda row: (X[row], Y[row])).batch(ROWS).to_iter_dataset())

    def update(params: Any, opt_state: Any, batch: Any) -> Any:
        updates, opt_state = tx.update(jax.grad(mean_loss)(params, *batch), opt_state)
        return optax.apply_updates(params, updates), opt_state

    params = dense(jax.random.key(5), 6, 2)
    values = {"params": params, "opt_state": tx.init(params)}
    return trained(run, values, update, piped)


def on_mesh(run: Run, shape: tuple[int, int]) -> Any:
    """Weights that both axes of a mesh share."""
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("a", "b"))
    params = spread_params(partial(NamedSharding, mesh))
    values = {"params": params, "opt_state": TX.init(params), "key": jax.random.key(3)}
    # A step would put counters and keys on the mesh, so they begin there.
    everywhere = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> Any:
        return leaf if leaf.ndim else jax.device_put(leaf, everywhere)

    values = {name: jax.tree.map(put, value) for name, value in values.items()}
    places = jax.tree.map(lambda leaf: leaf.sharding, tuple(values.values()))

    def update(params: Any, opt_state: Any, key: Any, batch: Any) -> Any:
        new = noisy_update(TX, params, opt_state, key, batch)
        return jax.lax.with_sharding_constraint(new, places)  # XLA would choose others

    return trained(run, values, update)


def graph_on_square(run: Run) -> Any:
    """A mesh of two times two devices."""
    return on_mesh(run, (2, 2))


def graph_on_line(run: Run) -> Any:
    """A mesh of four devices in a line."""
    return on_mesh(run, (4, 1))


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each
    for each in (
        graph_with_adamw,
        graph_with_multi_steps,
        graph_with_train_state,
        graph_with_lookahead,
        graph_with_lbfgs,
        graph_that_scans,
        graph_with_halves,
        graph_with_nnx,
        graph_with_equinox,
        graph_with_grain,
        graph_on_square,
        graph_on_line,
    )
}
