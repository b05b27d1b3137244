"""Checkpoints of the Trainer hold the states of hooks, whatever causes the save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_lightning import BusCallback
from hookbus_throughput import ThroughputHook
from hookbus_weight_average import WeightAverageHook
from torch.utils.data import DataLoader

from hookbus import SessionRunHook, hookimpl
from hookbus.errors import CheckpointError
from tests.support.in_lightning import (
    OFF,
    Net,
    ResumableLoader,
    data,
    fit,
    trainer_of,
    weights,
)
from tests.support.profiles import cases


class Counts(SessionRunHook):
    """Counts its steps, over all programs of a run."""

    def __init__(self) -> None:
        self.runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1

    def state_dict(self) -> dict[str, int]:
        return {"runs": self.runs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.runs = state["runs"]


def counting(path: Any = None, *hooks: Any, **settings: Any) -> tuple[Any, Counts]:
    counts = Counts()
    trainer = trainer_of(BusCallback([counts, *hooks], config=OFF), **settings)
    trainer.module = fit(trainer, path, train=ResumableLoader(data(), 4))
    return trainer, counts


def has_states(path: Any) -> bool:
    """Return whether a checkpoint has states of hooks; the safe loader has to do."""
    found = torch.load(path, weights_only=True)["callbacks"].get("BusCallback", {})
    return "hookbus" in found


@pytest.mark.parametrize("at", cases([2, 6, 12], [*range(1, 19)]))
def test_a_checkpoint_that_a_hook_asks_for_resumes_the_training(at: int) -> None:
    """In an epoch and at its end; Lightning itself finds it as its last one."""

    class Asks(SessionRunHook):
        @hookimpl
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step == at:
                run_context.request_save("it is good")

        @hookimpl
        def after_save(self, global_step: int, path: Path) -> None:
            told.append((global_step, path.name, path.exists()))

    told: list[Any] = []
    whole, counts = counting(None, Asks())
    assert told == [(at, "last-hookbus.ckpt", True)]
    assert counts.runs == 18
    assert has_states("checkpoints/last-hookbus.ckpt")
    again, resumed = counting("last")
    assert weights(again.module) == weights(whole.module)
    # A run that is complete begins no session.
    assert resumed.runs == (18 if at < 18 else 0)


def test_the_plugin_that_saves_has_the_trainer_save() -> None:
    """In its periods: one file, the newest. The end is a matter of the Trainer."""
    counting(None, CheckpointSaverHook(save_steps=5))
    assert {p.name for p in Path("checkpoints").iterdir()} == {
        "epoch=2-step=18.ckpt",
        "last-hookbus.ckpt",
    }
    kept = torch.load("checkpoints/last-hookbus.ckpt", weights_only=True)
    assert kept["global_step"] == 15


def test_the_checkpoint_of_the_beginning_is_one_to_resume_from() -> None:
    """It is written before the first step."""

    class Fails(Net):
        def training_step(self, batch: Any, number: int) -> Any:
            raise ValueError("at once")

    callback = BusCallback([CheckpointSaverHook(save_steps=50)], config=OFF)
    with pytest.raises(ValueError, match="at once"):
        fit(trainer_of(callback), module=Fails)
    again, counts = counting("last")
    assert counts.runs == again.global_step == 18
    assert weights(again.module) == weights(counting()[0].module)


def test_without_a_model_checkpoint_it_lies_in_the_root_directory() -> None:
    """With a path it is resumed from there."""
    counting(
        None,
        CheckpointSaverHook(save_steps=7),
        enable_checkpointing=False,
        default_root_dir="own",
        max_steps=7,
    )
    assert has_states("own/last-hookbus.ckpt")
    _, counts = counting("own/last-hookbus.ckpt")
    assert counts.runs == 18


def test_a_checkpoint_behind_the_end_has_the_states() -> None:
    """The program saves when fit() has returned; another one trains on."""
    trainer, _ = counting()
    trainer.save_checkpoint("final.ckpt")
    again, counts = counting("final.ckpt", max_epochs=4)
    assert counts.runs == again.global_step == 24


def test_a_second_call_of_fit_goes_on() -> None:
    """As the Trainer itself does, hooks keep what they know."""
    counts = Counts()
    trainer = trainer_of(BusCallback([counts], config=OFF))
    module = fit(trainer)
    trainer.fit_loop.max_epochs = 4
    fit(trainer, module=module)
    assert counts.runs == trainer.global_step == 24


def test_a_test_between_two_trainings_leaves_the_states_alone() -> None:
    """It takes only the weights of its checkpoint."""
    counts = Counts()

    class Tested(Net):
        def test_step(self, batch: Any, number: int) -> None:
            self.log("test_loss", self._loss(batch))

    trainer = trainer_of(BusCallback([counts], config=OFF))
    module = fit(trainer, module=Tested)
    path = trainer.checkpoint_callback.best_model_path
    counts.runs = 0
    trainer.test(module, DataLoader(data(8), 4), ckpt_path=path, verbose=False)
    trainer.save_checkpoint("later.ckpt")
    assert has_states("later.ckpt")
    trainer.fit_loop.max_epochs = 4
    fit(trainer, module=module)
    assert counts.runs == 24


def test_averages_of_weights_are_kept() -> None:
    """A resumed run has those of one that ran through."""
    first, second, third = (WeightAverageHook(decay=0.9) for _ in range(3))
    counting(None, first)
    counting(None, second, max_epochs=1)
    counting(next(Path("checkpoints").glob("epoch=0*")), third)
    averages = [{n: v.tolist() for n, v in h.averages.items()} for h in (first, third)]
    assert averages[0] == averages[1]
    assert averages[0].keys() == {"model.layer.weight", "model.layer.bias"}


def test_a_checkpoint_without_states_begins_hooks_anew(lines: list[Any]) -> None:
    """A warning reports that; the training itself goes on."""
    plain = trainer_of(max_epochs=1)
    fit(plain)
    again, counts = counting(plain.checkpoint_callback.best_model_path)
    assert (again.global_step, counts.runs) == (18, 12)
    told = [line for line in lines if "has no state of hooks" in line["event"]]
    assert [line["step"] for line in told] == [6]


def test_states_of_other_plugins_are_left_out(lines: list[Any]) -> None:
    """The log names them, and those that begin anew."""
    callback = BusCallback([ThroughputHook(every_n_steps=2)], config=OFF)
    first = trainer_of(callback, max_epochs=1)
    fit(first)
    again, counts = counting(first.checkpoint_callback.best_model_path)
    assert (again.global_step, counts.runs) == (18, 12)
    told = str(lines)
    assert "throughput" in told
    assert "counts" in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-9], "the state of hooks in the checkpoint cannot be read"),
        (lambda text: text.replace('"sha256": {"', '"sha256": {"x'), "cannot be read"),
        (lambda _: "{}", "cannot be read"),
    ],
)
def test_states_that_were_changed_are_refused(change: Any, message: str) -> None:
    """The training does not begin."""
    counting(max_epochs=1)
    path = next(Path("checkpoints").glob("*.ckpt"))
    kept = torch.load(path, weights_only=True)
    states = kept["callbacks"]["BusCallback"]
    states["hookbus"] = change(states["hookbus"])
    torch.save(kept, "changed.ckpt")
    with pytest.raises(CheckpointError, match=message):
        counting("changed.ckpt")


class Unsaved(SessionRunHook):
    """Has a state that no checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]:
        return {"what": object()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nobody has saved it")


def test_a_state_that_cannot_be_saved_is_an_error_of_its_hook() -> None:
    """The Trainer would write a checkpoint from which nobody can go on."""
    with pytest.raises(CheckpointError, match="unsaved"):
        counting(None, Unsaved())


def test_it_is_none_in_a_training_that_saves_nothing() -> None:
    """As in any session."""
    trainer, counts = counting(None, Unsaved(), enable_checkpointing=False)
    assert counts.runs == 18
    trainer.save_checkpoint("final.ckpt")
    assert not has_states("final.ckpt")


def test_weights_alone_have_no_states() -> None:
    """Lightning leaves out all that callbacks keep."""
    trainer, _ = counting()
    trainer.save_checkpoint("weights.ckpt", weights_only=True)
    kept = torch.load("weights.ckpt", weights_only=True)
    assert "callbacks" not in kept
    module = Net.load_from_checkpoint("weights.ckpt")
    assert weights(module) == weights(trainer.module)


def test_an_epoch_that_is_resumed_in_its_middle_has_its_number() -> None:
    """The Trainer does not tell its beginning again."""
    found: list[Any] = []

    class Looks(SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            found.append((run_context.global_step, run_context.epoch))

    saver = CheckpointSaverHook(save_steps=8)
    counting(None, saver, max_steps=8)
    lightning.seed_everything(1, verbose=False)
    counting("last", Looks())
    assert found == [(step, step // 6) for step in range(8, 18)]
