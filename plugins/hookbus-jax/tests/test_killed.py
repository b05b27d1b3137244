"""A run on JAX, killed at any moment, ends as if nothing had been.

Each run is a process of its own: XLA has threads, so one that has it cannot fork.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hookbus import latest_checkpoint
from tests.support.profiles import cases

SCRIPT = """
import hashlib, sys

import jax
import jax.numpy as jnp
import numpy as np
from hookbus_jax import JaxGraph

from hookbus import Config, MonitoredTrainingSession

KIND, DIRECTORY = sys.argv[1:]
START = {
    "params": {"w": jnp.ones((16, 4)), "b": jnp.zeros(4, jnp.bfloat16)},
    "mean": {"w": jnp.zeros((16, 4)), "b": jnp.zeros(4, jnp.bfloat16)},
    "key": jax.random.key(3),
    "raw": jax.random.PRNGKey(4),
}


def batches():
    return iter(np.random.default_rng(5).normal(size=(30, 8, 16)).astype(np.float32))


def updated(params, mean, key, raw, x):
    key, noise = jax.random.split(key)
    raw, mask = jax.random.split(raw)
    x = x * jax.random.bernoulli(mask, 0.8, x.shape) + jax.random.normal(noise, x.shape)

    def loss_of(params):
        return jnp.square(jnp.tanh(x @ params["w"] + params["b"]) - 0.3).mean()

    loss, slopes = jax.value_and_grad(loss_of)(params)
    mean = jax.tree.map(lambda m, g: (0.9 * m + g).astype(m.dtype), mean, slopes)
    params = jax.tree.map(lambda p, m: (p - 0.05 * m).astype(p.dtype), params, mean)
    return {"params": params, "mean": mean, "key": key, "raw": raw}, loss


def digest(state):
    state = {**state, "key": jax.random.key_data(state["key"])}
    leaves = map(np.asarray, jax.tree.leaves(state))
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


config = Config.from_environment({"HOOKBUS_ADDOPTS": "-p no:progress -p nan-tensor"})
options = {"save_checkpoint_steps": 2, "config": config}
if KIND == "plain":
    state, step = START, jax.jit(updated)
    for x in batches():
        state, _ = step(**state, x=x)
elif KIND == "loop":
    state, compiled = dict(START), jax.jit(updated)
    with MonitoredTrainingSession(checkpoint_dir=DIRECTORY, **options) as session:
        session.track(state=state)
        for x in session.iterate(batches()):
            with session.step() as step:
                new, loss = compiled(**state, x=x)
                state.update(new)
                step.report(loss=loss)
else:
    graph = JaxGraph(donate=KIND == "donating")
    for name, value in START.items():
        graph.variable(name, value)
    graph.input("x", batches)

    @graph.train_op(updates=list(START), outputs="loss")
    def train(params, mean, key, raw, x):
        new, loss = updated(params, mean, key, raw, x)
        return new, {"loss": loss}

    with MonitoredTrainingSession(graph, checkpoint_dir=DIRECTORY, **options) as session:
        for _ in session.loop():
            pass
        # No hook is called: a resumed run may have nothing left to do, and then no
        # loss for the hooks either.
        state = session.run(dict(zip(START, START)), kind="aux")
print(digest(state))
"""


class Child:
    """A process that trains and prints a digest of all bits."""

    def __init__(self, kind: str, directory: Path) -> None:
        script = directory.parent / "train.py"
        script.write_text(SCRIPT)
        self._process = subprocess.Popen(
            [sys.executable, str(script), kind, str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_behind(self, step: int, directory: Path, after: float) -> None:
        """Kill it some seconds after it has saved a step."""
        while self._process.poll() is None and newest_step(directory) < step:
            time.sleep(0.001)
        time.sleep(after)
        self._process.kill()
        self._process.communicate()

    def result(self) -> str:
        """Wait for its digest."""
        out, told = self._process.communicate(timeout=200)
        assert self._process.returncode == 0, told
        return out.strip()


def newest_step(directory: Path) -> int:
    """Return the step of the newest checkpoint, -1 without one; read no content."""
    names = (path.name.removeprefix("ckpt-") for path in directory.glob("ckpt-*"))
    return max((int(name) for name in names if name.isdigit()), default=-1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return the digest of a run without hookbus."""
    return Child("plain", tmp_path_factory.mktemp("plain") / "none").result()


@pytest.mark.parametrize("kind", ["loop", "graph", "donating"])
def test_killed_at_random_moments_it_ends_like_one_that_ran_through(kind, plain, tmp_path):
    """Bit for bit: parameters, bfloat16 ones too, means, and both kinds of keys.

    One of the moments is that after the last save, where nothing is left to do.
    """
    draw, killed = random.Random(kind), 0
    while killed < cases(1, 12):
        directory = tmp_path / str(killed) / "runs"
        directory.parent.mkdir(exist_ok=True)
        first = Child(kind, directory)
        first.kill_behind(draw.randrange(0, 31, 2), directory, draw.uniform(0, 0.01))
        newest = latest_checkpoint(directory)
        if newest is not None and newest.ended is not None:
            draw = random.Random(f"{kind} {newest}")  # it was over; train elsewhere
            directory.rename(tmp_path / f"over-{draw.random()}")
            continue
        killed += 1
        assert Child(kind, directory).result() == plain


@pytest.mark.parametrize("kind", ["loop", "graph", "donating"])
def test_a_training_with_hooks_is_the_same_training(kind, plain, tmp_path):
    assert Child(kind, tmp_path / "runs").result() == plain
