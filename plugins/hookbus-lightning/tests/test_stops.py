"""A stop is honoured at its step; signals save, and end the program as they should."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_lightning import BusCallback
from hookbus_stop_at_step import StopAtStepHook
from lightning.pytorch.callbacks import (
    EarlyStopping,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)

from hookbus import SessionRunHook, hookimpl
from tests.support.handlers import handlers
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


class Sees(SessionRunHook):
    """Notes the steps and the epochs that it is told of."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.epochs: list[Any] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.steps.append(run_values.global_step)

    @hookimpl
    def epoch_ended(self, epoch: int, global_step: int) -> None:
        self.epochs.append((epoch, global_step))


def trained(
    *hooks: Any, module: Any = Net, **settings: Any
) -> tuple[Any, BusCallback, Sees]:
    sees = Sees()
    callback = BusCallback([*hooks, sees], config=OFF)
    trainer = trainer_of(callback, **settings)
    fit(trainer, module=module)
    return trainer, callback, sees


@pytest.mark.parametrize("step", [1, 5, 6, 7, 17, 18])
@pytest.mark.parametrize("check", [1.0, 2])
def test_a_hook_stops_the_training_at_a_step(step: int, check: float) -> None:
    """In an epoch and at its end, whatever the Trainer does between two steps."""
    trainer, callback, sees = trained(
        StopAtStepHook(last_step=step), val_check_interval=check
    )
    assert trainer.global_step == step
    assert sees.steps == [*range(1, step + 1)]
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == ("stopped", step)


def test_an_epoch_that_a_stop_cuts_short_has_not_ended() -> None:
    """As in every session; Lightning's own callbacks are told of its end."""
    _, _, sees = trained(StopAtStepHook(last_step=8))
    assert sees.epochs == [(0, 6)]
    _, _, sees = trained(max_steps=8)
    assert sees.epochs == [(0, 6)]
    _, _, sees = trained(StopAtStepHook(last_step=12))
    assert sees.epochs == [(0, 6), (1, 12)]


@pytest.mark.parametrize("batches", [2, 4])
def test_a_stop_between_two_updates_is_one_of_the_last_update(batches: int) -> None:
    """No batch of the next one is computed."""
    trainer = trained(StopAtStepHook(last_step=1), accumulate_grad_batches=batches)[0]
    assert trainer.global_step == 1
    assert trainer.fit_loop.total_batch_idx + 1 == batches


@pytest.mark.parametrize(
    ("least", "steps"), [({"min_epochs": 2}, 12), ({"min_steps": 9}, 9)]
)
def test_a_trainer_that_must_go_on_does_so_without_hooks(
    least: dict[str, int], steps: int, lines: list[Any]
) -> None:
    """One warning reports that."""
    trainer, callback, sees = trained(StopAtStepHook(last_step=4), **least)
    assert trainer.global_step == steps
    assert sees.steps == [1, 2, 3, 4]
    told = [line for line in lines if "goes on after a stop" in line["event"]]
    assert [line["by"] for line in told] == ["stop-at-step"]
    assert callback.outcome is not None
    assert callback.outcome.step == 4


def test_a_stop_before_the_first_step_does_none() -> None:
    """The weights are those of the beginning."""

    class Refuses(SessionRunHook):
        @hookimpl
        def before_first_run(self) -> str:
            return "there is no need"

    trainer, callback, sees = trained(Refuses())
    assert (trainer.global_step, sees.steps) == (0, [])
    assert callback.outcome is not None
    assert callback.outcome.kind == "stopped"


def test_a_hook_stops_behind_a_validation_and_behind_an_epoch() -> None:
    """Before the next step."""

    class StopsAtEpoch(SessionRunHook):
        @hookimpl
        def epoch_ended(self, epoch: int) -> str | None:
            return "two are enough" if epoch == 1 else None

    early = EarlyStoppingHook(
        "val_loss", from_evaluations=True, mode="lower", threshold=1e9
    )
    assert trained(early, val_check_interval=2)[0].global_step == 2
    assert trained(early)[0].global_step == 6


def test_a_stop_of_lightning_completes_the_session() -> None:
    """EarlyStopping, max_steps and max_time are the Trainer's own ends."""
    sees = Sees()
    callback = BusCallback([sees], config=OFF)
    stops = EarlyStopping("val_loss", stopping_threshold=1e9)
    trainer = trainer_of(callback, stops)
    fit(trainer)
    assert sees.steps == [*range(1, 7)]
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == ("completed", 6)
    assert trained(max_steps=7)[2].steps == [*range(1, 8)]


def test_a_complete_training_does_no_step_more() -> None:
    """Resumed from its last checkpoint, it ends; so does one that a hook stopped."""
    whole = trainer_of(BusCallback(config=OFF))
    module = fit(whole)
    sees = Sees()
    again = trainer_of(BusCallback([sees], config=OFF))
    path = whole.checkpoint_callback.best_model_path
    assert weights(fit(again, path)) == weights(module)
    assert sees.steps == []
    stopped, _, _ = trained(StopAtStepHook(last_step=7))
    stopped.save_checkpoint("stopped.ckpt")
    callback = BusCallback([StopAtStepHook(last_step=7), sees], config=OFF)
    again = trainer_of(callback)
    fit(again, "stopped.ckpt")
    assert sees.steps == []
    assert again.global_step == 7
    assert callback.outcome is not None
    assert callback.outcome.kind == "stopped"


class Signalled(Net):
    """Sends signals to its process at one place of the training."""

    where: str = "step"
    at: int = 7
    number: int = signal.SIGTERM
    times: int = 1

    def _send(self, where: str) -> None:
        trainer = self.trainer
        if where == self.where and trainer.fit_loop.total_batch_idx == self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)

    def training_step(self, batch: Any, number: int) -> Any:
        self._send("step")
        return super().training_step(batch, number)

    def on_train_batch_end(self, *_: Any) -> None:
        self._send("batch end")

    def validation_step(self, batch: Any, number: int) -> Any:
        if number == 0 and not self.trainer.sanity_checking:
            self._send("validation")
        return super().validation_step(batch, number)

    def on_train_epoch_end(self) -> None:
        self._send("epoch end")


def signalled(**fields: Any) -> type[Signalled]:
    """Return a class with other values of its fields."""
    return type("Signalled", (Signalled,), fields)


def session(module: Any = Net, *others: Any, **settings: Any) -> None:
    """Train on, or anew; leave the weights, the step and the outcome."""
    sees = Sees()
    callback = BusCallback([sees], config=OFF)
    trainer = trainer_of(callback, ModelCheckpoint("saved"), *others, **settings)
    left: dict[str, Any] = {}
    try:
        fitted = fit(trainer, "last", module, ResumableLoader(data(), 4))
        left["weights"] = weights(fitted)
    finally:
        left |= {"kind": callback.outcome and callback.outcome.kind}
        left |= {"step": trainer.global_step}
        Path("left.json").write_text(json.dumps(left | {"epochs": sees.epochs}))


def left() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("left.json").read_text())
    return found


@pytest.mark.parametrize(
    ("where", "at", "step", "settings"),
    [
        ("step", 0, 1, {}),
        ("step", 7, 8, {}),
        ("step", 11, 12, {}),
        ("step", 17, 18, {}),
        ("batch end", 7, 9, {}),
        ("step", 7, 8, {"min_epochs": 3}),
        ("step", 7, 3, {"accumulate_grad_batches": 4}),
        ("step", 3, 4, {"val_check_interval": 2}),
        ("validation", 5, 6, {}),
        ("validation", 3, 4, {"val_check_interval": 2}),
        ("epoch end", 11, 13, {}),
    ],
)
def test_after_sigterm_a_training_saves_and_goes_on_when_it_is_started_again(
    where: str, at: int, step: int, settings: dict[str, Any]
) -> None:
    """It finishes the update and exits with 75; ckpt_path="last" has the rest."""
    assert in_child(lambda: session(**settings)) == 0
    whole = left()
    Path("saved").rename("other")
    module = signalled(where=where, at=at)
    assert in_child(lambda: session(module, **settings)) == 75
    assert (left()["kind"], left()["step"]) == ("preempted", step)
    first = left()["epochs"]
    kept = torch.load("saved/last-hookbus.ckpt", weights_only=True)
    assert kept["global_step"] == step
    assert in_child(lambda: session(**settings)) == 0
    # A Trainer that finds its training complete begins none.
    kind = None if step == whole["step"] else "completed"
    assert left() == whole | {"kind": kind, "epochs": whole["epochs"][len(first) :]}


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_finishes_the_step_and_a_second_one_does_not(times: int) -> None:
    """The first one saves. The exit code of the second one is Lightning's."""
    module = signalled(number=signal.SIGINT, times=times)
    assert in_child(lambda: session(module)) == (2 if times == 1 else 1)
    assert left()["kind"] == "interrupted"
    assert left()["step"] == (8 if times == 1 else 7)
    assert Path("saved/last-hookbus.ckpt").exists() is (times == 1)


def test_a_program_that_handles_signals_gets_its_trainer_back() -> None:
    """The training ends, is saved, and nothing is raised."""
    seen: list[int] = []
    module = signalled()
    with handlers(lambda number, _: seen.append(number)):
        session(module)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert seen == [signal.SIGTERM]
    assert (left()["kind"], left()["step"]) == ("preempted", 8)
    assert Path("saved/last-hookbus.ckpt").exists()


def test_the_handlers_of_signals_are_as_before_behind_a_training() -> None:
    """Those of the Trainer and those of hookbus are gone."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    trained()
    assert before == [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    ]


def test_a_checkpoint_that_lightning_writes_after_a_signal_has_the_states() -> None:
    """OnExceptionCheckpoint saves when the session is over."""
    module = signalled()
    saver = OnExceptionCheckpoint("saved", "last-own")
    assert in_child(lambda: session(module, saver)) == 75
    for name in ("last-own", "last-hookbus"):
        kept = torch.load(f"saved/{name}.ckpt", weights_only=True)
        assert "hookbus" in kept["callbacks"]["BusCallback"], name


def test_a_training_in_a_thread_heeds_no_signal() -> None:
    """There Python has no handlers."""
    from tests.support.running import started

    found: list[Any] = []
    started(lambda: found.append(trained(StopAtStepHook(last_step=3)))).join()
    assert found[0][0].global_step == 3
