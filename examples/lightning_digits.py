"""Train a small network on the handwritten digits in Lightning's Trainer.

It is an ordinary Lightning script. The lines marked ``new`` let hooks log, save, watch and
stop the training. Flags decide what they do: see ``hookbus run --help``.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from hookbus_lightning import BusCallback  # new
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(pl.LightningModule):
    """Classifies pictures of 8 by 8 pixels."""

    def __init__(self, rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.rate = rate
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss of a batch."""
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the accuracy on held-out digits."""
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        """Train with Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.rate)


def main() -> None:
    """Train, or go on from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint-dir", default="runs/lightning_digits")
    options = parser.parse_args()

    pl.seed_everything(7, verbose=False)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(
        torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16,
        torch.tensor(labels),
    )
    training, held_out = random_split(digits, [0.8, 0.2])
    saver = ModelCheckpoint(options.checkpoint_dir, save_last=True)
    trainer = pl.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver, BusCallback()],  # new: BusCallback()
    )
    loaders = DataLoader(training, 64, shuffle=True), DataLoader(held_out, 512)
    trainer.fit(Digits(), *loaders, ckpt_path="last")
    print(f"held-out accuracy: {trainer.callback_metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
