"""Tries every built-in plugin in the Trainer of transformers: it works, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hookbus_transformers import BusCallback

from hookbus import Config
from tests.support.in_transformers import trainer_of, weights_of
from tests.support.trainers import ROWS, Names, Row, Trained, Witness

OFF = Config(autoload=False, header=False)
NAMES = Names("eval_loss", "optimizer.lr", "model.layer.weight")


def trained(hook: Any = None) -> Trained:
    witness = Witness()
    with BusCallback([each for each in (hook, witness) if each], config=OFF) as bus:
        trainer = trainer_of(bus, lr_scheduler_type="constant")
        trainer.train()
    rate = trainer.optimizer.param_groups[0]["lr"]
    weights, events = weights_of(trainer.model), witness.events
    return Trained(trainer.state.global_step, bus.outcome, weights, rate, hook, events)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.plugin)
def test_a_plugin_works_or_is_refused(row: Row) -> None:
    """There is no third state: a hook is never dropped without a word."""
    row.try_in("transformers", trained, NAMES)
