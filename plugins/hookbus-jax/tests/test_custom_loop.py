"""A custom loop with JAX arrays: what it tracks is a dict in which it replaces arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hookbus import MonitoredTrainingSession, SessionRunArgs, SessionRunHook, UsageError
from hookbus.errors import CheckpointMismatchError
from hookbus.evaluating import swapped
from hookbus.testing.scenarios import Cut
from tests.support.kinds import QUIET


@jax.jit
def train(params, key, batch):
    key, noise = jax.random.split(key)

    def loss_of(params):
        return ((params["layers"][0] * batch).sum() - params["bias"]) ** 2

    loss, slopes = jax.value_and_grad(loss_of)(params)
    noisy = jax.tree.map(
        lambda p, g: p - 0.1 * g + 0.01 * jax.random.normal(noise, p.shape, p.dtype),
        params,
        slopes,
    )
    return noisy, key, loss


def new_state():
    return {
        "params": {
            "layers": [jnp.ones(3), (jnp.ones(1, jnp.bfloat16),)],
            "bias": jnp.array(0.5),
        },
        "optimizer": (Moments({"w": jnp.zeros(2)}, jnp.zeros((), jnp.int32)), ()),
        "key": jax.random.key(4),
        "raw": jax.random.PRNGKey(5),
        "epoch": 0,
    }


class Moments(NamedTuple):
    """A part of an optimizer's state, as optax has it."""

    mean: Any
    count: Any


def run(directory, steps, state=None, hooks=(), cut=None):
    state = new_state() if state is None else state
    with MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, config=QUIET, save_checkpoint_steps=2
    ) as session:
        session.track(state=state)
        for batch in session.iterate(range(steps)):
            with session.step() as step:
                new = train(state["params"], state["key"], float(batch))
                state["params"], state["key"], loss = new
                moments, _ = state["optimizer"]
                state["optimizer"] = moments._replace(count=moments.count + 1), ()
                step.report(loss=loss, params=lambda: state["params"])
            if session.global_step == cut:
                raise Cut
    return state


def bits(state):
    data = {**state, "key": jax.random.key_data(state["key"])}
    return [
        (str(jnp.asarray(x).dtype), np.asarray(x).tobytes()) for x in jax.tree.leaves(data)
    ]


def test_a_resumed_loop_ends_like_one_that_ran_through(tmp_path):
    """Each leaf is replaced in its dict or list, and the dict stays the same object."""
    whole = run(tmp_path / "whole", 6)
    with pytest.raises(Cut):
        run(tmp_path / "cut", 6, cut=5)
    state = new_state()
    containers = state["params"], state["params"]["layers"]
    seen = []

    class First(SessionRunHook):
        def before_run(self, run_context):
            seen.append((state["params"] is containers[0], state["params"]["layers"]))

    run(tmp_path / "cut", 6, state, [First()])
    assert bits(state) == bits(whole)
    assert len(seen) == 2
    assert int(state["optimizer"][0].count) == 6
    assert seen[0][0]
    assert seen[0][1] is containers[1]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state["params"]))


def test_hooks_get_what_the_loop_reports_as_numpy(tmp_path):
    seen = []

    class Watch(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs(["loss", "params"])

        def after_run(self, run_context, run_values):
            seen.extend(jax.tree.leaves(run_values.results))

    run(tmp_path, 1, hooks=[Watch()])
    assert {type(value) for value in seen} == {np.float32, np.ndarray}
    assert {value.dtype for value in seen} == {np.dtype(np.float32)}


def test_a_bare_array_cannot_be_tracked():
    with MonitoredTrainingSession(config=QUIET) as session:
        for thing in (jnp.ones(2), jax.random.key(0)):
            with pytest.raises(UsageError) as caught:
                session.track(w=thing)
            assert str(caught.value) == (
                "cannot track 'w': a jax.Array cannot change, so it cannot be restored "
                "in place. Hold it, and replace it there: held = session.hold(w=w); "
                "held.w = ..."
            )


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (
            "raw",
            jnp.zeros(3),
            "'state.raw' is an array of shape \\(3,\\) and dtype",
        ),
        ("raw", jnp.zeros(2), "of shape \\(2,\\) and dtype float32 here and an array of"),
        ("key", jax.random.key(0, impl="rbg"), "dtype key<rbg> here and an array of shape"),
        ("new", jnp.zeros(2), "'state.new' is not in the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_state_is_refused(key, value, why, tmp_path):
    run(tmp_path, 1)
    with pytest.raises(CheckpointMismatchError, match=why):
        run(tmp_path, 1, {**new_state(), key: value})


def test_restored_arrays_are_where_those_of_the_loop_are(tmp_path):
    """Spread over devices, or on another one; what was put nowhere stays free to move."""
    devices = jax.devices()
    spread = NamedSharding(Mesh(devices, "d"), PartitionSpec("d"))
    for step in range(2):
        state = {
            "spread": jax.device_put(jnp.full(4, 1.0), spread),
            "second": [jax.device_put(jnp.full(2, 2.0), devices[1])],
            "keys": jax.device_put(jax.random.split(jax.random.key(0), 2), devices[1]),
            "free": jnp.full(2, 3.0),
        }
        first = dict(state)
        with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET) as session:
            session.track(state=state)
            assert (state["spread"] is first["spread"]) == (step == 0)
            assert state["spread"].sharding == spread
            assert state["second"][0].devices() == {devices[1]}
            assert state["keys"].devices() == {devices[1]}
            assert not state["free"].committed
            with session.step():
                state["spread"] = state["spread"] + 1
    assert state["spread"].tolist() == [3.0] * 4


@pytest.mark.parametrize("given", [jnp.full(2, 9.0), np.full(2, 9.0)])
def test_a_hook_assigns_arrays_and_swaps_them(given):
    """The dict gets a new array of the dtype of the old one, which stays as it was."""
    state = {"w": jnp.zeros(2, jnp.float32), "inside": [jnp.ones(1)]}
    old, seen = state["w"], []

    class Assigns(SessionRunHook):
        def after_run(self, run_context):
            with swapped(run_context.session, {"state.inside.0": np.full(1, 5.0)}):
                seen.append(state["inside"][0].tolist())
            run_context.assign({"state.w": given})

    with MonitoredTrainingSession(hooks=[Assigns()], config=QUIET) as session:
        session.track(state=state)
        with session.step():
            pass
    assert (seen, state["inside"][0].tolist()) == ([[5.0]], [1.0])
    assert isinstance(state["w"], jax.Array)
    assert (state["w"].tolist(), state["w"].dtype) == ([9.0, 9.0], jnp.float32)
    assert old.tolist() == [0.0, 0.0]


def test_a_traced_array_that_is_reported_is_an_error(tmp_path):
    """A step may report what a compiled function returns, and not what is inside it."""

    class Asks(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("inner")

    def loop():
        session = MonitoredTrainingSession(hooks=[Asks()], config=QUIET)
        with session, session.step() as step:

            @jax.jit
            def loss(x):
                step.report(inner=x * 2)
                return x

            loss(jnp.ones(2))

    with pytest.raises(UsageError, match="a hook asks for an array that is traced: it has"):
        loop()
