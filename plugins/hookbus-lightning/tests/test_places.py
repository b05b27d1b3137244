"""A stranger's hook gets the same values in Lightning's Trainer as everywhere."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import pytest
from hookbus_lightning import BusCallback
from torch.utils.data import DataLoader

from tests.support.in_lightning import trainer_of
from tests.support.one_weight import Ones, OneWeight, sgd
from tests.support.places import EPOCHS, check_place


class Net(lightning.LightningModule):
    """Trains one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.model = OneWeight()

    def training_step(self, batch: Any, _: int) -> Any:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return sgd(self.model)


def test_a_strangers_hook_in_lightnings_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer tells its callbacks the loss."""

    def trains() -> None:
        trainer = trainer_of(BusCallback(), max_epochs=EPOCHS)
        trainer.fit(Net(), DataLoader(Ones()))

    check_place(trains, monkeypatch)
