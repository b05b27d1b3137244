"""Trains the model of `tests.support.trainings` with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hookbus_torch import TorchGraph
from torch import nn

from tests.support.trainings import Batch, Library, Watch


class TorchModel:
    """A network with a hidden layer, and Adam."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        torch.manual_seed(1)
        self.module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.05)
        self.objects = {"model": self.module, "optimizer": self.optimizer}
        self.number = 0

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.param_groups[0]["lr"] = value

    def add_gradient(self, batch: Batch) -> torch.Tensor:
        number, x = batch
        self.watch(number)
        loss = (self.module(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.number += 1
        return loss.detach()

    def update(self) -> None:
        for parameter in self.module.parameters():
            assert parameter.grad is not None
            parameter.grad /= self.number
        self.optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad()
        self.number = 0

    def weights(self) -> dict[str, Any]:
        state = self.module.state_dict()
        return {f"model.{name}": value.clone() for name, value in state.items()}


def torch_graph(batches: Sequence[Batch], watch: Watch) -> TorchGraph:
    """Return the same model as a graph whose train op calls the optimizer."""
    model = TorchModel(watch)
    graph = TorchGraph(**model.objects)
    graph.input("batch", lambda: iter(batches))

    @graph.train_op(outputs="loss")
    def train(batch: Batch) -> Any:
        loss = model.add_gradient(batch)
        model.update()
        return {"loss": loss}

    return graph


TORCH = Library("torch", torch.as_tensor, TorchModel, torch_graph, "optimizer.lr")
