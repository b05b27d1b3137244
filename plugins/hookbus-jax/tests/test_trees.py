"""Pytrees of any library are held and tracked, and come back leaf by leaf as they were."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_jax.library import JaxLibrary

from hookbus import (
    SessionRunHook,
    UsageError,
    hookimpl,
    load_tracked,
)
from hookbus.backend import Packed
from hookbus.errors import CheckpointError, CheckpointMismatchError
from tests.support.saving import saving
from tests.support.watching import lines as lines

flax = pytest.importorskip("flax")
eqx = pytest.importorskip("equinox")
optax = pytest.importorskip("optax")
nnx = pytest.importorskip("flax.nnx")
from flax.training.train_state import TrainState  # noqa: E402


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    """A dataclass of a program's own, with a static field."""

    w: Any
    scale: float
    name: str = dataclasses.field(metadata={"static": True}, default="pair")


def new_train_state():
    params = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.bfloat16)}}
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=0.1)
    return TrainState.create(apply_fn=None, params=params, tx=tx)


def grown(tree):
    """Return a tree with one more in each number; keys are split."""

    def one(leaf):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.fold_in(leaf, 1) if not leaf.shape else leaf[::-1]
        return leaf + 1 if isinstance(leaf, jax.Array | int | float) else leaf

    return jax.tree.map(one, tree)


TREES = {
    "TrainState": new_train_state,
    "FrozenDict": lambda: flax.core.freeze({"a": {"b.c": jnp.ones(2)}, "n": 3}),
    "dataclass": lambda: Pair(jnp.ones(2, jnp.bfloat16), 0.5),
    "equinox": lambda: eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)),
    "optax": lambda: optax.chain(optax.clip(1.0), optax.adam(0.1)).init(jnp.ones(2)),
    "array": lambda: jnp.arange(3),
    "key": lambda: jax.random.key(7, impl="rbg"),
    "keys": lambda: jax.random.split(jax.random.key(7), 3),
    "weak": lambda: {
        "weak": jnp.asarray(0.1),
        "full": jnp.full(2, 3),
        "strong": jnp.ones(1),
    },
    "tuple": lambda: (jnp.ones(1), [jnp.zeros(0), (np.arange(2), 4)], None),
}


def train(folder, make, steps=2):
    """Hold a tree, and let it grow in each step; return it."""
    with saving(folder) as session:
        held = session.hold(state=make())
        for _ in session.iterate(range(steps)):
            with session.step():
                held.state = grown(held.state)
    return held.state


def bits(tree):
    """Return the form and the bits of each leaf, and the structure."""
    found, structure = jax.tree_util.tree_flatten(tree)
    return structure, [bits_of(leaf) for leaf in found]


def bits_of(leaf):
    if not hasattr(leaf, "dtype"):
        return type(leaf), leaf
    kind, weak = str(leaf.dtype), getattr(leaf, "weak_type", None)
    if kind.startswith("key"):
        leaf = jax.random.key_data(leaf)
    committed = getattr(leaf, "committed", None)
    return type(leaf), kind, weak, committed, leaf.shape, np.asarray(leaf).tobytes()


@pytest.mark.parametrize("make", TREES.values(), ids=TREES)
def test_a_tree_comes_back_as_it_was(make, tmp_path):
    """Its class, its static fields, each dtype, weak type and Python number."""
    first = make()
    expected = train(tmp_path / "whole", lambda: first, 4)
    train(tmp_path / "cut", lambda: first, 2)
    assert bits(train(tmp_path / "cut", lambda: first, 4)) == bits(expected)
    read = load_tracked(tmp_path / "cut", "state", like=first)
    assert bits(read) == bits(expected)
    assert type(read) is type(first)


def test_leaves_have_the_names_of_their_fields(tmp_path):
    """As in the error messages, and as hooks fetch and assign them."""
    train(tmp_path, new_train_state)
    with saving(tmp_path) as session:
        session.hold(state=new_train_state())
        assert session.run("state.opt_state.hyperparams.learning_rate") == np.float32(2.1)
    state = load_tracked(tmp_path, "state")
    assert [*state] == ["step", "params", "opt_state"]
    assert state["params"]["dense"]["bias"].dtype == jnp.bfloat16
    assert state["opt_state"]["inner_state"][0]["mu"]["dense"]["kernel"].shape == (2, 3)


def test_track_takes_a_tree_that_is_only_read(tmp_path):
    """A session that evaluates gets the saved one, without holding it."""
    expected = train(tmp_path, lambda: Pair(jnp.ones(2), 0.5))
    with saving(tmp_path) as session:
        state = session.track(state=Pair(jnp.zeros(2), 0.0, "other"))
    assert (bits_of(state.w), state.scale) == (bits_of(expected.w), 2.5)
    assert state.name == "other"  # static fields are the program's


class Net(nnx.Module):
    """A module with variables of several kinds."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(2, 3, rngs=rngs)
        self.layers = nnx.List([nnx.BatchNorm(3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.offset = jnp.ones(1)

    def __call__(self, x: Any) -> Any:
        x = self.dropout(self.layers[0](self.linear(x)))
        return self.layers[1](x) + self.offset


@nnx.jit
def update(net, optimizer, metric, x):
    loss, slopes = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
    optimizer.update(net, slopes)
    metric.update(loss=loss)
    net.offset = net.offset + 1


def train_nnx(folder, steps, seed=0):
    """Train a module in place; return all that is tracked."""
    rngs = nnx.Rngs(seed, params=1, noise=2)
    net = Net(rngs)
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    things = {
        "net": net,
        "opt": optimizer,
        "mean": nnx.metrics.Average("loss"),
        "rngs": rngs,
    }
    with saving(folder) as session:
        assert session.track(**things) == things
        for _ in session.iterate(range(steps)):
            with session.step() as step:
                x = jax.random.normal(rngs.noise(), (4, 2))
                update(net, optimizer, things["mean"], x)
                step.report(kernel=net.linear.kernel.get_value())
    return things


def test_objects_of_nnx_are_restored_in_place(tmp_path):
    """A module, an optimizer, a metric and Rngs; each variable stays the same object."""
    expected = train_nnx(tmp_path / "whole", 5)
    train_nnx(tmp_path / "cut", 3)
    again = train_nnx(tmp_path / "cut", 5, seed=9)
    for name in expected:
        assert bits(nnx.state(again[name])) == bits(nnx.state(expected[name])), name


def test_the_names_in_an_object_of_nnx_are_those_of_its_fields(tmp_path):
    """A variable is its value; a list has indices."""
    train_nnx(tmp_path, 1)
    state = load_tracked(tmp_path, "net")
    assert state["linear"].keys() == {"kernel", "bias"}
    assert state["layers"]["0"]["mean"].shape == (3,)
    assert state["dropout"]["rngs"].keys() == {"count", "key"}
    net = Net(nnx.Rngs(4))
    kernel = net.linear.kernel
    assert load_tracked(tmp_path, "net", like=net) is net
    assert net.linear.kernel is kernel
    assert bits_of(kernel.get_value()) == bits_of(state["linear"]["kernel"])


def test_a_state_of_nnx_can_be_held(tmp_path):
    """As functional programs have it: the graph is static, the state is replaced."""

    def run(steps):
        with saving(tmp_path) as session:
            graph, state = nnx.split(Net(nnx.Rngs(0)))
            held = session.hold(state=state)
            for _ in session.iterate(range(steps)):
                with session.step():
                    held.state = grown(held.state)
        return nnx.merge(graph, held.state)

    run(2)
    assert run(3).offset.tolist() == [4.0]


def test_a_module_that_is_tracked_twice_is_an_error(tmp_path):
    """It names both variables."""
    net = Net(nnx.Rngs(0))
    with saving(tmp_path) as session, pytest.raises(UsageError) as caught:
        session.track(net=net, again={"x": np.zeros(1)}, other=nnx.List([net.linear]))
    assert str(caught.value) == (
        "'other.0.bias' is the same variable as 'net.linear.bias': a module is tracked "
        "twice, or two that share it; track it under one name"
    )


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (
            lambda: eqx.nn.MLP(2, 1, 5, 1, key=jax.random.key(0)),
            r"'state.layers.0.weight' is an array of shape \(5, 2\) and dtype float32 here "
            r"and an array of shape \(4, 2\)",
        ),
        (
            lambda: eqx.nn.MLP(2, 1, 4, 2, key=jax.random.key(0)),
            "'state.layers.2' is not in the checkpoint",
        ),
        (
            lambda: eqx.nn.MLP(2, 1, 4, 1, use_bias=False, key=jax.random.key(0)),
            "'state.layers.0.bias' is None here and an array of shape",
        ),
    ],
)
def test_another_model_than_in_the_checkpoint_is_an_error(now, why, tmp_path):
    """It names the leaf, before anything is put, and so does load_tracked()."""
    train(tmp_path, TREES["equinox"])
    with saving(tmp_path) as session, pytest.raises(CheckpointMismatchError, match=why):
        session.hold(state=now())
    with pytest.raises(CheckpointMismatchError, match=f"does not fit like=: .*{why}"):
        load_tracked(tmp_path, "state", like=now())


@jax.tree_util.register_pytree_with_keys_class
class SameNames:
    """A node whose keys differ, and whose names do not."""

    def tree_flatten_with_keys(self) -> Any:
        keys = (jax.tree_util.DictKey(1), jax.tree_util.DictKey("1"))
        return [(key, jnp.zeros(1)) for key in keys], None

    def tree_flatten(self) -> Any:
        return [jnp.zeros(1)] * 2, None

    @classmethod
    def tree_unflatten(cls, _: Any, __: Any) -> Any:
        return cls()


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (
            lambda: {"model": Pair(jnp.ones(1), jax.nn.relu)},
            "cannot track 'state': 'state.model.scale' is of type custom_jvp",
        ),
        (lambda: (jnp.ones(1), jnp.float32), "'state.1' is the class float32"),
        (
            SameNames,
            r"a SameNames has two parts named '1': \['1'\]; a checkpoint names each",
        ),
    ],
)
def test_what_no_checkpoint_holds_is_named(thing, why, tmp_path):
    """A function outside a module of equinox, a class, two parts of one name."""
    with saving(tmp_path) as session, pytest.raises(UsageError, match=why):
        session.hold(state=thing())


def test_a_traced_or_deleted_array_is_named(tmp_path):
    """By its leaf, when it is tracked, and when it is saved."""
    gone = jnp.ones(2)
    gone.delete()
    with saving(tmp_path) as session:

        @jax.jit
        def traced(x):
            session.hold(state={"x": x})

        with pytest.raises(UsageError, match=r"'state\.x' is traced: it has no value"):
            traced(jnp.ones(1))
        with pytest.raises(UsageError, match=r"'state\.x' was deleted: a function"):
            session.hold(state={"x": gone})

    def run():
        with saving(tmp_path / "deleted") as session:
            held = session.hold(state={"x": jnp.ones(2)})
            with session.step():
                held.state["x"] = gone

    with pytest.raises(
        CheckpointError, match=r"/tracked/state/x.* was deleted: a function"
    ):
        run()


def test_a_state_that_is_not_written_back_is_reported_once(tmp_path, lines):
    """At the second save."""
    with saving(tmp_path, every=2) as session:
        state = {"w": jnp.ones(2), "key": jax.random.key(0)}
        session.track(state=state, key={"key": jax.random.key(1)})
        w = state["w"]
        for _ in session.iterate(range(6)):
            with session.step():
                w = w + 1
    told = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["event"], line["names"], line["steps"]) for line in told] == [
        ("no array of the tracked objects was replaced", "state", 2)
    ]
    assert told[0]["hint"].startswith(
        "held = session.hold(state=state), then held.state = "
    )


def test_what_changes_seldom_beside_others_is_not_reported(tmp_path, lines):
    """A target network, and a key that serves for an epoch."""
    with saving(tmp_path, every=2) as session:
        w, key = jnp.zeros(2), jax.random.key(0)
        held = session.hold(params=w, target=w, key=key)
        for x in session.iterate(range(9)):
            with session.step():
                held.params = held.params + x
                if x == 7:
                    held.target = held.params
    assert not [line for line in lines if line["log_level"] == "warning"]


def test_a_forged_weak_type_makes_a_checkpoint_bad():
    """JAX has none of such a dtype."""
    packed = Packed("weak:bfloat16", (1,), 2, lambda: memoryview(bytes(2)))
    with pytest.raises(CheckpointError, match="JAX has no weak array of dtype bfloat16"):
        JaxLibrary().unpack(packed)


def test_a_pass_that_begins_waits_for_no_key(tmp_path, monkeypatch):
    """Its keys are compared by identity: reading one would wait for it."""
    read, on_host = [], JaxLibrary.on_host
    monkeypatch.setattr(
        JaxLibrary, "on_host", lambda _, values: read.append(values) or on_host(values)
    )
    with saving(tmp_path, every=100) as session:
        held = session.hold(key=jax.random.key(0), count=jnp.asarray(0))
        for _ in session.epochs(2):
            for x in session.iterate(range(3)):
                with session.step():
                    held.key, held.count = jax.random.fold_in(held.key, x), held.count + 1
    assert read == []


class Watches(SessionRunHook):
    """Keeps what it sees before a save, and counts the arrays behind it."""

    @hookimpl
    def veto_save(self, values):
        self.values, self.before = dict(values), len(jax.live_arrays())

    @hookimpl
    def after_save(self):
        self.after = len(jax.live_arrays())


def test_a_save_copies_no_array(tmp_path):
    """It holds the arrays of the loop themselves, which cannot change."""
    hook = Watches()
    with saving(tmp_path, hooks=[hook]) as session:
        held = session.hold(state={"w": jnp.zeros(1000), "low": jnp.ones(9, jnp.bfloat16)})
        for _ in range(3):
            with session.step():
                held.state = grown(held.state)
    assert hook.values["state.w"] is held.state["w"]
    assert hook.values["state.low"] is held.state["low"]
    assert hook.after <= hook.before
