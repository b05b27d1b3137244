"""Directories of checkpoints, as trainings leave them, and the command that tends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import Config, MonitoredTrainingSession, SessionRunHook
from tests.support.in_process import run_here

QUIET = Config(autoload=False, header=False)
RUNS = Path("runs")


class SavesFailedHook(SessionRunHook):
    """Has the checkpoint of a failed session saved."""

    def begin(self, checkpoints: Any) -> None:
        checkpoints.save_on_exception()


class KeepsHook(SessionRunHook):
    """Has the checkpoint of a step kept for good, with a value."""

    def __init__(self, step: int) -> None:
        self.step = step

    def begin(self, checkpoints: Any) -> None:
        self.checkpoints = checkpoints

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == self.step:
            run_context.request_save("it is mine", keep=True)
            self.checkpoints.record_values({"val/loss": 0.25}, self.step)


def train(
    *hooks: Any,
    until: int = 5,
    fails: bool = False,
    each: Callable[[int], object] = lambda _: None,
    most: int = 10,
) -> None:
    """Train a custom loop up to a step, and save at every second step.

    Args:
        hooks: further hooks.
        until: the step.
        fails: whether an error ends the session then.
        each: called after each step, with its number.
        most: the number of checkpoints to keep.
    """
    saver = CheckpointSaverHook(str(RUNS), save_steps=2, max_to_keep=most)
    with (
        contextlib.suppress(ZeroDivisionError),
        MonitoredTrainingSession(
            checkpoint_dir=RUNS,
            hooks=[saver, *hooks],
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=QUIET,
        ) as session,
    ):
        model = {"w": np.zeros((2, 3), np.float32), "n": np.zeros(4, int), "rate": 0.5}
        model, draw = session.track(model=model, draw=np.random.default_rng(1)).values()
        while session.global_step < until:
            with session.step():
                model["w"][0] += 1.5
                model["n"][1:3] += 1
                draw.random()
            each(session.global_step)
        if fails:
            raise ZeroDivisionError


def checkpoints(*words: Any) -> tuple[object, str]:
    """Return the exit code of the command about the directory, and what it prints."""
    return run_here(["checkpoints", *map(str, words)])


def names() -> list[str]:
    """Return the names of the checkpoints that are there."""
    return sorted(path.name for path in RUNS.glob("ckpt-*"))


def everything() -> dict[Path, tuple[int, bytes | None]]:
    """Return all below the directory: when it was changed, and what each file has."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (RUNS, *RUNS.rglob("*"))
    }
