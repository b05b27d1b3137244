"""A small training run in an Engine of Ignite, for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ignite
import pytest
import torch
from ignite.engine import DeterministicEngine, Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Loss
from ignite.utils import manual_seed
from packaging.version import Version
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def data(count: int = 24) -> TensorDataset:
    """Return examples, each with the sum of its numbers."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def since_ignite(version: str) -> pytest.MarkDecorator:
    """Return a mark for a test of what Ignite has since a version."""
    is_older = Version(ignite.__version__) < Version(version)
    return pytest.mark.skipif(is_older, reason=f"needs Ignite {version}")


def checkpoint_of(to_save: Mapping[str, Any], **settings: Any) -> Checkpoint:
    """Return a handler that writes into a folder in which there may be checkpoints."""
    saver = DiskSaver("checkpoints", create_dir=True, require_empty=False)
    return Checkpoint(to_save, saver, **settings)


class Training:
    """A model that learns a sum, with its engines; always from the same random numbers.

    Args:
        accumulates: the number of batches for each update.
        evaluates: whether the engine evaluates after each epoch.
        shuffles: whether the batches are shuffled. A worker loads them then: without one,
            a deterministic engine of Ignite that goes on within an epoch has other batches.

    Attributes:
        losses: what the process function returned, in order.
    """

    def __init__(
        self, accumulates: int = 1, evaluates: bool = True, shuffles: bool = False
    ) -> None:
        manual_seed(1)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.accumulates, self.losses = accumulates, []  # type: tuple[int, list[float]]
        self.trainer: Engine = DeterministicEngine(self._step)
        self.evaluator = Engine(self._evaluate)
        Loss(mse_loss, output_transform=lambda o: (o["y_pred"], o["y"])).attach(
            self.evaluator, "val_loss"
        )
        self.loader = DataLoader(data(), 4, shuffle=shuffles, num_workers=int(shuffles))
        if evaluates:
            self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.evaluate)

    def run(self, epochs: int = 3) -> None:
        """Train, by default 18 iterations in three epochs."""
        self.trainer.run(self.loader, max_epochs=epochs)

    def evaluate(self) -> None:
        """Run the evaluator."""
        self.evaluator.run(DataLoader(data(8), 4))

    @property
    def weights(self) -> list[float]:
        """The values of all weights."""
        return [
            each for p in self.model.parameters() for each in p.detach().flatten().tolist()
        ]

    def _step(self, engine: Engine, batch: Any) -> float:
        if (engine.state.iteration - 1) % self.accumulates == 0:
            self.optimizer.zero_grad()
        x, y = batch
        noisy = x + 0.1 * torch.randn(x.shape)
        loss = mse_loss(self.model(noisy), y)
        (loss / self.accumulates).backward()
        if engine.state.iteration % self.accumulates == 0:
            self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]

    def _evaluate(self, _: Engine, batch: Any) -> dict[str, Any]:
        x, y = batch
        with torch.no_grad():
            y_pred = self.model(x)
        return {"y_pred": y_pred, "y": y, "loss": mse_loss(y_pred, y)}
