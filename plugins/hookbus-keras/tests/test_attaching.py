"""Runs a script of Keras that knows nothing of hookbus, with hooks."""

from __future__ import annotations

import keras
from hookbus_keras import BusCallback
from hookbus_keras.attaching import attach

from hookbus import Config
from tests.support.attached import check_attached
from tests.support.in_keras import fit, net

SCRIPT = """
from tests.support.in_keras import fit, net, weights_of

model = net()
fit(model)
print(int(model.optimizer.iterations), weights_of(model))
"""


def test_the_command_carries_hooks_into_each_fit_of_a_script(monkeypatch) -> None:
    """The script prints what it prints without hooks; flags act as in any session."""
    check_attached("keras", SCRIPT, 18, monkeypatch)


def test_a_fit_that_has_the_callback_gets_no_second_one() -> None:
    """Behind the block Keras is as before."""
    before, own = keras.Model.fit, BusCallback(config=Config(autoload=False, header=False))
    with attach():
        fit(net(), own)
    assert own.outcome is not None
    assert keras.Model.fit is before
