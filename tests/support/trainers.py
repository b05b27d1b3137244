"""Lists the built-in plugins, each with what it does in the trainer of another package.

A test of an adapter gives a :class:`Trainer`: a function that trains 18 steps in three
epochs, with an evaluation behind each, and the names of what a plugin needs. Each row tells
how the training then differs from one without the plugin, or why it does not begin.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_batch_size_finder import BatchSizeFinderHook
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_feed_fn import FeedFnHook
from hookbus_final_ops import FinalOpsHook
from hookbus_global_step_waiter import GlobalStepWaiterHook
from hookbus_gradient_accumulation import GradientAccumulationHook
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_lr_finder import LRFinderHook
from hookbus_metrics_writer import MetricsWriterHook
from hookbus_monitor import MonitorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_prediction_writer import PredictionWriterHook
from hookbus_profiler import ProfilerHook
from hookbus_progress import ProgressHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_checkpoint_step import StopAtCheckpointStepHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from hookbus_throughput import ThroughputHook
from hookbus_time_limit import TimeLimitHook
from hookbus_weight_average import WeightAverageHook

from hookbus import Outcome, SessionRunHook, UsageError, hookimpl

STEPS, EPOCHS = 18, 3


@attrs.frozen
class Names:
    """The names that a trainer gives to the values of its training.

    Attributes:
        metric: the loss of its evaluations.
        rate: the learning rate.
        weight: the weights of its layer, of which it has one.
        grads: all gradients together; None if hooks cannot name them.
        evaluation: the name of its evaluations, which is empty if they have none.
    """

    metric: str
    rate: str
    weight: str
    grads: str | None = "model:grads"
    evaluation: str = ""


@attrs.frozen
class Trained:
    """A run that is over.

    Attributes:
        steps: the steps that the trainer itself has counted.
        outcome: that of the session; None without one.
        hook: the hook that was tried; None in a run without one.
        weights: the values of all weights at the end.
        rate: the learning rate at the end.
        events: the events that :class:`Witness` got.
    """

    steps: int
    outcome: Outcome | None
    weights: list[float]
    rate: float
    hook: Any = None
    events: list[Any] = attrs.field(factory=list)

    def of(self, event: str) -> list[Any]:
        """Return the arguments of the events of a name."""
        return [what for name, what in self.events if name == event]


class Witness(SessionRunHook):
    """Notes the events that plugins emit."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def measured(self, values: Any, global_step: int) -> None:
        self.events.append(("measured", (global_step, dict(values))))

    @hookimpl
    def logged(self, values: Any, global_step: int) -> None:
        self.events.append(("logged", (global_step, dict(values))))

    @hookimpl
    def evaluated(self, metrics: Any, global_step: int) -> None:
        self.events.append(("evaluated", (global_step, dict(metrics))))

    @hookimpl
    def after_save(self, global_step: int, path: Path) -> None:
        self.events.append(("saved", (global_step, path)))

    @hookimpl
    def epoch_ended(self, epoch: int, global_step: int) -> None:
        self.events.append(("epoch", (epoch, global_step)))


@attrs.frozen
class Row:
    """One plugin in a trainer.

    Attributes:
        plugin: its name.
        hook: takes the names of the trainer; returns the hook.
        check: takes the training with the hook and one without, and asserts what differs.
        refused: a part of the message with which the training does not begin; None if it
            does.
        why: the reason in words, for the table of the documentation.
        refused_in: the trainers in which alone it does not begin, each with a part of the
            message, and the reason.
    """

    plugin: str
    hook: Callable[[Names], Any]
    check: Callable[[Trained, Trained, Names], None] | None = None
    refused: str | None = None
    why: str = ""
    refused_in: Mapping[str, tuple[str, str]] = attrs.field(factory=dict)

    def refusal(self, trainer: str) -> tuple[str, str] | None:
        """Return a part of the message in a trainer, and the reason; None if it works."""
        if self.refused is not None:
            return self.refused, self.why
        return self.refused_in.get(trainer)

    def try_in(self, trainer: str, trained: Callable[[Any], Trained], names: Names) -> None:
        """Assert that the plugin works in a trainer, or is refused.

        Args:
            trainer: its name.
            trained: trains with a hook, or with None.
            names: the names of the trainer.
        """
        refusal = self.refusal(trainer)
        if refusal is not None:
            with pytest.raises(UsageError, match=refusal[0]):
                trained(self.hook(names))
            return
        assert self.check is not None
        self.check(trained(self.hook(names)), trained(None), names)


def unchanged(with_hook: Trained, without: Trained) -> None:
    """Assert that a hook that only watches has changed nothing."""
    assert with_hook.steps == without.steps == STEPS
    assert with_hook.weights == without.weights
    assert with_hook.outcome is not None
    assert with_hook.outcome.kind == "completed"


def stopped(trained: Trained, who: str, step: int) -> None:
    """Assert that a hook has stopped the training after a step."""
    assert trained.outcome is not None
    assert (trained.outcome.kind, trained.outcome.who) == ("stopped", who)
    assert trained.steps == trained.outcome.step == step


def _saves(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    told = trained.of("saved")
    assert {5, 10, 15} <= {step for step, _ in told}
    assert all(path.exists() for step, path in told if step == told[-1][0])


def _stops_early(trained: Trained, _: Trained, names: Names) -> None:
    stopped(trained, "early-stopping", STEPS // EPOCHS)
    metrics = trained.of("evaluated")
    assert all(names.metric in each for _, each in metrics)


def _final(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    loss, weight = map(np.asarray, trained.hook.final_ops_values)
    assert loss >= 0
    assert weight.flatten().tolist() == trained.weights[: weight.size]


def _waits(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)


def _clips(trained: Trained, plain: Trained, _: Names) -> None:
    assert trained.steps == STEPS
    assert trained.weights != plain.weights


def _evaluates(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    steps = [step for step, each in trained.of("evaluated") if "seen" in each]
    assert steps[0] == 0
    assert steps[-1] == STEPS


def _logs(trained: Trained, plain: Trained, names: Names) -> None:
    unchanged(trained, plain)
    told = trained.of("logged")
    assert [step for step, _ in told] == [1, 6, 11, 16]
    assert all({"loss", names.rate} <= each.keys() for _, each in told)


def _finds_rates(trained: Trained, _: Trained, __: Names) -> None:
    assert trained.outcome is not None
    assert trained.outcome.who == "lr-finder"
    assert trained.steps == 8
    with Path("lr-finder.csv").open() as file:
        assert len([*csv.DictReader(file)]) == 8


def _monitors(trained: Trained, plain: Trained, names: Names) -> None:
    unchanged(trained, plain)
    assert [step for step, _ in trained.of("measured")] == [1, 6, 11, 16]
    assert all(any(names.weight in n for n in each) for _, each in trained.of("measured"))


def _writes_rows(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    rows = [json.loads(line) for line in Path("metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 6, 11, 16]


def _watches(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)


def _writes(trained: Trained, plain: Trained, names: Names) -> None:
    unchanged(trained, plain)
    found = {path.name for path in Path("predictions").iterdir()}
    name = names.evaluation or "eval"
    assert found == {f"{name}-{step}.npz" for step in (6, 12, 18)}


def _profiles(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    events = json.loads(next(Path.cwd().glob("timeline-*.json")).read_text())
    assert events["traceEvents"]


def _reduces(trained: Trained, plain: Trained, _: Names) -> None:
    assert trained.steps == STEPS
    assert trained.rate == pytest.approx(plain.rate / 10)


def _measures(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    assert trained.of("measured")


def _stops_at_checkpoint(trained: Trained, _: Trained, __: Names) -> None:
    stopped(trained, "stop-at-checkpoint-step", 4)


def _stops(trained: Trained, _: Trained, __: Names) -> None:
    stopped(trained, "stop-at-step", 7)


def _summarizes(trained: Trained, plain: Trained, _: Names) -> None:
    unchanged(trained, plain)
    assert [*Path("logs").glob("events.out.tfevents.*")]


def _limits(trained: Trained, _: Trained, __: Names) -> None:
    stopped(trained, "time-limit", 1)


def _averages(trained: Trained, plain: Trained, names: Names) -> None:
    unchanged(trained, plain)
    with_averages, without = trained.of("evaluated"), plain.of("evaluated")
    assert [step for step, _ in with_averages] == [step for step, _ in without]
    assert all(
        one[names.metric] != other[names.metric]
        for (_, one), (_, other) in zip(with_averages, without, strict=True)
    )


def _checkpoint_of_chief() -> StopAtCheckpointStepHook:
    """Return a hook that waits for step 4 in a directory that a session has saved into."""
    from hookbus import Config, MonitoredTrainingSession

    config = Config(autoload=False, header=False)
    hooks = [StopAtStepHook(last_step=9)]
    with MonitoredTrainingSession(
        checkpoint_dir="chief", hooks=hooks, config=config
    ) as chief:
        for _ in chief.iterate(range(20)):
            with chief.step():
                pass
    return StopAtCheckpointStepHook("chief", 4, wait_after_file_check_secs=0.01)


ROWS = (
    Row(
        "batch-size-finder",
        lambda _: BatchSizeFinderHook("batch"),
        refused="tries steps and undoes them",
        why="it undoes steps, and the trainer cannot go back",
    ),
    Row("checkpoint-saver", lambda _: CheckpointSaverHook(save_steps=5), _saves),
    Row(
        "early-stopping",
        lambda names: EarlyStoppingHook(
            names.metric, from_evaluations=True, mode="lower", threshold=1e9
        ),
        _stops_early,
    ),
    Row(
        "feed-fn",
        lambda _: FeedFnHook(lambda: {"batch": 1.0}),
        refused="uses no values of hooks",
        why="the trainer uses no values of hooks",
    ),
    Row("final-ops", lambda names: FinalOpsHook(["loss", names.weight]), _final),
    Row("global-step-waiter", lambda _: GlobalStepWaiterHook(0), _waits),
    Row(
        "gradient-accumulation",
        lambda _: GradientAccumulationHook(2),
        refused="makes every update",
        why="the trainer makes every update, and has a setting of its own for this",
    ),
    Row(
        "gradient-clipping",
        lambda _: GradientClippingHook(0.001),
        _clips,
        refused_in={
            "keras": (
                "limit gradients with clipnorm=",
                "Keras computes gradients out of the reach of hooks; its optimizers have "
                "clipnorm and clipvalue",
            )
        },
    ),
    Row(
        "in-memory-evaluator",
        lambda _: InMemoryEvaluatorHook(lambda session: {"seen": 1.0}, every_n_iter=6),
        _evaluates,
    ),
    Row(
        "logging-tensor",
        lambda names: LoggingTensorHook(["loss", names.rate], every_n_iter=5),
        _logs,
    ),
    Row(
        "lr-finder",
        lambda names: LRFinderHook(steps=8, variable=names.rate, output_dir="."),
        _finds_rates,
    ),
    Row(
        "metrics-writer",
        lambda _: MetricsWriterHook(every_n_steps=5, directory="."),
        _writes_rows,
    ),
    Row(
        "monitor",
        lambda names: MonitorHook([names.weight], every_n_steps=5),
        _monitors,
    ),
    Row("nan-tensor", lambda _: NanTensorHook(), _watches),
    Row("prediction-writer", lambda _: PredictionWriterHook(["loss"]), _writes),
    Row("profiler", lambda _: ProfilerHook(save_steps=5, output_dir="."), _profiles),
    Row("progress", lambda _: ProgressHook(), _watches),
    Row(
        "reduce-lr-on-plateau",
        lambda names: ReduceLROnPlateauHook(
            names.metric,
            evaluation=names.evaluation,
            patience=0,
            threshold=1e9,
            variable=names.rate,
            cooldown=9,
        ),
        _reduces,
    ),
    Row(
        "spike-rollback",
        lambda _: SpikeRollbackHook("loss"),
        refused="rolls the training back",
        why="it goes back to a checkpoint, and the trainer cannot",
    ),
    Row("step-counter", lambda _: StepCounterHook(every_n_steps=5), _measures),
    Row("stop-at-checkpoint-step", lambda _: _checkpoint_of_chief(), _stops_at_checkpoint),
    Row("stop-at-step", lambda _: StopAtStepHook(last_step=7), _stops),
    Row(
        "summary-saver",
        lambda _: SummarySaverHook(save_steps=5, output_dir="logs"),
        _summarizes,
    ),
    Row("throughput", lambda _: ThroughputHook(every_n_steps=5), _measures),
    Row(
        "time-limit",
        lambda _: TimeLimitHook(0.002, kind="stopped", margin=0.001),
        _limits,
    ),
    Row("weight-average", lambda _: WeightAverageHook(decay=0.9), _averages),
)
"""Every built-in plugin that is a hook, by its name."""
