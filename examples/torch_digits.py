"""Train a small PyTorch network on the handwritten digits.

It is an ordinary training script. The lines marked ``new`` make it a session that hooks can
log, save, watch and stop; the line marked ``was`` keeps the position in the input. Flags
decide what to log and save: see ``hookbus run --help``.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from hookbus import MonitoredTrainingSession  # new


def main() -> None:
    """Train, then measure on the held-out fifth of the digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint-dir", default="runs/torch_digits")
    options = parser.parse_args()

    torch.manual_seed(7)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(
        torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16,
        torch.tensor(labels),
    )
    training, held_out = random_split(digits, [0.8, 0.2])
    loader = DataLoader(training, 64, shuffle=True, num_workers=options.workers)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

    directory = options.checkpoint_dir
    with MonitoredTrainingSession(checkpoint_dir=directory) as session:  # new
        session.track(model=model, optimizer=optimizer, scheduler=scheduler)  # new
        for _ in session.epochs(options.epochs):  # was: in range(options.epochs)
            for x, y in session.iterate(loader):  # was: for x, y in loader:
                with session.step() as step:  # new
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    step.report(loss=loss)  # new
            scheduler.step()

    model.eval()
    x, y = held_out[:]
    accuracy = (model(x).argmax(1) == y).float().mean()
    print(f"held-out accuracy: {accuracy:.1%}")


if __name__ == "__main__":
    main()
