"""A run that was killed goes on from the Trainer's checkpoint, hooks included.

Lightning itself resumes exactly after an update, if the loader tells how far it is. A
run without hookbus, killed at the same place, shows what it does elsewhere.
"""

from __future__ import annotations

import json
import os
import random
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_lightning import BusCallback
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_throughput import ThroughputHook
from lightning.pytorch.callbacks import ModelCheckpoint

from hookbus import SessionRunHook, hookimpl
from tests.support.in_lightning import (
    OFF,
    Net,
    ResumableLoader,
    data,
    fit,
    in_child,
    trainer_of,
    weights,
)
from tests.support.profiles import cases

STEPS = 10
SAVES: dict[str, dict[str, Any]] = {
    "each third step": {"every_n_train_steps": 3},
    "each epoch": {},
    "each batch": {"train_time_interval": timedelta(0)},
}


class Scheduled(Net):
    """Has moments and a scheduler."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Kills(lightning.Callback):
    """Kills the process after a batch, before the Trainer saves."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Stops(lightning.Callback):
    """Stops a run without hookbus where the hook stops one with it."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step == STEPS


class Notes(SessionRunHook):
    """Writes the events of other hooks into a file, at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _note(self, *what: Any) -> None:
        with self.path.open("a") as file:
            print(json.dumps(what, default=float), file=file)

    @hookimpl
    def logged(self, values: Any, global_step: int) -> None:
        self._note("logged", global_step, dict(values))

    @hookimpl
    def evaluated(self, metrics: Any, global_step: int) -> None:
        self._note("evaluated", global_step, dict(metrics))

    @hookimpl
    def epoch_ended(self, epoch: int, global_step: int) -> None:
        self._note("epoch", global_step, epoch)


def train(folder: Path, kill: int = 0, hooked: bool = True, **settings: Any) -> None:
    """Train, or go on from the last checkpoint; leave the weights and the outcome."""
    saves = SAVES[settings.pop("saves")]
    saver = ModelCheckpoint(folder / "saved", save_last=True, **saves)
    hooks = [
        LoggingTensorHook(["loss", "optimizer.lr"], every_n_iter=4),
        EarlyStoppingHook("optimizer.lr", mode="no_increase", patience=9),
        ThroughputHook(every_n_steps=3),
        Notes(folder / "notes.txt"),
    ]
    callback = BusCallback(hooks, config=OFF)
    stops = callback if hooked else Stops()
    trainer = trainer_of(
        stops, *[Kills(kill)] * bool(kill), saver, max_epochs=6, **settings
    )
    module = fit(trainer, "last", Scheduled, ResumableLoader(data(), 4))
    left = {"weights": weights(module), "step": trainer.global_step}
    if hooked:
        assert callback.outcome is not None
        left |= {"who": callback.outcome.who, "why": callback.outcome.why}
    (folder / "left.json").write_text(json.dumps(left))


def ended(folder: Path, **settings: Any) -> dict[str, Any]:
    """Train in a process to the end; return what it left."""
    folder.mkdir(exist_ok=True)
    assert in_child(lambda: train(folder, **settings)) == 0
    found: dict[str, Any] = json.loads((folder / "left.json").read_text())
    return found


def killed(folder: Path, at: int, **settings: Any) -> int:
    """Train until a batch; return the step of the checkpoint that remains."""
    folder.mkdir()
    assert in_child(lambda: train(folder, at, **settings)) == -signal.SIGKILL
    last = folder / "saved" / "last.ckpt"
    if not last.exists():
        return 0
    # Nothing in it needs more than the safe loader.
    step: int = torch.load(last, weights_only=True)["global_step"]
    return step


def notes_of(folder: Path) -> list[Any]:
    """Return the events that were noted."""
    path = folder / "notes.txt"  # which is missing if nothing was told
    return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []


@pytest.mark.parametrize("saves", SAVES)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_killed_at_any_batch_it_goes_on_as_ever(
    saves: str, accumulate: int, tmp_path: Path
) -> None:
    """The weights are Lightning's own, and hooks log and stop as if nothing had been."""
    settings: dict[str, Any] = {"saves": saves, "accumulate_grad_batches": accumulate}
    whole = ended(tmp_path / "whole", **settings)
    assert (whole["who"], whole["step"]) == ("early-stopping", STEPS)
    notes = notes_of(tmp_path / "whole")
    draw = random.Random(f"{saves} {accumulate}")
    for at in draw.sample(range(1, 11 if accumulate == 1 else 31), cases(2, 10)):
        folder, plain = tmp_path / f"hooked-{at}", tmp_path / f"plain-{at}"
        step = killed(folder, at, **settings)
        assert killed(plain, at, hooked=False, **settings) == step
        before = notes_of(folder)
        (folder / "notes.txt").unlink(missing_ok=True)
        again, own = ended(folder, **settings), ended(plain, hooked=False, **settings)
        assert (again["weights"], again["step"]) == (own["weights"], own["step"])
        assert (again["who"], again["why"]) == (whole["who"], whole["why"])
        if accumulate == 1 or saves != "each batch":  # then Lightning itself is exact
            assert again["weights"] == whole["weights"]
            assert before == notes[: len(before)]
            assert notes_of(folder) == [note for note in notes if note[1] > step]
        assert kinds(notes_of(folder)) == kinds([n for n in notes if n[1] > step])


def kinds(notes: list[Any]) -> list[Any]:
    """Return the events and their steps, without the values."""
    return [note[:2] for note in notes]
