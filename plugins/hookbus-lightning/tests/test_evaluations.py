"""Hooks are told of epochs and of validations, with the metrics under Lightning's names."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from hookbus_lightning import BusCallback
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from hookbus import HookOptions, SessionRunArgs, SessionRunHook, hookimpl
from tests.support.in_lightning import OFF, Net, data, fit, trainer_of


class Told(SessionRunHook):
    """Notes epochs and evaluations, with the step of each."""

    def __init__(self) -> None:
        self.evaluations: list[Any] = []
        self.epochs: list[Any] = []
        self.swaps = 0

    def before_run(self, run_context: Any) -> None:
        self.epoch = run_context.epoch

    @hookimpl
    def evaluated(self, metrics: Any, global_step: int, name: str | None) -> None:
        self.evaluations.append((global_step, dict(metrics)))

    @hookimpl
    def epoch_ended(self, epoch: int, global_step: int) -> None:
        assert epoch == self.epoch
        self.epochs.append((epoch, global_step))


class Batches(SessionRunHook):
    """Sees the batches of evaluations."""

    options = HookOptions(kinds=("train", "eval"))

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.seen: list[Any] = []

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        return SessionRunArgs(self.names) if run_context.kind == "eval" else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.kind == "eval":
            self.seen.append([value.tolist() for value in run_values.results])


class Logged(lightning.Callback):
    """Keeps what Lightning knows behind each validation."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            found = trainer.callback_metrics
            self.metrics.append({n: float(v) for n, v in found.items() if "train" not in n})


def told(module: Any = Net, **settings: Any) -> tuple[Told, Logged]:
    hook, logged = Told(), Logged()
    trainer = trainer_of(BusCallback([hook], config=OFF), logged, **settings)
    fit(trainer, module=module)
    return hook, logged


@pytest.mark.parametrize("sanity", [0, 2, -1])
def test_validations_are_told_with_what_they_log(sanity: int) -> None:
    """Not the check before the training, which tries the code."""
    hook, logged = told(num_sanity_val_steps=sanity)
    assert [step for step, _ in hook.evaluations] == [6, 12, 18]
    assert [metrics for _, metrics in hook.evaluations] == logged.metrics
    assert hook.epochs == [(0, 6), (1, 12), (2, 18)]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"val_check_interval": 4, "check_val_every_n_epoch": None}, [4, 8, 12, 16]),
        ({"val_check_interval": 0.5}, [3, 6, 9, 12, 15, 18]),
        ({"check_val_every_n_epoch": 2}, [12]),
        ({"limit_val_batches": 0}, []),
        ({"accumulate_grad_batches": 4, "val_check_interval": 3}, [0, 2, 2, 4, 4, 6]),
    ],
)
def test_a_validation_has_the_step_at_which_it_comes(
    settings: dict[str, Any], steps: list[int]
) -> None:
    """Also in the middle of an update, whose step it does not count."""
    hook, logged = told(**settings)
    assert [step for step, _ in hook.evaluations] == steps
    assert [metrics for _, metrics in hook.evaluations] == logged.metrics


class Several(Net):
    """Validates on two sets, with a metric of torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.error = MeanMetric()

    def val_dataloader(self) -> Any:
        return [DataLoader(data(8), 4), DataLoader(data(4), 4)]

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> Any:
        self.log("val_loss", self._loss(batch))
        self.error.update(self._loss(batch))
        return {"which": torch.tensor(dataloader_idx), "outputs": self.layer(batch[0])}

    def on_validation_epoch_end(self) -> None:
        self.log("error", self.error)


def test_several_validation_sets_have_lightnings_names() -> None:
    """Hooks of evaluations see the results of validation_step."""
    hook, logged, batches = Told(), Logged(), Batches("which")
    trainer = trainer_of(BusCallback([hook, batches], config=OFF), logged)
    lightning.seed_everything(1, verbose=False)
    trainer.fit(Several(), DataLoader(data(), 4))
    names = {"val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1", "error"}
    assert all(metrics.keys() == names for _, metrics in hook.evaluations)
    assert [metrics for _, metrics in hook.evaluations] == logged.metrics
    assert batches.seen == [[0], [0], [1]] * 3


class Silent(Net):
    """Logs nothing in its validation, and returns a tensor."""

    def validation_step(self, batch: Any, _: int) -> Any:
        return self._loss(batch)


def test_a_validation_without_metrics_is_no_news() -> None:
    """Its batches are seen, with the loss that each returned."""
    batches, hook = Batches("loss"), Told()
    fit(trainer_of(BusCallback([batches, hook], config=OFF)), module=Silent)
    assert len(batches.seen) == 6
    assert hook.evaluations == []


def test_what_is_no_part_of_a_training_is_not_told() -> None:
    """validate(), test() and predict(), before, behind and without one."""

    class Whole(Net):
        def test_step(self, batch: Any, number: int) -> None:
            self.log("test_loss", self._loss(batch))

        def predict_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0])

    hook = Told()
    callback = BusCallback([hook], config=OFF)
    trainer, module, loader = trainer_of(callback), Whole(), DataLoader(data(8), 4)

    def use() -> None:
        assert trainer.validate(module, loader, verbose=False)[0].keys() == {"val_loss"}
        assert trainer.test(module, loader, verbose=False)[0].keys() == {"test_loss"}
        assert len(trainer.predict(module, loader)) == 2

    use()
    assert callback.session is None
    fit(trainer, module=module)
    before = list(hook.evaluations)
    assert [step for step, _ in before] == [6, 12, 18]
    use()
    assert hook.evaluations == before


def test_an_epoch_whose_rest_is_left_out_has_ended() -> None:
    """Hooks are told where the Trainer begins the next one."""

    class Leaves(Net):
        def on_train_batch_start(self, batch: Any, number: int) -> int | None:
            return -1 if number == 4 else None

    hook, _ = told(Leaves)
    assert hook.epochs == [(0, 4), (1, 8), (2, 12)]
