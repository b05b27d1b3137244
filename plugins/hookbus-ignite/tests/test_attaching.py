"""Runs a script of Ignite that knows nothing of hookbus, with hooks."""

from __future__ import annotations

from hookbus_ignite import attach
from hookbus_ignite.scripts import attach_to_engines
from ignite.engine import Engine

from hookbus import Config
from tests.support.attached import check_attached
from tests.support.in_ignite import Training

SCRIPT = """
from tests.support.in_ignite import Training

training = Training()
training.run()
print(training.trainer.state.iteration, training.weights)
"""
OFF = Config(autoload=False, header=False)


def test_the_command_carries_hooks_into_the_engines_of_a_script(monkeypatch) -> None:
    """The script prints what it prints without hooks; flags act as in any session."""
    check_attached("ignite", SCRIPT, 18, monkeypatch)


def test_only_an_engine_that_trains_gets_hooks_and_none_gets_them_twice() -> None:
    """Behind the block engines are as before."""
    run, training, other = Engine.run, Training(), Training()
    bus = attach(training.trainer, model=training.model, config=OFF)
    with attach_to_engines():
        training.run()
        other.run(epochs=1)
    assert bus.outcome is not None
    assert "run" in vars(other.trainer)
    assert "run" not in vars(other.evaluator)
    assert Engine.run is run
