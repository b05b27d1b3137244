"""Tries every built-in plugin in Keras' fit: it works, or is refused."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from hookbus_keras import BusCallback

from hookbus import Config
from tests.support.in_keras import fit, net, weights_of
from tests.support.trainers import ROWS, Names, Row, Trained, Witness

OFF = Config(autoload=False, header=False)
NAMES = Names("val_loss", "optimizer.learning_rate", "model.layer.kernel", grads=None)


def trained(hook: Any = None) -> Trained:
    witness, model = Witness(), net()
    folder = f"backup-{'plain' if hook is None else 'hook'}"
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    hooks = [each for each in (hook, witness) if each]
    callback = BusCallback(hooks, backup=backup, config=OFF)
    with callback:
        fit(model, callback, shuffle=False)
    steps, rate = int(model.optimizer.iterations), float(model.optimizer.learning_rate)
    weights, events = weights_of(model), witness.events
    return Trained(steps, callback.outcome, weights, rate, hook, events)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.plugin)
def test_a_plugin_works_or_is_refused(row: Row) -> None:
    """There is no third state: a hook is never dropped without a word."""
    row.try_in("keras", trained, NAMES)
