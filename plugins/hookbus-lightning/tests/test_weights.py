"""With the callback a run ends with the same weights, bit for bit, as without it."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from hookbus_lightning import BusCallback
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_monitor import MonitorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_throughput import ThroughputHook
from hookbus_weight_average import WeightAverageHook

from tests.support.in_lightning import OFF, Net, fit, trainer_of, weights


class Dropped(Net):
    """Has dropout and statistics, and a scheduler that steps after each epoch."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.layer = torch.nn.Sequential(  # type: ignore[assignment]
            torch.nn.Linear(4, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 1),
        )

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Plateau(Dropped):
    """Has Lightning lower the rate by what its validation logs."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
        }


def observers() -> list[Any]:
    """Return hooks that read everything, and change nothing."""
    return [
        LoggingTensorHook(["loss", "optimizer.lr", "model:grad_norm"], every_n_iter=2),
        MonitorHook(["model.*"], every_n_steps=3),
        NanTensorHook(),
        ThroughputHook(every_n_steps=2),
        WeightAverageHook(decay=0.9),
    ]


@pytest.mark.parametrize("hooks", [list, observers], ids=["alone", "observed"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="usual"),
        pytest.param({"accumulate_grad_batches": 4}, id="accumulated"),
        pytest.param({"gradient_clip_val": 0.01}, id="clipped"),
        pytest.param({"val_check_interval": 2}, id="often-validated"),
        pytest.param({"precision": "bf16-mixed"}, id="bf16-mixed"),
        pytest.param({"precision": "64-true"}, id="64-true"),
        pytest.param({"module": Plateau}, id="plateau"),
        pytest.param({"max_steps": 7, "limit_val_batches": 0}, id="limited"),
        pytest.param({"overfit_batches": 2}, id="overfit"),
        pytest.param({"barebones": True, "logger": None}, id="barebones"),
        pytest.param({"fast_dev_run": 3}, id="fast-dev-run"),
        pytest.param({"detect_anomaly": True}, id="detect-anomaly"),
    ],
)
def test_the_weights_are_the_same(settings: dict[str, Any], hooks: Any) -> None:
    """Shuffled, with dropout, whatever hooks look at."""
    settings = dict(settings)
    module = settings.pop("module", Dropped)
    plain = fit(trainer_of(**settings), module=module)
    callback = BusCallback(hooks(), config=OFF)
    trainer = trainer_of(callback, **settings)
    assert weights(fit(trainer, module=module)) == weights(plain)
    assert callback.outcome is not None
    assert callback.outcome.step == trainer.global_step > 0


def test_a_callback_serves_several_trainings() -> None:
    """One after another, also of other Trainers; each begins anew."""
    callback = BusCallback(config=OFF)
    trained = [weights(fit(trainer_of(callback))) for _ in range(2)]
    assert trained[0] == trained[1] == weights(fit(trainer_of()))
    assert callback.outcome is not None
    assert callback.outcome.step == 18


def test_the_tuner_of_lightning_tries_rates_without_hooks() -> None:
    """And the training behind it is told from its first step on."""
    from lightning.pytorch.tuner import Tuner
    from torch.utils.data import DataLoader

    from tests.support.in_lightning import data

    callback = BusCallback(config=OFF)
    trainer = trainer_of(callback)
    lightning.seed_everything(1, verbose=False)
    module = Net()
    Tuner(trainer).lr_find(
        module,
        DataLoader(data(), 4),
        DataLoader(data(8), 4),
        num_training=5,
        attr_name="rate",
    )
    assert callback.session is None
    fit(trainer, module=module)
    assert callback.outcome is not None
    assert callback.outcome.step == 18
