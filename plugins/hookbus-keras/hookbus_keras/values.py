"""Names the values of a Keras model, and reads and writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np

Pair: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]
"""Returns a value, and writes it."""

RATE = "optimizer.learning_rate"


def values_of(model: Any) -> dict[str, Pair]:
    """Return how to read and write the weights and the learning rate, by name.

    A weight is called as its variable: ``model.dense.kernel``. Of several with one name,
    the others get ``_1``, ``_2`` and so on.

    Args:
        model: the model, which is built.
    """
    found: dict[str, Pair] = {}
    for variable in model.weights:
        path = variable.path.removeprefix(f"{model.name}/")
        name = _free(f"model.{path.replace('/', '.')}", found)
        found[name] = _pair(model, variable)
    if model.optimizer is not None:
        found[RATE] = _rate(model)
    return found


def updates_of(model: Any) -> int:
    """Return how often the optimizer of a model was called: the number of batches."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    _sync(model)
    variables = () if optimizer is None else optimizer.variables
    counts = [each for each in variables if each.name == "iteration"]
    return int(_on_host(counts[0])) if counts else 0


def _pair(model: Any, variable: Any) -> Pair:
    def read() -> Any:
        _sync(model)
        return _on_host(variable)

    def write(value: Any) -> None:
        _sync(model)
        variable.assign(value)

    return read, write


def _rate(model: Any) -> Pair:
    def read() -> Any:
        _sync(model)
        return _on_host(model.optimizer.learning_rate)

    def write(value: Any) -> None:
        _sync(model)
        model.optimizer.learning_rate = float(value)

    return read, write


def _sync(model: Any) -> None:
    """Have the variables hold the values of now, and the next step read them.

    With JAX, a step passes the values on without the variables.
    """
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


def _on_host(value: Any) -> Any:
    """Return a value as an array of NumPy with memory of its own, or as a number of it."""
    # A step may change the memory of a tensor, or give it away.
    return np.array(keras.ops.convert_to_numpy(value))[()]


def _free(name: str, used: dict[str, Pair]) -> str:
    """Return a name that is not used yet."""
    number, free = 0, name
    while free in used:
        number += 1
        free = f"{name}_{number}"
    return free
