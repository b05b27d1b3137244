"""Tries every built-in plugin in Lightning's Trainer: it works, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hookbus_lightning import BusCallback

from tests.support.in_lightning import OFF, fit, trainer_of, weights
from tests.support.trainers import ROWS, Names, Row, Trained, Witness

NAMES = Names("val_loss", "optimizer.lr", "model.layer.weight")


def trained(hook: Any = None) -> Trained:
    witness = Witness()
    callback = BusCallback([each for each in (hook, witness) if each], config=OFF)
    trainer = trainer_of(callback)
    module = fit(trainer)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    events = witness.events
    return Trained(
        trainer.global_step, callback.outcome, weights(module), rate, hook, events
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.plugin)
def test_a_plugin_works_or_is_refused(row: Row) -> None:
    """There is no third state: a hook is never dropped without a word."""
    row.try_in("lightning", trained, NAMES)
