"""Forges each part of real checkpoints: the one before is used, or an error names it.

Nothing else may happen, whatever stands in a checkpoint whose hashes are right.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
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
from hookbus.backend import RandomSource
from hookbus.checkpoint.parts import is_numpy_state
from hookbus.random_state import RandomGenerators
from tests.support.forging import (
    check_outcome,
    forge_state,
    mutate_manifest,
    mutate_state,
    places,
)
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
    state["key"] = np.array([3, 4], np.uint32)
    dice, other = random.Random(2), np.random.RandomState(4)
    draw, rest = np.random.default_rng(1), np.random.Generator(np.random.Philox(3))
    old = np.random.Generator(np.random.MT19937(3))

    def batches() -> Any:
        return (random.random() + np.random.random() for _ in range(3))

    with MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks("state.lr"), **QUIET
    ) as session:
        session.track(state=state, draw=draw, rest=rest, old=old)
        session.track(dice=dice, other=(other.get_state, other.set_state))
        held = session.hold(point=(np.zeros(2), 0), recent=deque([1.5], 3))
        before = session.global_step
        for _ in session.epochs(9):
            for each in session.iterate(batches()):
                for part in session.iterate([1, 2]):
                    if session.global_step >= last:
                        return before
                    with session.step() as step:
                        state["w"][...] += each * part + draw.random() + rest.random()
                        state["w"][...] += old.random()
                        state["count"] = session.global_step
                        held.point = held.point[0] + part, session.global_step
                        held.recent.append(dice.random())
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
    """Give the checkpoints of a run, the same ones each time."""
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
@pytest.mark.long
def test_a_forged_part_does_no_more_than_make_a_checkpoint_bad(name, seed, saved, tmp_path):
    """Some forged values are like others, and then the training goes on with them."""
    draw, origin = Random(seed), saved(name)
    tree = json.loads((origin / f"ckpt-{LAST}/state.json").read_text())
    ways = [*places(tree)]
    parts = {part: [way for way in ways if way[0] == part] for part in tree}
    for number in range(30):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory, symlinks=True)
        where = draw.choice(parts[draw.choice(sorted(parts))])
        done = mutate_state(directory / f"ckpt-{LAST}", where, draw)
        check_outcome(partial(outcome, TRAININGS[name], directory), LAST, done)
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", range(cases(1, 20)))
@pytest.mark.long
def test_a_forged_manifest_does_no_more_than_make_a_checkpoint_bad(seed, saved, tmp_path):
    """Its hash of itself is right."""
    draw, origin = Random(seed), saved("graph")
    for number in range(30):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory)
        done = mutate_manifest(directory / f"ckpt-{LAST}", draw)
        check_outcome(partial(outcome, train_graph, directory), LAST, done)
        shutil.rmtree(directory)


class Sums(hookbus.SessionRunHook):
    """Adds numbers up, and tells the form of its state, or not."""

    def __init__(self, tells: bool) -> None:
        self.total = 0
        if tells:
            self.state_form = {"total": int}

    def after_run(self) -> None:
        self.total += 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = 0 + state["total"]


@pytest.mark.parametrize("state", [{}, {"total": "x"}, 5, None], ids=str)
def test_the_state_of_a_hook_that_tells_its_form_makes_a_checkpoint_bad(
    state, tmp_path, killed, opened, capsys
):
    """Another hook raises its own error, which becomes one of the checkpoint."""
    killed(tmp_path, 2, Sums(True))
    forge_state(tmp_path / "ckpt-2", lambda tree: tree["hooks"].update(sums=state))
    silent = Sums(False)
    told = r"^the hook 'sums' does not take the state .* \((Key|Type)Error: .*: another ver"
    with pytest.raises(CheckpointError, match=told) as caught:
        opened(tmp_path, silent)
    assert "raised by plugin 'sums'" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, KeyError | TypeError)
    hook = Sums(True)
    with opened(tmp_path, hook) as session:
        assert (session.global_step, hook.total) == (1, 1)
    assert "its values cannot be read: hooks/sums" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["MT19937", "Philox", "PCG64", "PCG64DXSM", "SFC64"])
def test_each_generator_of_numpy_has_a_state_of_its_form(kind):
    """One that points beyond its memory has not."""
    bits = getattr(np.random, kind)(3)
    np.random.Generator(bits).integers(2**16, dtype="u2")
    state = bits.state
    assert is_numpy_state(state)
    where = state["state"] if kind == "MT19937" else state
    for key in ("pos", "buffer_pos", "has_uint32"):
        if key in where:
            where[key] = 700
            assert not is_numpy_state(state)


def test_a_tracked_generator_beyond_its_memory_is_refused(tmp_path):
    """NumPy itself would read there."""
    train_loop(tmp_path, LAST)

    def change(tree: Any) -> None:
        tree["tracked"]["old"]["state"]["pos"] = 10**6

    forge_state(tmp_path / f"ckpt-{LAST}", change)
    told = "'old' has no state of a generator of the kind MT19937"
    with pytest.raises(CheckpointError, match=told):
        train_loop(tmp_path, LAST + 1)


def test_an_object_that_does_not_take_its_state_is_named(tmp_path):
    """The error of the object is the cause."""

    class Model:
        def state_dict(self) -> Any:
            return {"w": 1.0}

        def load_state_dict(self, state: Any) -> None:
            self.w = 0 + state["w"]

    def train() -> None:
        with MonitoredTrainingSession(checkpoint_dir=tmp_path, **QUIET) as session:
            session.track(model=Model())
            with session.step():
                pass

    train()
    forge_state(tmp_path / "ckpt-1", lambda tree: tree["tracked"].update(model=[]))
    told = r"^the tracked object 'model' does not take the state that it has in the ch"
    with pytest.raises(CheckpointError, match=told) as caught:
        train()
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_generator_of_a_library_that_does_not_take_its_state_is_named():
    """The library checks what its generators take."""

    def restore(state: Any) -> None:
        raise ValueError(f"no such state: {state}")

    source = RandomSource(int, restore, int)
    generators = RandomGenerators(lambda: {"dice": source})
    told = r"^the random generator 'dice' does not take .* \(ValueError: no such state: 3\)"
    with pytest.raises(CheckpointError, match=told):
        generators.restore({"dice": 3})


@pytest.mark.parametrize(
    "checksums",
    [[], 5, {"two": 5}, {"2": "5"}, {"2": -1}, {"2": 2**40}, {"9" * 5000: 1}],
    ids=lambda value: repr(value)[:20],
)
def test_checksums_have_the_form_of_theirs(checksums, tmp_path, capsys):
    """With others the checkpoint is bad, and the one before is used."""
    train_graph(tmp_path, LAST)

    def change(tree: Any) -> None:
        tree["inputs"]["batch"]["checksums"] = checksums

    forge_state(tmp_path / f"ckpt-{LAST}", change)
    assert train_graph(tmp_path, LAST + 1) == LAST - 1
    assert "inputs/batch/checksums is" in capsys.readouterr().err
