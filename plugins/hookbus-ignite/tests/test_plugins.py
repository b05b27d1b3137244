"""Tries every built-in plugin in an Engine: it works, or is refused."""

from __future__ import annotations

from typing import Any

import hookbus_ignite
import pytest

from hookbus import Config
from tests.support.in_ignite import Training, checkpoint_of
from tests.support.trainers import ROWS, Names, Row, Trained, Witness

OFF = Config(autoload=False, header=False)
NAMES = Names("val_loss", "optimizer.lr", "model.weight", evaluation="val")


def trained(hook: Any = None) -> Trained:
    training, witness = Training(), Witness()
    to_save = {"trainer": training.trainer, "model": training.model}
    bus = hookbus_ignite.attach(
        training.trainer,
        [each for each in (hook, witness) if each],
        model=training.model,
        optimizer=training.optimizer,
        evaluators={"val": training.evaluator},
        checkpoint=checkpoint_of(to_save),
        config=OFF,
    )
    training.run()
    rate = training.optimizer.param_groups[0]["lr"]
    steps, outcome = training.trainer.state.iteration, bus.outcome
    return Trained(steps, outcome, training.weights, rate, hook, witness.events)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.plugin)
def test_a_plugin_works_or_is_refused(row: Row) -> None:
    """There is no third state: a hook is never dropped without a word."""
    row.try_in("ignite", trained, NAMES)
