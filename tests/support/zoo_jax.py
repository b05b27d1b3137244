"""Trainings with JAX and optax in the shapes in which people write them."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from flax.training.train_state import TrainState

from tests.support.jax_parts import (
    STEPS,
    X,
    Y,
    batches,
    compiled_again,
    dense,
    end_of,
    logits_of,
)
from tests.support.zoo import Run

SEVERAL = 8
"""How many steps one call of a compiled function does."""


def mean_loss(params: Any, x: Any, y: Any) -> Any:
    """Return the loss of a batch."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x), y)
    return losses.mean()


class Classifier(linen.Module):
    """A network of flax with dropout."""

    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = linen.relu(linen.Dense(8)(x))
        x = linen.Dropout(0.3, deterministic=not train)(x)
        return linen.Dense(2)(x)


def new_state(tx: Any) -> TrainState:
    """Return the state with which a run of flax begins."""
    model = Classifier()
    params = model.init(jax.random.key(0), X[:1], False)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)


@jax.jit
def flax_step(state: Any, key: Any, x: Any, y: Any) -> Any:
    """Return the state after a step, and the loss."""

    def loss_of(params: Any) -> Any:
        out = state.apply_fn({"params": params}, x, True, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

    loss, slopes = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=slopes), loss


@jax.jit
def flax_loss(state: Any) -> Any:
    """Return the loss over all data."""
    out = state.apply_fn({"params": state.params}, X, False)
    return optax.softmax_cross_entropy_with_integer_labels(out, Y).mean()


def train_state(run: Run) -> Any:
    """A TrainState of flax, and a key from which each epoch draws its order."""
    state = new_state(optax.adamw(0.01)).replace(step=jnp.zeros((), jnp.int32))
    with run.session() as session:
        held = session.hold(state=state, key=jax.random.key(7))
        for epoch in session.epochs(run.epochs):
            held.key, shuffle = jax.random.split(held.key)
            for x, y in session.iterate(batches(jax.random.permutation(shuffle, len(X)))):
                held.key, dropout = jax.random.split(held.key)
                with session.step() as step:
                    held.state, loss = flax_step(held.state, dropout, x, y)
                    step.report(loss=loss)
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=float(flax_loss(held.state)))
            run.say(epoch, evaluation.metrics["loss"], compiled_again(flax_step))
    return end_of(state=held.state, key=held.key)


def plain_count(run: Run) -> Any:
    """A TrainState whose step is a number of Python at first, with a key of an old kind."""
    state = new_state(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01)))
    with run.session() as session:
        held = session.hold(state=state)
        key = jax.random.PRNGKey(3)  # folded into, and never replaced
        for epoch in range(run.epochs):
            order = jax.random.permutation(jax.random.fold_in(key, epoch), len(X))
            for x, y in session.iterate(batches(order)):
                with session.step():
                    dropout = jax.random.fold_in(key, held.state.step)
                    held.state, _ = flax_step(held.state, dropout, x, y)
            if not session.resuming:
                run.say(epoch, float(flax_loss(held.state)), int(held.state.step))
    return end_of(state=held.state)


def accumulating(run: Run) -> Any:
    """optax.MultiSteps around a rate that the loop changes in the optimizer's state."""
    inner = optax.inject_hyperparams(optax.adam)(learning_rate=0.02)
    tx = optax.MultiSteps(inner, every_k_schedule=2)
    schedule = optax.exponential_decay(0.02, 2, 0.5)
    params = dense(jax.random.key(1), 6, 8, 2)

    @jax.jit
    def train(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        slopes = jax.grad(mean_loss)(params, x, y)
        updates, opt_state = tx.update(slopes, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    with run.session() as session:
        held = session.hold(params=params, opt_state=tx.init(params))
        for epoch in session.epochs(run.epochs):
            inside = held.opt_state.inner_opt_state.hyperparams
            inside["learning_rate"] = jnp.asarray(schedule(epoch), jnp.float32)
            for x, y in session.iterate(batches(np.random.permutation(len(X)))):
                with session.step():
                    held.params, held.opt_state = train(held.params, held.opt_state, x, y)
            inside = held.opt_state.inner_opt_state.hyperparams
            rate = float(inside["learning_rate"])
            run.say(epoch, rate, float(mean_loss(held.params, X, Y)), compiled_again(train))
    return end_of(params=held.params, opt_state=held.opt_state)


def decaying(run: Run) -> Any:
    """A rate in the state of the optimizer, which the loop multiplies after each pass."""
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.5, momentum=0.9)
    state = new_state(tx)
    state = state.replace(step=jnp.zeros((), jnp.int32))
    with run.session() as session:
        held = session.hold(state=state, key=jax.random.key(1))
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(batches(np.random.permutation(len(X)))):
                held.key, dropout = jax.random.split(held.key)
                with session.step():
                    held.state, _ = flax_step(held.state, dropout, x, y)
            held.state.opt_state.hyperparams["learning_rate"] *= 0.7
            rate = held.state.opt_state.hyperparams["learning_rate"]
            run.say(epoch, float(rate), compiled_again(flax_step))
    return end_of(state=held.state, key=held.key)


def lookahead(run: Run) -> Any:
    """optax.lookahead, with fast and slow weights."""
    tx = optax.lookahead(optax.sgd(0.3), sync_period=3, slow_step_size=0.5)

    @jax.jit
    def train(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        slopes = jax.grad(mean_loss)(params.fast, x, y)
        updates, opt_state = tx.update(slopes, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    with run.session() as session:
        params = optax.LookaheadParams.init_synced(dense(jax.random.key(2), 6, 2))
        held = session.hold(params=params, opt_state=tx.init(params))
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(batches(np.random.permutation(len(X)))):
                with session.step():
                    held.params, held.opt_state = train(held.params, held.opt_state, x, y)
            loss = float(mean_loss(held.params.slow, X, Y))
            run.say(epoch, loss, compiled_again(train))
    return end_of(params=held.params, opt_state=held.opt_state)


def lbfgs(run: Run) -> Any:
    """optax.lbfgs with its line search, whose state has weak leaves."""
    tx = optax.lbfgs(memory_size=3)

    @jax.jit
    def train(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        loss_of = partial(mean_loss, x=x, y=y)
        value, slopes = optax.value_and_grad_from_state(loss_of)(params, state=opt_state)
        updates, opt_state = tx.update(
            slopes, opt_state, params, value=value, grad=slopes, value_fn=loss_of
        )
        return optax.apply_updates(params, updates), opt_state

    with run.session() as session:
        params = dense(jax.random.key(3), 6, 2)
        state = session.track(state={"params": params, "opt_state": tx.init(params)})
        forms = 1 if session.global_step else 2
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(batches(range(len(X)))):
                with session.step():
                    new = train(state["params"], state["opt_state"], x, y)
                    state["params"], state["opt_state"] = new
            loss = float(mean_loss(state["params"], X, Y))
            run.say(epoch, loss, compiled_again(train, forms))
    return end_of(state=state)


def scanned(run: Run) -> Any:
    """Eight steps in one call, with a key among what they carry."""
    tx = optax.adam(0.01)

    def one(carried: Any, _: Any) -> Any:
        params, opt_state, key = carried
        key, draw = jax.random.split(key)
        rows = jax.random.randint(draw, (4,), 0, len(X))
        loss, slopes = jax.value_and_grad(mean_loss)(
            params, jnp.asarray(X)[rows], jnp.asarray(Y)[rows]
        )
        updates, opt_state = tx.update(slopes, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, key), loss

    @jax.jit
    def train(carried: Any) -> Any:
        return jax.lax.scan(one, carried, length=SEVERAL)

    with run.session() as session:
        params = dense(jax.random.key(4), 6, 8, 2)
        carried = params, tx.init(params), jax.random.key(5, impl="rbg")
        held = session.hold(carried=carried, losses=jnp.zeros(SEVERAL))
        for epoch in session.epochs(run.epochs):
            for _ in session.iterate(range(STEPS)):
                with session.step(increment=SEVERAL):
                    held.carried, held.losses = train(held.carried)
            run.say(epoch, held.losses.tolist(), compiled_again(train))
    return end_of(carried=held.carried, losses=held.losses)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Halves:
    """Weights in half precision, and numbers of two kinds beside each other."""

    w: Any
    b: Any
    scale: Any
    rate: float
    count: int


@jax.jit
def halves_slopes(net: Halves, x: Any, y: Any) -> Any:
    """Return the slopes of the weights of a linear model."""

    def loss_of(w: Any, b: Any) -> Any:
        out = jnp.asarray(x, jnp.bfloat16) @ w * net.scale + b
        return jnp.square(out - y).mean()

    return jax.grad(loss_of, argnums=(0, 1))(net.w, net.b)


def halves(run: Run) -> Any:
    """A dataclass with bfloat16, a weak array and a float, and an update of its own."""
    w = jax.random.normal(jax.random.key(6), (6,), jnp.bfloat16)
    net = Halves(w, jnp.zeros(()), jnp.asarray(0.1), 0.1, 0)
    assert net.scale.weak_type
    with run.session() as session:
        held = session.hold(net=net)
        for epoch in session.epochs(run.epochs):
            for x, y in session.iterate(batches(np.random.permutation(len(X)))):
                with session.step():
                    net = held.net
                    w_slope, b_slope = halves_slopes(net, x, y)
                    held.net = Halves(
                        net.w - net.scale * w_slope,
                        net.b - net.rate * b_slope,
                        net.scale * 0.99,
                        net.rate * 0.97,
                        net.count + 1,
                    )
            words = float(held.net.scale), held.net.rate, held.net.count
            run.say(epoch, *words, compiled_again(halves_slopes))
    return end_of(net=held.net)


def donating(run: Run) -> Any:
    """The old state is donated to the new one."""
    tx = optax.adamw(0.01)

    @partial(jax.jit, donate_argnums=0)
    def train(state: Any, x: Any, y: Any) -> Any:
        loss, slopes = jax.value_and_grad(mean_loss)(state["params"], x, y)
        updates, opt_state = tx.update(slopes, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        key, _ = jax.random.split(state["key"])
        return {"params": params, "opt_state": opt_state, "key": key}, loss

    with run.session() as session:
        params = dense(jax.random.key(7), 6, 8, 2)
        state = {"params": params, "opt_state": tx.init(params), "key": jax.random.key(8)}
        held = session.hold(state=state)
        for epoch in session.epochs(run.epochs):
            for _, (x, y) in session.enumerate(batches(np.random.permutation(len(X)))):
                with session.step() as step:
                    before = held.state["params"]["layer0"]["w"]
                    held.state, loss = train(held.state, x, y)
                    step.report(loss=loss)
                assert before.is_deleted()
            loss = float(mean_loss(held.state["params"], X, Y))
            run.say(epoch, loss, compiled_again(train))
    return end_of(state=held.state)


@jax.jit
def q_step(params: Any, target: Any, batch: Any) -> Any:
    """Return the parameters after a step of Q-learning."""
    seen, actions, rewards, then = batch
    best = rewards + 0.9 * logits_of(target, then).max(1)

    def loss_of(params: Any) -> Any:
        values = jnp.take_along_axis(logits_of(params, seen), actions[:, None], 1)[:, 0]
        return jnp.square(values - best).mean()

    return jax.tree.map(lambda p, g: p - 0.05 * g, params, jax.grad(loss_of)(params))


class Networks(NamedTuple):
    """A network, and the one that it follows."""

    params: Any
    target: Any


def replaying(run: Run) -> Any:
    """Q-learning: a replay buffer, a policy that draws, and a target that follows."""
    params = dense(jax.random.key(9), 3, 8, 2)
    with run.session() as session:
        held = session.hold(
            networks=Networks(params, params), place=np.zeros(3, np.float32)
        )
        tracked = session.track(
            buffer=deque(maxlen=12), draw=random.Random(5), policy={"epsilon": 1.0}
        )
        buffer, draw, policy = tracked.values()
        for epoch in session.epochs(run.epochs):
            held.place = np.zeros(3, np.float32)
            for number in session.iterate(range(STEPS)):
                params, target = held.networks
                with session.step() as step:
                    if draw.random() < policy["epsilon"]:
                        action = draw.randrange(2)
                    else:
                        action = int(logits_of(params, held.place[None]).argmax())
                    then = held.place + np.float32(action - 0.5) * X[number, :3]
                    reward = float(-np.abs(then).sum())
                    buffer.append((held.place, action, reward, then))
                    held.place = then
                    chosen = [draw.choice(buffer) for _ in range(4)]
                    batch = [np.asarray(part) for part in zip(*chosen, strict=True)]
                    batch[2] = batch[2].astype(np.float32)
                    held.networks = Networks(q_step(params, target, batch), target)
                    step.report(reward=reward)
                policy["epsilon"] *= 0.9
                if session.global_step % 7 == 0:
                    held.networks = held.networks._replace(target=held.networks.params)
            run.say(epoch, policy["epsilon"], len(buffer), compiled_again(q_step))
    return end_of(
        networks=held.networks,
        place=held.place,
        buffer=[*buffer],
        draw=draw.getstate()[1],
        policy=policy,
    )


TRAININGS: dict[str, Callable[[Run], Any]] = {
    each.__name__: each
    for each in (
        train_state,
        plain_count,
        accumulating,
        decaying,
        lookahead,
        lbfgs,
        scanned,
        halves,
        donating,
        replaying,
    )
}
