"""Runs a Lightning script that knows nothing of hookbus under ``--attach lightning``."""

from __future__ import annotations

from hookbus_lightning import BusCallback
from hookbus_lightning.attaching import attach
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.support.attached import check_attached
from tests.support.in_lightning import fit, trainer_of

SCRIPT = """
from tests.support.in_lightning import fit, trainer_of

trainer = trainer_of()
module = fit(trainer)
print(trainer.global_step, [part.tolist() for part in module.parameters()])
"""


def test_the_command_puts_the_callback_into_the_trainers_of_a_script(monkeypatch) -> None:
    """The script prints what it prints without hooks; flags act as in any session."""
    check_attached("lightning", SCRIPT, 18, monkeypatch)


def test_a_trainer_that_has_the_callback_gets_no_second_one() -> None:
    """Callbacks that save still come last, and after the block trainers are as before."""
    make = Trainer.__init__
    own = BusCallback()
    with attach():
        with_own = trainer_of(own)
        without = trainer_of(ModelCheckpoint(dirpath="saved"))
    buses = [
        [e for e in t.callbacks if isinstance(e, BusCallback)] for t in (with_own, without)
    ]
    assert buses[0] == [own]
    assert len(buses[1]) == 1
    assert isinstance(without.callbacks[-1], ModelCheckpoint)
    assert Trainer.__init__ is make
    assert fit(trainer_of()) is not None
