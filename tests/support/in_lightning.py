"""A small training in Lightning's Trainer, for the tests."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    """Learns a sum with one layer, and logs its losses."""

    def __init__(self, rate: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> Any:
        loss = self._loss(batch)
        self.log("val_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])

    def _loss(self, batch: Any) -> Any:
        x, y = batch
        return ((self.layer(x) - y) ** 2).mean()


def data(count: int = 24) -> TensorDataset:
    """Return examples, each with the sum of its numbers."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def trainer_of(*callbacks: Any, **settings: Any) -> lightning.Trainer:
    """Return a quiet Trainer that trains 18 steps in three epochs."""
    usual = {"max_epochs": 3, "accelerator": "cpu", "logger": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(callbacks=[*callbacks], **{**usual, **quiet, **settings})


def fit(trainer: lightning.Trainer, path: Any = None, module: Any = None) -> Net:
    """Train a module, always from the same random numbers; return it."""
    lightning.seed_everything(1, verbose=False)
    module = Net() if module is None else module
    train, val = DataLoader(data(), 4, shuffle=True), DataLoader(data(8), 4)
    trainer.fit(module, train, val, ckpt_path=path)
    return module
