"""Runs a script of transformers that knows nothing of hookbus, with hooks."""

from __future__ import annotations

import pytest
from hookbus_transformers import BusCallback
from hookbus_transformers.attaching import attach
from transformers import Trainer

from tests.support.attached import check_attached
from tests.support.in_transformers import Net, trainer_of, weights_of

SCRIPT = """
from tests.support.in_transformers import trainer_of, weights_of

trainer = trainer_of()
trainer.train()
print(trainer.state.global_step, weights_of(trainer.model))
"""


def test_the_command_carries_hooks_into_the_trainers_of_a_script(monkeypatch) -> None:
    """The script prints what it prints without hooks; flags act as in any session."""
    check_attached("transformers", SCRIPT, 18, monkeypatch)


class BrokenNet(Net):
    """Computes nothing."""

    def forward(self, x, labels=None):
        raise ValueError("no batch is good")


def test_a_trainer_that_has_the_callback_gets_no_second_one() -> None:
    """Behind the block trainers are as before, also after an error of one."""
    train = Trainer.train
    with attach(), BusCallback() as own:
        trainer = trainer_of(own)
        trainer.train()
        assert own.outcome is not None
        broken = trainer_of(model=BrokenNet)
        with pytest.raises(ValueError, match=r"^no batch is good$"):
            broken.train()
        callbacks = broken.callback_handler.callbacks
        assert not any(isinstance(each, BusCallback) for each in callbacks)
    assert Trainer.train is train
    assert weights_of(trainer.model)
