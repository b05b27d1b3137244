"""A small model, which the loops of `hookbus.testing` train to test hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class TorchLoopModel:
    """Trains a network of two layers, without noise.

    Attributes:
        objects: the network ``model`` and its ``optimizer``, which has a momentum.
    """

    def __init__(self) -> None:
        # The program's generators stay as they are.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1)
            self._model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        parameters = self._model.parameters()
        self._optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.5)
        self.objects: Mapping[str, Any] = {
            "model": self._model,
            "optimizer": self._optimizer,
        }

    def train(self, x: float) -> Mapping[str, Any]:
        """Train for one step; return its loss."""
        self._optimizer.zero_grad()
        loss = self._loss(x)
        loss.backward()
        self._optimizer.step()
        return {"loss": loss.detach()}

    def evaluate(self, x: float) -> Mapping[str, Any]:
        """Return the loss of a step that does not train."""
        with torch.no_grad():
            return {"loss": self._loss(x)}

    def _loss(self, x: float) -> torch.Tensor:
        batch = torch.linspace(-1.0, 1.0, 12).reshape(4, 3) / x
        loss: torch.Tensor = (self._model(batch) - batch.sum(1, keepdim=True)).square()
        return loss.mean()
