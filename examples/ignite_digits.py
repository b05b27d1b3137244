"""Train a small network on the handwritten digits in an Engine of PyTorch-Ignite.

It is ordinary training with Ignite. The lines marked ``new`` run hooks in it. Flags decide
which hooks: see ``hookbus run --help``. Started again, it goes on from the newest
checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import hookbus_ignite  # new
import torch
import torch.nn.functional as F
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def main() -> None:
    """Train, and evaluate on the held-out fifth of the digits after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint-dir", default="runs/ignite_digits")
    options = parser.parse_args()

    torch.manual_seed(7)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(
        torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    )
    training, held_out = random_split(digits, [0.8, 0.2])
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
    to_save: dict[str, Any] = {"trainer": trainer, "model": model, "optimizer": optimizer}
    directory = Path(options.checkpoint_dir)
    saver = DiskSaver(directory, create_dir=True, require_empty=False)
    checkpoint = Checkpoint(to_save, saver, n_saved=None)
    to_save["bus"] = hookbus_ignite.attach(  # new
        trainer,
        model=model,
        optimizer=optimizer,
        evaluators={"held-out": evaluator},
        checkpoint=checkpoint,
    )

    loader = DataLoader(held_out, 64)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoint)
    saved = sorted(directory.glob("*.pt"), key=lambda path: int(path.stem.split("_")[-1]))
    if saved:
        Checkpoint.load_objects(to_save, torch.load(saved[-1], weights_only=True))
    trainer.run(DataLoader(training, 64, shuffle=True), max_epochs=options.epochs)


if __name__ == "__main__":
    main()
