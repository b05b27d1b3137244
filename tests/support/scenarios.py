"""Shows, for each built-in hook, that it does the same in every kind of session.

A scenario gets a kind of session and an empty folder. It trains there and checks what a
user sees: steps, files, values. The name of a scenario is that of the plugin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_feed_fn import FeedFnHook
from hookbus_final_ops import FinalOpsHook
from hookbus_global_step_waiter import GlobalStepWaiterHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook
from hookbus_profiler import ProfilerHook
from hookbus_progress import ProgressHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_checkpoint_step import StopAtCheckpointStepHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from hookbus import SessionRunHook, UsageError, hookimpl, latest_checkpoint
from tests.support.kinds import Cut, Kind, train

Scenario: TypeAlias = Callable[[Kind, Path], None]
FALLING = (3.0, 2.0, 1.5, 1.25, 1.125, 1.0625)


@attrs.define(eq=False)
class Heard(SessionRunHook):
    """Keeps what hooks tell each other, each with its step."""

    logged_: list[tuple[int, dict[str, float]]] = attrs.field(factory=list)
    measured_: list[tuple[int, set[str]]] = attrs.field(factory=list)
    evaluated_: list[tuple[int, dict[str, float]]] = attrs.field(factory=list)

    @hookimpl
    def logged(self, values, global_step):
        self.logged_.append((global_step, plain(values)))

    @hookimpl
    def measured(self, values, global_step):
        self.measured_.append((global_step, set(values)))

    @hookimpl
    def evaluated(self, metrics, global_step):
        self.evaluated_.append((global_step, plain(metrics)))


def plain(values: Mapping[str, Any]) -> dict[str, float]:
    """Return values as floats."""
    return {name: float(value) for name, value in values.items()}


def checkpoint_saver(kind: Kind, folder: Path) -> None:
    """A training that was cut goes on from the newest checkpoint, with the next input."""
    hooks = [CheckpointSaverHook(checkpoint_dir=str(folder), save_steps=2)]
    with pytest.raises(Cut):
        train(kind, *hooks, directory=folder, cut=5)
    assert latest_checkpoint(folder).global_step == 4
    hooks = [CheckpointSaverHook(checkpoint_dir=str(folder), save_steps=2)]
    trained = train(kind, *hooks, directory=folder)
    assert (trained.outcome.step, trained.w) == (6, 21)
    assert latest_checkpoint(folder).global_step == 6


def early_stopping(kind: Kind, folder: Path) -> None:
    """It stops when the loss has not fallen for so many steps."""
    hook = EarlyStoppingHook("loss", patience=2, run_every_secs=None, run_every_steps=1)
    trained = train(kind, hook, losses=(3.0, 2.0, 2.5, 2.5, 2.5, 2.5))
    assert (trained.outcome.kind, trained.outcome.who) == ("stopped", "early-stopping")
    assert (trained.outcome.step, trained.w) == (4, 10)


def feed_fn(kind: Kind, folder: Path) -> None:
    """What it feeds takes part in the step."""
    trained = train(kind, FeedFnHook(lambda: {"bias": 100.0}), fed=True, steps=3)
    assert trained.w == 306


def final_ops(kind: Kind, folder: Path) -> None:
    """It reads values when the training is over."""
    hook = FinalOpsHook("w")
    train(kind, hook, steps=4)
    assert float(hook.final_ops_values) == 10


def global_step_waiter(kind: Kind, folder: Path) -> None:
    """It waits for another process; alone it says that it would wait for ever."""
    train(kind, CheckpointSaverHook(str(folder), save_steps=1), directory=folder, steps=3)
    assert train(kind, GlobalStepWaiterHook(3, folder), steps=2).w == 3
    with pytest.raises(UsageError, match="would wait for step 5 forever"):
        train(kind, GlobalStepWaiterHook(5))


def in_memory_evaluator(kind: Kind, folder: Path) -> None:
    """It evaluates in the training, and tells all hooks."""
    heard = Heard()
    hook = InMemoryEvaluatorHook(
        lambda session: {"w": float(session.run("w"))}, every_n_iter=2
    )
    train(kind, hook, heard, steps=5)
    at = dict(heard.evaluated_)
    assert {step: metrics["w"] for step, metrics in at.items() if step} == {
        step: sum(range(step + 1)) for step in at if step
    }
    assert max(at) == 5


def logging_tensor(kind: Kind, folder: Path) -> None:
    """It logs values in the first run, then periodically."""
    heard = Heard()
    train(kind, LoggingTensorHook("loss", every_n_iter=2), heard, losses=FALLING)
    assert heard.logged_ == [(1, {"loss": 3.0}), (3, {"loss": 1.5}), (5, {"loss": 1.125})]


def nan_tensor(kind: Kind, folder: Path) -> None:
    """A NaN fails the step that has it; in the other mode it stops the session."""
    losses = (1.0, 1.0, float("nan"))
    with pytest.raises(NanLossDuringTrainingError, match="loss is NaN at step 3"):
        train(kind, NanTensorHook("loss"), losses=losses)
    trained = train(kind, NanTensorHook(fail_on_nan_loss=False), losses=losses)
    assert (trained.outcome.step, trained.outcome.who) == (3, "nan-tensor")


def profiler(kind: Kind, folder: Path) -> None:
    """It writes a timeline of each run that it traces."""
    hook = ProfilerHook(save_steps=2, output_dir=str(folder))
    train(kind, hook, LoggingTensorHook("loss", every_n_iter=1))
    files = sorted(folder.glob("timeline-*.json"))
    assert len(files) >= 2
    assert all(json.loads(file.read_text())["traceEvents"] for file in files)


def progress(kind: Kind, folder: Path) -> None:
    """It follows the training to its end, and changes nothing."""
    assert train(kind, ProgressHook(every_secs=0.0)).w == 21


def step_counter(kind: Kind, folder: Path) -> None:
    """It measures steps per second, and tells all hooks."""
    heard = Heard()
    train(kind, StepCounterHook(every_n_steps=2), heard)
    assert heard.measured_
    assert {frozenset(names) for _, names in heard.measured_} == {
        frozenset({"global_step/sec"})
    }


def stop_at_checkpoint_step(kind: Kind, folder: Path) -> None:
    """It stops a worker when the chief has saved the last step."""
    train(kind, CheckpointSaverHook(str(folder), save_steps=1), directory=folder, steps=4)
    hook = StopAtCheckpointStepHook(str(folder), 4, wait_after_file_check_secs=0)
    trained = train(kind, hook)
    assert (trained.outcome.who, trained.outcome.step) == ("stop-at-checkpoint-step", 4)


def stop_at_step(kind: Kind, folder: Path) -> None:
    """It stops the training at a step."""
    trained = train(kind, StopAtStepHook(last_step=4))
    assert (trained.outcome.kind, trained.outcome.who) == ("stopped", "stop-at-step")
    assert (trained.outcome.step, trained.w) == (4, 10)


def summary_saver(kind: Kind, folder: Path) -> None:
    """TensorBoard reads the values that it wrote."""
    hook = SummarySaverHook(save_steps=2, output_dir=str(folder), tensors="loss")
    train(kind, hook, losses=FALLING)
    (file,) = folder.glob("events.out.tfevents.*")
    seen = {
        event.step: float(make_ndarray(value.tensor))
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == "loss"
    }
    assert seen == {1: 3.0, 3: 1.5, 5: 1.125}


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__.replace("_", "-"): scenario
    for scenario in (
        checkpoint_saver,
        early_stopping,
        feed_fn,
        final_ops,
        global_step_waiter,
        in_memory_evaluator,
        logging_tensor,
        nan_tensor,
        profiler,
        progress,
        step_counter,
        stop_at_checkpoint_step,
        stop_at_step,
        summary_saver,
    )
}
