"""A model of small pictures, which are sequences as well, for tests of callbacks.

A model here has weights by their names in sessions, computes gradients, and updates. So a
loop by hand is written once for all libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hookbus import Graph
from tests.support.trainings import Library, Watch

Batch = tuple[Any, Any]
"""Pictures and their labels."""

EPOCHS, BATCHES, SIZE = 2, 15, 8
STEPS = EPOCHS * BATCHES
ROOM = 64
"""A step with more pictures is out of memory."""


class PictureModel(Protocol):
    """A model with its optimizer.

    Attributes:
        objects: what a session tracks.
        weights: the arrays that are trained, by name, which change in place.
    """

    objects: Mapping[str, Any]
    weights: Mapping[str, Any]

    def slope(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the loss, and the gradients by the names of their weights."""

    def update(self, gradients: Mapping[str, Any]) -> None:
        """Do a step of the optimizer with these gradients."""

    def clip(self, gradients: Mapping[str, Any], norm: float) -> Mapping[str, Any]:
        """Limit the common norm of gradients as is usual with the library."""

    def predict(self, batch: Batch) -> Any:
        """Return the predictions of an evaluation, as an array of NumPy."""

    def beside(self) -> Any:
        """Return a copy of what a forward pass changes."""

    def put_back(self, beside: Any) -> None:
        """Undo what forward passes have changed since."""

    def step(self, batch: Batch, step: Any) -> None:
        """Train on a batch in a step of a session."""


def batches_of(library: Library, seed: int = 5, number: int = BATCHES) -> list[Batch]:
    """Return the batches of an epoch."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        x = draw.normal(size=(SIZE, 6, 6)).astype(np.float32)
        y = np.eye(2, dtype=np.float32)[(x.mean((1, 2)) > 0).astype(int)]
        found.append((library.array(x), library.array(y)))
    return found


def check_room(batch: Batch) -> None:
    """Raise MemoryError for a batch that is too large."""
    if len(batch[0]) > ROOM:
        raise MemoryError("the batch is too large")


def _features(x: Any) -> Any:
    """Return features that pictures of all sizes have."""
    return np.stack([x.mean((1, 2)), (x * x).mean((1, 2)), x[:, 0, 0]], axis=1)


def _error(w: Any, b: Any, batch: Batch) -> Any:
    return _features(batch[0]) @ w + b - batch[1]


def _grad_w(w: Any, b: Any, batch: Batch) -> Any:
    return _features(batch[0]).T @ _error(w, b, batch) / np.float32(len(batch[0]))


def _grad_b(w: Any, b: Any, batch: Batch) -> Any:
    return _error(w, b, batch).mean(axis=0)


def _loss(w: Any, b: Any, batch: Batch) -> float:
    return float((_error(w, b, batch) ** 2).mean())


def _first() -> dict[str, Any]:
    w = np.random.default_rng(2).normal(size=(3, 2)).astype(np.float32)
    return {"w": w, "b": np.zeros(2, np.float32)}


RATE = np.float32(0.1)


class NumpyPictures:
    """A linear regression on features of pictures."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.state = _first()
        self.objects = {"model": self.state}
        self.weights = {f"model.{name}": self.state[name] for name in "wb"}

    def slope(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        w, b = self.state["w"], self.state["b"]
        check_room(batch)
        gradients = {"model.w": _grad_w(w, b, batch), "model.b": _grad_b(w, b, batch)}
        return _loss(w, b, batch), gradients

    def update(self, gradients: Mapping[str, Any]) -> None:
        for name, weight in self.weights.items():
            weight -= RATE * gradients[name]

    def clip(self, gradients: Mapping[str, Any], norm: float) -> Mapping[str, Any]:
        total = np.sqrt(sum(np.sum(np.abs(g) ** 2) for g in gradients.values()))
        scale = np.minimum(1.0, norm / (total + 1e-6))
        return {name: g * scale.astype(g.dtype) for name, g in gradients.items()}

    def predict(self, batch: Batch) -> Any:
        return _features(batch[0]) @ self.state["w"] + self.state["b"]

    def beside(self) -> Any:
        return None

    def put_back(self, beside: Any) -> None:
        """A forward pass changes nothing."""

    def step(self, batch: Batch, step: Any) -> None:
        loss, gradients = self.slope(batch)
        got = step.through(grad_w=gradients["model.w"], grad_b=gradients["model.b"])
        self.update({"model.w": got["grad_w"], "model.b": got["grad_b"]})
        step.report(loss=loss)


def numpy_graph(batches: Sequence[Batch], watch: Watch) -> Graph:
    """Return the same model as a graph."""
    graph = Graph()
    graph.input("batch", lambda: iter([*batches] * EPOCHS))
    for name, value in _first().items():
        graph.variable(f"model.{name}", value)
    weights = {name: f"model.{name}" for name in "wb"}

    @graph.op(reads={**weights, "step": "global_step"})
    def grad_w(w: Any, b: Any, batch: Batch, step: int) -> Any:
        watch(step + 1)
        return _grad_w(w, b, batch)

    graph.op(_grad_b, name="grad_b", reads=weights)
    graph.op(_loss, name="loss", reads=weights)
    graph.op(
        lambda w, b, batch: _features(batch[0]) @ w + b, name="prediction", reads=weights
    )
    graph.train_op(
        lambda w, b, grad_w, grad_b: (w - RATE * grad_w, b - RATE * grad_b),
        name="train",
        updates=["model.w", "model.b"],
        reads=weights,
    )
    return graph


NUMPY = Library("numpy", np.asarray, NumpyPictures, numpy_graph, "")
