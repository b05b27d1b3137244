"""Lists plugins, each with the loop by hand whose training it promises.

A new plugin joins with a row. It is then trained in both kinds of session, with NumPy and
with PyTorch, killed, resumed and compared bit for bit.
"""

from __future__ import annotations

import copy
import math
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_gradient_accumulation import GradientAccumulationHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_lr_finder import LRFinderHook
from hookbus_metrics_writer import MetricsWriterHook
from hookbus_monitor import MonitorHook
from hookbus_prediction_writer import PredictionWriterHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_throughput import ThroughputHook
from hookbus_time_limit import TimeLimitHook
from hookbus_weight_average import WeightAverageHook

from hookbus import SessionRunHook, list_checkpoints
from hookbus.evaluating import evaluation_run
from tests.support.trainings import (
    SAVED_EVERY,
    Batch,
    Library,
    Model,
    Row,
    Site,
    weights_in,
)

GROUP, DECAY, SPOILED = 3, 0.9, (9, 20)


def unchanged(model: Model, batches: Sequence[Batch], _: Site) -> Mapping[str, Any]:
    """Train as if there were no plugin."""
    for batch in batches:
        model.add_gradient(batch)
        model.update()
    return model.weights()


def averaged(model: Model, batches: Sequence[Batch], _: Site) -> Mapping[str, Any]:
    """Average the weights after each update."""
    averages: dict[str, Any] = {}
    for batch in batches:
        model.add_gradient(batch)
        model.update()
        for name, value in model.weights().items():
            before = averages.get(name)
            new = value if before is None else before * DECAY + value * (1 - DECAY)
            averages[name] = new
    return {**model.weights(), **{f"average {n}": v for n, v in averages.items()}}


@attrs.define
class LastEvaluation:
    """Keeps the weights that the newest evaluation saw."""

    seen: dict[str, Any] = attrs.field(factory=dict)

    def __call__(self, session: Any) -> Mapping[str, float]:
        self.seen = copy.deepcopy(weights_in(session))
        return {}


def averaging(*_: Any) -> Sequence[Any]:
    evaluate = InMemoryEvaluatorHook(LastEvaluation(), every_n_iter=10)
    return [WeightAverageHook(DECAY), evaluate]


def evaluated(hooks: Sequence[Any], _: Path) -> Mapping[str, Any]:
    seen = hooks[1].evaluate.seen
    return {f"average {name}": value for name, value in seen.items()}


def accumulated(model: Model, batches: Sequence[Batch], _: Site) -> Mapping[str, Any]:
    """Update after each group of batches, with the mean of their gradients."""
    for number, batch in enumerate(batches, start=1):
        model.add_gradient(batch)
        if number % GROUP == 0:
            model.update()
    return model.weights()


def accumulating(site: Site, _: Path) -> Sequence[Any]:
    names = {"numpy-graph": ["gradient"], "torch-graph": ["model.0.weight:grad"]}
    return [GradientAccumulationHook(GROUP, gradients=names.get(str(site), ()))]


def unspoiled(batches: Sequence[Batch]) -> list[Batch]:
    return [batch for batch in batches if batch[0] not in SPOILED]


def rolled_back(model: Model, batches: Sequence[Batch], site: Site) -> Mapping[str, Any]:
    """Leave out batches with NaN."""
    return unchanged(model, unspoiled(batches), site)


def rolled_back_in_groups(
    model: Model, batches: Sequence[Batch], site: Site
) -> Mapping[str, Any]:
    """Accumulate the gradients of the batches that are left."""
    return accumulated(model, unspoiled(batches), site)


def accumulating_without_spikes(site: Site, folder: Path) -> Sequence[Any]:
    return [*accumulating(site, folder), SpikeRollbackHook()]


PLATEAU = {"patience": 1, "factor": 0.5, "threshold": 0.2}


def slowed(model: Model, batches: Sequence[Batch], _: Site) -> Mapping[str, Any]:
    """Halve the learning rate if two checks in a row are not better by a fifth."""
    best, bad = math.inf, 0
    for number, batch in enumerate(batches):
        loss = float(model.add_gradient(batch))
        model.update()
        if number % 3:
            continue
        best, bad = (loss, 0) if loss < best * 0.8 else (best, bad + 1)
        if bad > 1:
            model.lr, bad = model.lr * 0.5, 0
    assert model.lr < 0.02
    return model.weights()


def slowing(site: Site, _: Path) -> Sequence[Any]:
    name = site.library.learning_rate
    return [ReduceLROnPlateauHook(every_n_steps=3, variable=name, **PLATEAU)]


def finding(site: Site, folder: Path) -> Sequence[Any]:
    name = site.library.learning_rate
    return [LRFinderHook(1e-3, 0.1, steps=12, variable=name, output_dir=str(folder))]


def best(model: Model, batches: Sequence[Batch], _: Site) -> Mapping[str, Any]:
    """Keep the three checkpoints whose weights have the lowest loss, and the last one."""
    losses: dict[int, float] = {}
    for number, batch in enumerate(batches, start=1):
        loss, saved = float(model.add_gradient(batch)), number - 1
        model.update()
        if saved % SAVED_EVERY == 0:
            losses[saved] = loss
    kept = {*sorted(losses, key=losses.__getitem__)[:3], len(batches)}
    return {**model.weights(), "kept": sorted(kept)}


def keeping_best(_: Site, folder: Path) -> Sequence[Any]:
    return [CheckpointSaverHook(folder, save_steps=SAVED_EVERY, max_to_keep=1, keep_best=3)]


def kept_in(_: Sequence[Any], folder: Path) -> Mapping[str, Any]:
    return {"kept": sorted(info.global_step for info in list_checkpoints(folder))}


def written(model: Model, batches: Sequence[Batch], site: Site) -> Mapping[str, Any]:
    """Write what the last evaluation shows, which is the step."""
    return {**unchanged(model, batches, site), "written": len(batches)}


def shows_step(session: Any) -> Mapping[str, float]:
    return {"step": float(evaluation_run(session, "global_step"))}


def writing(_: Site, folder: Path) -> Sequence[Any]:
    writer = PredictionWriterHook(["global_step"], output_dir=str(folder))
    return [writer, InMemoryEvaluatorHook(shows_step, every_n_iter=10)]


def written_in(_: Sequence[Any], folder: Path) -> Mapping[str, Any]:
    steps = [int(path.stem[5:]) for path in (folder / "predictions").glob("eval-*.npz")]
    with np.load(folder / "predictions" / f"eval-{max(steps)}.npz") as found:
        return {"written": int(found["global_step"][0])}


@attrs.define(eq=False)
class Sleeps(SessionRunHook):
    """Lets the time of a session pass in its ninth run."""

    seconds: float
    left: int = 9

    def after_run(self) -> None:
        self.left -= 1
        if not self.left:
            time.sleep(self.seconds)


ROWS = [
    Row(
        "weight-average",
        averaging,
        averaged,
        also=evaluated,
    ),
    Row(
        "time-limit",
        lambda *_: [TimeLimitHook(0.04, margin=0.001), Sleeps(0.04)],
        unchanged,
        is_cut=True,
    ),
    Row("prediction-writer", writing, written, also=written_in),
    Row("metrics-writer", lambda *_: [MetricsWriterHook(directory=".")], unchanged),
    Row("monitor", lambda *_: [MonitorHook("*", every_n_steps=3)], unchanged),
    Row("throughput", lambda *_: [ThroughputHook(3, batch_size=8)], unchanged),
    Row(
        "gradient-accumulation",
        accumulating,
        accumulated,
        refused={"torch-graph": "train op 'train' does not read 'model.0.weight:grad'"},
    ),
    Row(
        "spike-rollback",
        lambda *_: [SpikeRollbackHook()],
        rolled_back,
        spoiled=SPOILED,
    ),
    Row(
        "gradient-accumulation-and-spike-rollback",
        accumulating_without_spikes,
        rolled_back_in_groups,
        spoiled=SPOILED,
        refused={"torch-graph": "train op 'train' does not read 'model.0.weight:grad'"},
    ),
    Row("reduce-lr-on-plateau", slowing, slowed),
    Row("lr-finder", finding, unchanged, in_loops=False),
    Row(
        "checkpoint-saver-keep-best",
        keeping_best,
        best,
        also=kept_in,
        saves=False,
        signals=lambda _: [signal.SIGKILL],
    ),
]


def trainings_of(library: Library) -> list[Any]:
    """Return the parameters of tests: each plugin, and each site where it works."""
    return [
        pytest.param(row, site, id=f"{row}-{site}")
        for row in ROWS
        for site in sites_of(library)
        if str(site) not in row.refused and (row.in_loops or not site.custom_loop)
    ]


def cuts_of(library: Library) -> list[Any]:
    """Return the same with each signal that changes nothing."""
    return [
        pytest.param(row, site, number, id=f"{row}-{site}-{number.name}")
        for row, site in (param.values for param in trainings_of(library))
        for number in row.signals(site)
    ]


def refusals_of(library: Library) -> list[Any]:
    """Return each plugin, and each site where it raises an error instead."""
    return [
        pytest.param(row, site, id=f"{row}-{site}")
        for row in ROWS
        for site in sites_of(library)
        if str(site) in row.refused
    ]


def sites_of(library: Library) -> list[Site]:
    return [Site(library, custom_loop) for custom_loop in (False, True)]
