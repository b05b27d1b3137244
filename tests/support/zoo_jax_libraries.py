"""Trainings with flax.nnx, equinox and Grain in the shapes in which people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tests.support.jax_parts import ROWS, X, Y, batches, compiled_again, dense, end_of
from tests.support.zoo import Run
from tests.support.zoo_jax import mean_loss


class Network(nnx.Module):
    """A network with batch norm and dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


@nnx.jit
def nnx_step(model: Any, optimizer: Any, metrics: Any, x: Any, y: Any) -> None:
    """Train on a batch; all three change in place."""

    def loss_of(model: Any) -> Any:
        out = model(x)
        losses = optax.softmax_cross_entropy_with_integer_labels(out, y)
        return losses.mean(), out

    (loss, out), slopes = nnx.value_and_grad(loss_of, has_aux=True)(model)
    metrics.update(loss=loss, logits=out, labels=y)
    optimizer.update(model, slopes)


def in_place(run: Run) -> Any:
    """Objects of flax.nnx, and the order of an epoch drawn from its Rngs."""
    rngs = nnx.Rngs(params=0, dropout=1, shuffle=2)
    model = Network(rngs)
    optimizer = nnx.Optimizer(model, optax.adamw(0.01), wrt=nnx.Param)
    metrics = nnx.MultiMetric(
        accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss")
    )
    with run.session() as session:
        session.track(model=model, optimizer=optimizer, metrics=metrics, rngs=rngs)
        for epoch in session.epochs(run.epochs):
            order = jax.random.permutation(rngs.shuffle(), len(X))
            metrics.reset()
            for x, y in session.iterate(batches(order)):
                with session.step():
                    nnx_step(model, optimizer, metrics, x, y)
            found = {name: float(value) for name, value in metrics.compute().items()}
            model.eval()
            with session.evaluation("val") as evaluation:
                evaluation.report(score=float((model(X).argmax(1) == Y).mean()))
            model.train()
            run.say(epoch, found, evaluation.metrics, compiled_again(nnx_step))
    states = [nnx.to_pure_dict(nnx.state(each)) for each in (model, optimizer, rngs)]
    return end_of(states=states, metrics=nnx.to_pure_dict(nnx.state(metrics)))


class Deep(eqx.Module):
    """A module of equinox with a function, a number and a network with dropout."""

    network: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    scale: jax.Array

    def __init__(self, key: Any) -> None:
        self.network = eqx.nn.MLP(6, 2, 8, 2, key=key)
        self.dropout = eqx.nn.Dropout(0.2)
        self.scale = jnp.ones(())

    def __call__(self, x: Any, key: Any) -> Any:
        return self.network(self.dropout(x, key=key)) * self.scale


def functional_modules(run: Run) -> Any:
    """A module of equinox, of which arrays are trained, and a key split in each step."""
    tx = optax.adam(0.01)

    @eqx.filter_jit
    def train(model: Any, opt_state: Any, key: Any, x: Any, y: Any) -> Any:
        params, rest = eqx.partition(model, eqx.is_inexact_array)

        def loss_of(params: Any) -> Any:
            whole = eqx.combine(params, rest)
            out = jax.vmap(whole)(x, jax.random.split(key, len(x)))
            return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

        loss, slopes = eqx.filter_value_and_grad(loss_of)(params)
        updates, opt_state = tx.update(slopes, opt_state, params)
        return eqx.apply_updates(model, updates), opt_state, loss

    with run.session() as session:
        model = Deep(jax.random.key(1))
        opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
        held = session.hold(model=model, opt_state=opt_state, key=jax.random.key(2))
        for epoch in session.epochs(run.epochs):
            held.key, shuffle = jax.random.split(held.key)
            order = jax.random.permutation(shuffle, len(X))
            for _, (x, y) in session.enumerate(batches(order), start=1):
                held.key, key = jax.random.split(held.key)
                with session.step() as step:
                    new = train(held.model, held.opt_state, key, x, y)
                    held.model, held.opt_state, loss = new
                    step.report(loss=loss)
            run.say(epoch, float(held.model.scale), compiled_again(train))
    arrays = eqx.filter(held.model, eqx.is_array)
    return end_of(arrays=arrays, opt_state=held.opt_state, key=held.key)


def piped(run: Run) -> Any:
    """A pipeline of Grain, which is shuffled anew for each epoch, and read by threads."""
    tx = optax.sgd(0.1, momentum=0.9)
    numbers = grain.MapDataset.range(len(X)).seed(5)

    @jax.jit
    def train(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        updates, opt_state = tx.update(jax.grad(mean_loss)(params, x, y), opt_state)
        return optax.apply_updates(params, updates), opt_state

    with run.session() as session:
        params = dense(jax.random.key(5), 6, 2)
        held = session.hold(params=params, opt_state=tx.init(params))
        for epoch in session.epochs(run.epochs):
            dataset = numbers.shuffle(seed=epoch).batch(ROWS).to_iter_dataset()
            for rows in session.iterate(iter(dataset)):
                with session.step():
                    new = train(held.params, held.opt_state, X[rows], Y[rows])
                    held.params, held.opt_state = new
            run.say(epoch, float(mean_loss(held.params, X, Y)), compiled_again(train))
    return end_of(params=held.params, opt_state=held.opt_state)


def filtered(run: Run) -> Any:
    """A pipeline of unknown length, augmented with random numbers of its own."""

    def noisy(row: Any, generator: Any) -> Any:
        return X[row] + generator.normal(size=6).astype(np.float32)

    dataset = grain.MapDataset.range(len(X)).seed(9).shuffle().to_iter_dataset()
    dataset = dataset.filter(lambda row: row % 5).random_map(noisy).batch(7)
    with run.session() as session:
        held = session.hold(params=jnp.zeros(6))
        for epoch in session.epochs(run.epochs):
            for x in session.iterate(dataset):
                with session.step():
                    held.params = 0.9 * held.params + jnp.asarray(x).mean(0)
            run.say(epoch, held.params.tolist())
    return end_of(params=held.params)


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each for each in (in_place, functional_modules, piped, filtered)
}
