"""A run of a TensorFlow graph, killed at any moment, ends as if nothing had been.

Each run is a process of its own: TensorFlow has threads, so one that has it cannot
fork.
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

import numpy as np
import tensorflow as tf
from hookbus_tensorflow import TFGraph, train

from hookbus import Config, MonitoredTrainingSession

KIND, DIRECTORY = sys.argv[1:]
STEPS = 30
v1 = tf.compat.v1
DATA = np.random.default_rng(5).normal(size=(STEPS, 8, 16)).astype(np.float32)

step = v1.train.get_or_create_global_step
with tf.Graph().as_default() as graph:
    rows = tf.data.Dataset.from_tensor_slices(DATA).shuffle(7, seed=3)
    x = v1.data.make_one_shot_iterator(rows).get_next()
    start = tf.random.stateless_normal([16, 4], [1, 2])
    w = v1.get_variable("w", initializer=start)
    b = v1.get_variable("b", initializer=tf.zeros([4], tf.float64), use_resource=False)
    number = tf.cast(step(), tf.int32)
    kept = tf.random.stateless_uniform([8, 16], tf.stack([number, 3])) < 0.8
    guess = tf.tanh(tf.matmul(x * tf.cast(kept, tf.float32), w) + tf.cast(b, tf.float32))
    loss = tf.reduce_mean(tf.square(guess - 0.3), name="loss")
    rate = v1.train.exponential_decay(0.05, step(), 10, 0.7)
    adam = v1.train.AdamOptimizer(rate).minimize(loss, global_step=step(), name="adam")
    mean = tf.train.ExponentialMovingAverage(0.9, step())
    with tf.control_dependencies([adam]):
        op = tf.group(mean.apply([w]), name="train")
    saved = {v.op.name: v for v in v1.global_variables()}
    one = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    hooks = [v1.train.NanTensorHook("loss:0"), v1.train.StepCounterHook(every_n_steps=4)]
    config = Config.from_environment({"HOOKBUS_ADDOPTS": "-p no:progress -p nan-tensor"})
    if KIND == "tensorflow":
        with v1.train.MonitoredSession(v1.train.ChiefSessionCreator(config=one)) as session:
            for _ in range(STEPS):
                session.run(op)
            values = session.run(saved)
    elif KIND == "drop-in":
        with train.MonitoredTrainingSession(
            checkpoint_dir=DIRECTORY, config=one, hooks=hooks, save_checkpoint_steps=2,
            hookbus_config=config,
        ) as session:
            raw = lambda step_context: step_context.session
            for _ in range(STEPS - session.run_step_fn(raw).run(step())):
                session.run(op)
            values = session.run_step_fn(raw).run(saved)
    else:
        ours = TFGraph(train_op=op, session_config=one)
        with MonitoredTrainingSession(
            ours, checkpoint_dir=DIRECTORY, hooks=hooks, save_checkpoint_steps=2,
            config=config,
        ) as session:
            for _ in session.loop():
                pass
            values = session.run(saved, kind="aux")
found = hashlib.sha256()
for name in sorted(values):
    found.update(name.encode() + np.asarray(values[name]).tobytes())
print(int(values["global_step"]), found.hexdigest())
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

    def kill_when(self, checkpoints: int, directory: Path, after: float) -> None:
        """Kill it some seconds after it has so many checkpoints."""
        while (
            self._process.poll() is None and len([*directory.glob("ckpt-*")]) < checkpoints
        ):
            time.sleep(0.001)
        time.sleep(after)
        self._process.kill()
        self._process.communicate()

    def result(self) -> str:
        """Wait for its digest."""
        out, error = self._process.communicate(timeout=200)
        assert self._process.returncode == 0, error
        return out.strip()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return the digest of a run in TensorFlow's own session."""
    return Child("tensorflow", tmp_path_factory.mktemp("plain") / "none").result()


@pytest.mark.parametrize("kind", ["loop", "drop-in"])
def test_killed_at_random_moments_it_ends_like_one_that_ran_through(kind, plain, tmp_path):
    """Bit for bit: variables of both kinds, slots, averages, and the rest of the input."""
    assert plain.startswith("30 ")
    draw, killed = random.Random(kind), 0
    while killed < cases(1, 6):
        directory = tmp_path / str(killed) / "runs"
        directory.parent.mkdir(exist_ok=True)
        first = Child(kind, directory)
        first.kill_when(draw.randrange(1, 5), directory, draw.uniform(0, 0.03))
        newest = latest_checkpoint(directory)
        if newest is not None and newest.ended is not None:
            draw = random.Random(f"{kind} {newest}")  # it was over; train elsewhere
            directory.rename(tmp_path / f"over-{draw.random()}")
            continue
        killed += 1
        assert Child(kind, directory).result() == plain
