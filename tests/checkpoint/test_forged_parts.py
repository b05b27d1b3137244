"""Forges each part of real checkpoints: the one before is used, or an error names it.

Nothing else may happen, whatever stands in a checkpoint whose hashes are right.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_weight_average import WeightAverageHook

import hookbus
from hookbus import CheckpointError, Config, MonitoredTrainingSession, UsageError
from tests.support.forging import forge_manifest, forge_state, mutate, places
from tests.support.profiles import cases

LAST = 5
QUIET = {
    "save_checkpoint_steps": 1,
    "save_summaries_steps": None,
    "log_step_count_steps": None,
    "config": Config(autoload=False),
}


def hooks(rate: str) -> list[Any]:
    """Return hooks that keep a state; *rate* is the variable with the learning rate."""
    return [
        EarlyStoppingHook("loss", patience=50, run_every_secs=None, run_every_steps=1),
        SpikeRollbackHook("loss"),
        StopAtStepHook(num_steps=50),
        LoggingTensorHook("loss", every_n_iter=2),
        ReduceLROnPlateauHook("loss", variable=rate),
        WeightAverageHook(),
    ]


def train_graph(directory: Path, last: int) -> int:
    """Train a graph with inputs that draw, and hooks; return the step that it began at."""
    graph = hookbus.Graph()

    def shuffled() -> Any:
        order = [*range(20)]
        random.shuffle(order)
        return iter(order)

    graph.input("batch", shuffled)
    graph.input("noise", lambda: (np.random.random() for _ in range(200)))
    graph.variable("w", np.zeros(4))
    graph.variable("lr", 0.5)
    graph.op(lambda w: float(w.sum()), name="loss")

    @graph.train_op(updates="w")
    def train(w: Any, batch: Any, noise: Any) -> Any:
        return w + batch + noise

    evaluator = InMemoryEvaluatorHook(lambda session: {"loss": 1.0}, every_n_iter=2)
    with MonitoredTrainingSession(
        graph, checkpoint_dir=directory, hooks=[*hooks("lr"), evaluator], **QUIET
    ) as session:
        session.record({"rate": 0.5, "layers": [1, 2]})
        before = session.global_step
        while session.global_step < last and not session.should_stop():
            session.run(["train", "loss"])
    return before


def train_loop(directory: Path, last: int) -> int:
    """Train a loop with epochs and passes inside passes; return where it began."""
    state = {"w": np.zeros(3), "lr": np.array(0.5), "count": 0, "names": ("a", [1])}
    draw, rest = np.random.default_rng(1), np.random.Generator(np.random.Philox(3))
    old = np.random.Generator(np.random.MT19937(3))

    def batches() -> Any:
        return (random.random() + np.random.random() for _ in range(3))

    with MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks("state.lr"), **QUIET
    ) as session:
        session.track(state=state, draw=draw, rest=rest, old=old)
        before = session.global_step
        for _ in session.epochs(9):
            for each in session.iterate(batches()):
                for part in session.iterate([1, 2]):
                    if session.global_step >= last:
                        return before
                    with session.step() as step:
                        state["w"][...] += each * part + draw.random() + rest.random()
                        state["w"][...] += old.random()
                        state["count"] += 1
                        step.report(loss=float(state["w"].sum()))
                with session.evaluation("val") as evaluation:
                    evaluation.report(loss=random.random())
    return before


TRAININGS = {"graph": train_graph, "loop": train_loop}
UNLIKE = ("has come to epoch", "no plugin here knows that library", "upgrade hookbus")
"""Words of the errors that say how the program, or what is installed, does not fit."""


def outcome(train: Callable[[Path, int], int], directory: Path) -> str | int:
    """Train on; return where the training began, or the error that it may end with."""
    try:
        return train(directory, LAST + 3)
    except CheckpointError as error:
        return str(error)
    except UsageError as error:
        if any(words in str(error) for words in UNLIKE):
            return str(error)
        raise


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the checkpoints of a training, the same ones each time."""
    made: dict[str, Path] = {}

    def saved(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            random.seed(4)
            np.random.seed(4)
            TRAININGS[name](made[name], LAST)
        return made[name]

    return saved


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(cases(2, 40)))
@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_a_forged_part_does_no_more_than_make_a_checkpoint_bad(name, seed, saved, tmp_path):
    """Some forged values are like others, and then the training goes on with them."""
    draw, origin = Random(seed), saved(name)
    tree = json.loads((origin / f"ckpt-{LAST}/state.json").read_text())
    ways = [*places(tree)]
    parts = {part: [way for way in ways if way[0] == part] for part in tree}
    for number in range(30):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory, symlinks=True)
        done: list[str] = []
        where = draw.choice(parts[draw.choice(sorted(parts))])
        forge_state(
            directory / f"ckpt-{LAST}",
            lambda tree: done.append(mutate(tree, where, draw)),  # noqa: B023
        )
        try:
            found = outcome(TRAININGS[name], directory)
        except BaseException as error:
            raise AssertionError(f"{done} ends with {error!r}") from error
        assert isinstance(found, str) or found in (LAST - 1, LAST), done
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", range(cases(1, 20)))
def test_a_forged_manifest_does_no_more_than_make_a_checkpoint_bad(seed, saved, tmp_path):
    """Its hash of itself is right."""
    draw, origin = Random(seed), saved("graph")
    for number in range(30):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory)
        done: list[str] = []

        def forge(_: Path, manifest: dict[str, Any]) -> None:
            way = draw.choice([*places(manifest)])
            done.append(mutate(manifest, way, draw))  # noqa: B023

        forge_manifest(directory / f"ckpt-{LAST}", forge)
        try:
            found = outcome(train_graph, directory)
        except BaseException as error:
            raise AssertionError(f"{done} ends with {error!r}") from error
        assert isinstance(found, str) or found in (LAST - 1, LAST), done
        shutil.rmtree(directory)
