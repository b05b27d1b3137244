"""A small training run in Keras' fit, for the tests."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def net(rate: Any = 0.05, hidden: int = 0, **settings: Any) -> keras.Model:
    """Return a compiled model of one layer, always with the same weights.

    Args:
        rate: the learning rate, or an optimizer.
        hidden: the size of a layer before it, which is normalized and has dropout.
        settings: for ``compile``.
    """
    keras.utils.set_random_seed(1)
    layers: list[Any] = [keras.Input((4,))]
    if hidden:
        layers += [keras.layers.Dense(hidden, name="hidden")]
        layers += [keras.layers.BatchNormalization(name="norm")]
        layers += [keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(1, name="layer")], name="net")
    optimizer = keras.optimizers.SGD(rate, momentum=0.5) if np.isscalar(rate) else rate
    model.compile(optimizer, "mse", **settings)
    return model


def data(count: int = 24) -> tuple[Any, Any]:
    """Return examples, each with the sum of its numbers."""
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def fit(model: keras.Model, *callbacks: Any, **settings: Any) -> keras.callbacks.History:
    """Train 18 steps in three epochs, shuffled always alike, and validate after each."""
    keras.utils.set_random_seed(2)
    usual = {"batch_size": 4, "epochs": 3, "validation_data": data(8), "verbose": 0}
    return model.fit(*data(), callbacks=[*callbacks], **{**usual, **settings})


def weights_of(model: keras.Model) -> list[float]:
    """Return all numbers in the weights of a model."""
    return [float(each) for part in model.get_weights() for each in part.flatten()]
