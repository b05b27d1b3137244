"""The model of `tests.support.pictures` in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hookbus_torch import TorchGraph
from torch import nn

from tests.support.pictures import EPOCHS, Batch, check_room
from tests.support.trainings import Library, Watch

torch.set_num_threads(1)  # a forked child has one, which gives other bits


class Net(nn.Module):
    """A network for pictures of all sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.3))
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x.mean((1, 2)), x.square().mean((1, 2)), x[:, 0, 0]]
        return self.head(self.body(torch.stack(features, 1)))


class TorchPictures:
    """A network, and Adam."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        torch.manual_seed(1)
        self.module = Net()
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.05)
        self.objects = {"model": self.module, "optimizer": self.optimizer}
        self.parameters = {f"model.{n}": p for n, p in self.module.named_parameters()}
        state = self.module.state_dict()
        self.weights = {f"model.{n}": value for n, value in state.items() if value.shape}

    def loss(self, batch: Batch) -> torch.Tensor:
        check_room(batch)
        self.optimizer.zero_grad()
        loss = (self.module(batch[0]) - batch[1]).square().mean()
        loss.backward()
        return loss.detach()

    def slope(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        loss = self.loss(batch)
        return loss, {name: p.grad for name, p in self.parameters.items()}

    def update(self, gradients: Mapping[str, Any]) -> None:
        for name, parameter in self.parameters.items():
            if gradients[name] is not parameter.grad:
                parameter.grad.copy_(gradients[name])
        self.optimizer.step()

    def clip(self, gradients: Mapping[str, Any], norm: float) -> Mapping[str, Any]:
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)
        return gradients

    def predict(self, batch: Batch) -> Any:
        self.module.eval()
        with torch.no_grad():
            predicted = self.module(batch[0]).numpy()
        self.module.train()
        return predicted

    def beside(self) -> Any:
        buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        return buffers, torch.get_rng_state()

    def put_back(self, beside: Any) -> None:
        buffers, generator = beside
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])
        torch.set_rng_state(generator)

    def step(self, batch: Batch, step: Any) -> None:
        loss = self.loss(batch)
        self.optimizer.step()
        step.report(loss=loss)


def torch_graph(batches: Sequence[Batch], watch: Watch) -> TorchGraph:
    """Return the same model as a graph whose train op calls the optimizer."""
    model = TorchPictures(watch)
    graph = TorchGraph(**model.objects)
    graph.input("batch", lambda: iter([*batches] * EPOCHS))

    @graph.train_op(outputs="loss", reads={"step": "global_step"})
    def train(batch: Batch, step: int) -> Any:
        watch(step + 1)
        loss = model.loss(batch)
        model.optimizer.step()
        return {"loss": loss}

    graph.op(lambda batch: model.module(batch[0]), name="prediction")
    return graph


TORCH = Library("torch", torch.as_tensor, TorchPictures, torch_graph, "")
