"""Uses hookbus and five plugins as their types allow; type checkers find nothing."""

from __future__ import annotations

from pathlib import Path

import attrs
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus


@attrs.define(eq=False)
class LimitHook(hookbus.SessionRunHook):
    """Stops when a value is below a limit."""

    options = hookbus.HookOptions(ranks="all")

    below: float = 0.1
    node: str = "loss"

    def before_run(self) -> hookbus.SessionRunArgs | None:
        return hookbus.SessionRunArgs(self.node)

    def after_run(
        self,
        run_context: hookbus.SessionRunContext,
        run_values: hookbus.SessionRunValues,
    ) -> None:
        if run_values.results < self.below:
            run_context.request_stop(f"{self.node} is below {self.below}")


def train(folder: Path) -> int:
    """Train with a hook of each plugin, and return the last step."""
    stop = StopAtStepHook(last_step=100)
    hooks = [
        stop,
        CheckpointSaverHook(str(folder), save_steps=10),
        EarlyStoppingHook("loss", patience=3),
        LoggingTensorHook(["loss"], every_n_iter=10),
        NanTensorHook("loss"),
        LimitHook(below=0.5),
    ]
    step: int = 0
    with hookbus.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
        while not session.should_stop():
            with session.step() as block:
                block.report(loss=1.0)
            step = session.global_step
    return step


def last_step(hook: StopAtStepHook) -> int | None:
    """Return a setting, which has a type of its own."""
    return hook.last_step
