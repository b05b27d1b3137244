"""Train a small PyTorch network on the handwritten digits, in one process or in several.

Start one process with ``hookbus run examples/torch_ddp.py``, four with ``torchrun
--nproc-per-node 4 -m hookbus run examples/torch_ddp.py``. Each rank trains on its part of
the data. The lines marked ``new`` make it a session that hooks can log, save, watch and
stop.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hookbus import MonitoredTrainingSession  # new


def train(epochs: int, directory: str) -> None:
    """Train on this rank's part of the digits."""
    torch.manual_seed(7)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(
        torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    )
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    sampler = None
    if distributed.is_initialized():
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(digits)
    loader = DataLoader(digits, 32, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    with MonitoredTrainingSession(checkpoint_dir=directory) as session:  # new
        session.track(model=model, optimizer=optimizer)  # new
        for _ in session.epochs(epochs):  # was: for _ in range(epochs):
            for x, y in session.iterate(loader):  # was: for x, y in loader:
                with session.step() as step:  # new
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    step.report(loss=loss)  # new


def main() -> None:
    """Join the other processes, if there are any, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint-dir", default="runs/torch_ddp")
    options = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        distributed.init_process_group("gloo")
    try:
        train(options.epochs, options.checkpoint_dir)
    finally:
        if several:
            distributed.destroy_process_group()


if __name__ == "__main__":
    main()
