"""A stranger's hook gets the same values in Keras' fit as everywhere."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hookbus_keras import BusCallback

from tests.support.places import BATCHES, EPOCHS, RATE, WEIGHT, check_place


def test_a_strangers_hook_in_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras logs the mean over an epoch so far, which is the loss in epochs of a batch."""
    one, zero = np.ones((1, 1), "float32"), np.zeros((1, 1), "float32")

    def trains() -> None:
        weight = keras.initializers.Constant(WEIGHT)
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=weight)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(keras.optimizers.SGD(RATE), "mse")
        with BusCallback() as bus:
            model.fit(one, zero, epochs=EPOCHS * BATCHES, verbose=0, callbacks=[bus])

    check_place(trains, monkeypatch)
