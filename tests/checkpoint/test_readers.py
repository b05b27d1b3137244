"""Those who read checkpoints while another process trains, saves and removes them.

The trainer keeps one checkpoint and saves after each run, every few milliseconds.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import hookbus
from hookbus import (
    ChiefSessionCreator,
    Config,
    Estimator,
    EstimatorSpec,
    Graph,
    MonitoredSession,
    RunConfig,
    SingularMonitoredSession,
    latest_checkpoint,
)
from hookbus.checkpoint.reader import load_variables, read_checkpoint, read_source
from hookbus.testing import run_steps
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)

TRAINER = """
import sys
import threading

import numpy as np

import hookbus
from hookbus_checkpoint_saver import CheckpointSaverHook

directory, fetch = sys.argv[1:]
graph = hookbus.Graph()
graph.variable("w", np.zeros(4))
graph.variable("runs", 0)
graph.train_op(lambda w: w + 1, name="train", updates="w")
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()


class SaveEachRun(hookbus.SessionRunHook):
    runs = 0

    def after_run(self, run_context):
        self.runs += 1
        run_context.assign({"runs": self.runs})
        run_context.request_save("each run")


saver = CheckpointSaverHook(directory, save_steps=1000, max_to_keep=1)
config = hookbus.Config(autoload=False)
hooks = [saver, SaveEachRun()]
with hookbus.MonitoredSession(graph, hooks=hooks, config=config) as session:
    session.run("train")
    print("ready", flush=True)
    while not over.is_set():
        session.run(fetch)
"""


def beside_a_trainer(directory, fetch, read, times):
    """Read so often while a process trains; check what it leaves."""
    command = [sys.executable, "-c", TRAINER, str(directory), fetch]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as trainer:
        try:
            assert trainer.stdout.readline() == b"ready\n"
            for _ in range(times):
                read(directory)
            assert trainer.poll() is None
        finally:
            trainer.stdin.close()
    assert trainer.returncode == 0
    names = [path.name for path in directory.iterdir() if path.name.startswith("ckpt")]
    assert names == [f"ckpt-{load_variables(directory)['global_step']}"]


def graph():
    """Return the parts of the trainer's graph that an evaluation needs."""
    graph = Graph()
    graph.variable("w", np.zeros(4))
    return graph


def model_fn(features, mode):
    """Return a model with the variables of the trainer."""
    features.graph.variable("w", np.zeros(4))
    features.graph.op(lambda w, features: float(w[0]), name="loss")
    features.graph.op(lambda w, features: w, name="guess")
    return EstimatorSpec(mode, loss="loss", predictions={"w": "guess"})


def estimator(directory):
    """Return an estimator that reads in the directory of the trainer."""
    return Estimator(model_fn, directory, RunConfig())


def input_fn():
    return [np.zeros(1)]


def latest(directory):
    return latest_checkpoint(directory).global_step


def named(directory):
    return read_checkpoint(latest_checkpoint(directory).path).manifest.global_step


def variables(directory):
    found = load_variables(directory)
    assert found["w"].tolist() == [found["global_step"]] * 4
    return found["global_step"]


def variable(directory):
    return estimator(directory).get_variable_value("global_step")


def evaluation(directory):
    creator = ChiefSessionCreator(graph(), checkpoint_dir=directory)
    with MonitoredSession(session_creator=creator, config=OFF, kind="eval") as session:
        return session.run("w")[0]


def singular(directory):
    with SingularMonitoredSession(
        graph(), checkpoint_dir=directory, config=OFF, kind="eval"
    ) as session:
        return session.run("w")[0]


def evaluate(directory):
    return estimator(directory).evaluate(input_fn)["global_step"]


def predict(directory):
    first, *_ = estimator(directory).predict(input_fn)
    return first["w"]


def repeatedly(directory):
    return hookbus.evaluation.evaluate_repeatedly(
        directory,
        graph=graph(),
        final_ops="w",
        eval_interval_secs=0,
        max_number_of_evaluations=1,
        config=OFF,
    )[0]


READERS = [latest, variables, variable, evaluation, singular, evaluate, predict, repeatedly]


@pytest.mark.long
def test_readers_finish_beside_a_training_that_keeps_one(tmp_path):
    """Each gets a whole checkpoint, never an older one than before, and renames none."""
    last = 0

    def read(directory):
        nonlocal last
        for reader in READERS:
            step = reader(directory)
            assert step >= last, reader
            last = step

    beside_a_trainer(tmp_path / "runs", "train", read, cases(5, 2000 // len(READERS)))


@pytest.mark.long
def test_readers_finish_while_a_checkpoint_is_replaced(tmp_path):
    """A checkpoint of the same step takes its place: one of the two is there, always."""

    def read(directory):
        assert [reader(directory) for reader in (*READERS, named)] == [1] * 9

    beside_a_trainer(tmp_path / "runs", "w", read, cases(5, 2000 // len(READERS)))


@pytest.mark.parametrize("read", [read_checkpoint, read_source, load_variables])
def test_the_path_of_a_checkpoint_that_was_replaced_leads_to_the_new_one(read, tmp_path):
    """A reader that found it in between may look again later."""
    run_steps(checkpoint_dir=tmp_path, steps=1)
    path = latest_checkpoint(tmp_path).path
    replaced = path.with_name(f"{path.name}.old")
    assert read(replaced)
    assert read(path.rename(replaced))
    assert read(path)
