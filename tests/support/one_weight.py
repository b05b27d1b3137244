"""The training of one weight, made of PyTorch's parts, for the tests of all places."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.places import BATCHES, RATE, WEIGHT


class OneWeight(torch.nn.Module):
    """Multiplies by its weight, and returns the loss as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([WEIGHT]))

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        found = self.weight * x
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Ones(torch.utils.data.Dataset):
    """The batches of an epoch, each of one example whose label is zero."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, _: int) -> dict[str, Any]:
        return {"x": torch.ones(1), "labels": torch.zeros(1)}


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the training."""
    return torch.optim.SGD(model.parameters(), RATE)
