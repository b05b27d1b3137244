"""Tests what errors do: those of hooks, of the program, and of the arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import hookbus_ignite
import pytest
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, ModelCheckpoint

from hookbus import Config, SessionRunHook, UsageError
from tests.support.in_ignite import Training

OFF = Config(autoload=False, header=False)


class ToldHook(SessionRunHook):
    """Notes how it ended."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def end(self, session):
        self.told.append("end")

    def on_exception(self, session, exception):
        self.told.append(f"{type(exception).__name__}: {exception}")


class FailsHook(SessionRunHook):
    """Fails in the step after another one."""

    def after_run(self, run_context, run_values):
        if run_values.global_step == 4:
            raise RuntimeError("too hot")


def attach(training: Training, *hooks: Any, **settings: Any) -> hookbus_ignite.EngineBus:
    usual = {"model": training.model, "optimizer": training.optimizer, "config": OFF}
    return hookbus_ignite.attach(training.trainer, hooks, **{**usual, **settings})


@pytest.mark.parametrize("keeps", [False, True])
def test_the_error_of_a_hook_leaves_the_run(keeps: bool) -> None:
    """It names the hook, and no handler of EXCEPTION_RAISED keeps it in the engine."""
    training, told, kept = Training(), ToldHook(), []  # type: tuple[Any, ToldHook, list[Any]]
    bus = attach(training, told, FailsHook())
    if keeps:
        training.trainer.add_event_handler(Events.EXCEPTION_RAISED, kept.append)
    with pytest.raises(RuntimeError, match="too hot") as raised:
        training.run()
    assert "plugin 'fails'" in raised.value.__notes__[0]
    assert len(kept) == keeps
    assert len(training.losses) == 4
    assert told.told == ["RuntimeError: too hot"]
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.who) == ("failed", "fails")


def test_an_error_of_the_program_reaches_hooks() -> None:
    """It leaves the run as itself."""
    training, told = Training(), ToldHook()

    def fail() -> None:
        raise ValueError("bad batch")

    training.trainer.add_event_handler(Events.ITERATION_STARTED(once=3), fail)
    bus = attach(training, told)
    with pytest.raises(ValueError, match="bad batch"):
        training.run()
    assert told.told == ["ValueError: bad batch"]
    assert bus.outcome is not None
    assert bus.outcome.step == 2


def test_an_error_that_a_handler_keeps_goes_on_as_in_ignite() -> None:
    """The engine ends the epoch, and begins the next one; hooks see that."""

    def trained(*hooks: Any) -> Training:
        training = Training()

        def fail() -> None:
            raise ValueError("bad batch")

        training.trainer.add_event_handler(Events.ITERATION_STARTED(once=3), fail)
        training.trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda error: None)
        if hooks:
            attach(training, *hooks, evaluators={"val": training.evaluator})
        training.run()
        return training

    told = ToldHook()
    with_hooks, plain = trained(told), trained()
    assert with_hooks.weights == plain.weights
    assert with_hooks.losses == plain.losses
    assert told.told == ["end"]


def test_an_error_in_a_handler_of_completed_reaches_hooks() -> None:
    """The session ends behind all handlers."""
    training, told = Training(), ToldHook()
    attach(training, told)

    def fail() -> None:
        raise ValueError("no disk")

    training.trainer.add_event_handler(Events.COMPLETED, fail)
    with pytest.raises(ValueError, match="no disk"):
        training.run()
    assert told.told == ["ValueError: no disk"]


def test_an_error_in_an_evaluation_ends_it() -> None:
    """If a handler of the evaluator keeps it, the next evaluation begins as usual."""
    training, told = Training(), ToldHook()
    failures = [1]

    def fail() -> None:
        if failures:
            failures.pop()
            raise ValueError("bad batch")

    training.evaluator.add_event_handler(Events.ITERATION_STARTED, fail)
    training.evaluator.add_event_handler(Events.EXCEPTION_RAISED, lambda error: None)
    bus = attach(training, told, evaluators={"val": training.evaluator})
    training.run()
    assert told.told == ["end"]
    assert bus.outcome is not None
    assert bus.outcome.step == 18


def test_an_interrupt_in_the_middle_of_a_step_reaches_hooks() -> None:
    """Like a second Ctrl-C."""
    training, told = Training(), ToldHook()
    bus = attach(training, told)

    def interrupt() -> None:
        raise KeyboardInterrupt

    training.trainer.add_event_handler(Events.ITERATION_STARTED(once=3), interrupt)
    with pytest.raises(KeyboardInterrupt):
        training.run()
    assert told.told == ["KeyboardInterrupt: "]
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.step) == ("interrupted", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluators": {"val": print}}, "'val' is no engine that evaluates"),
        ({"checkpoint": "model"}, "give a function like lambda engine"),
        ({"checkpoint": "score"}, "a handler with a score"),
        ({"track": {"model": 1}}, "has the name 'model'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Before the training begins."""
    training = Training()
    handlers = {
        "model": lambda: ModelCheckpoint("own", create_dir=True),
        "score": lambda: Checkpoint({"m": training.model}, "own", score_name="val_loss"),
    }
    if "checkpoint" in arguments:
        arguments = {"checkpoint": handlers[arguments["checkpoint"]]()}
    with pytest.raises(UsageError, match=message):
        attach(training, **arguments)


def test_the_engine_that_trains_is_no_evaluator() -> None:
    """Its epochs would be evaluations."""
    training = Training()
    with pytest.raises(UsageError, match="other than the one that trains"):
        attach(training, evaluators={"val": training.trainer})


def test_an_engine_is_attached_once() -> None:
    """Two buses would count each step twice."""
    training = Training()
    attach(training)
    with pytest.raises(UsageError, match="attach\\(\\) was called before for this engine"):
        attach(training)


def test_only_an_engine_is_attached() -> None:
    """The message shows what was given."""
    with pytest.raises(UsageError, match="takes an Engine of Ignite, given: 5"):
        hookbus_ignite.attach(5)


@pytest.mark.parametrize(
    ("output", "naming", "message"),
    [
        ((1, 2), None, "is a tuple of 2 values, which has no name.*output="),
        ([1], None, "is a list of 1 values, which has no name"),
        (torch.ones(2), None, r"is a tensor of shape \(2,\), which has no name"),
        ("text", None, "is of type str, which has no name"),
        ((1, 2), ["loss"], "has 1 names, and the output of the engine is a tuple of 2"),
        (1.0, ["loss"], "has 1 names, and the output of the engine is of type float"),
        (1.0, lambda output: output, "returned of type float; return a dict"),
    ],
)
def test_an_output_without_names_is_refused(output: Any, naming: Any, message: str) -> None:
    """At the end of the first iteration."""
    engine = Engine(lambda engine, batch: output)
    hookbus_ignite.attach(engine, output=naming, config=OFF)
    with pytest.raises(UsageError, match=message):
        engine.run([0])


def test_the_output_of_an_evaluator_needs_names() -> None:
    """The message names the argument for evaluators."""
    training = Training()
    training.evaluator = Engine(lambda engine, batch: (1, 2, 3))
    attach(training, evaluators={"val": training.evaluator})
    with pytest.raises(UsageError, match=r"a tuple of 3 values.*evaluator_output="):
        training.run()


def test_a_version_of_ignite_out_of_range_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message tells what to install."""
    there = tmp_path / "pytorch_ignite-0.4.11.dist-info"
    there.mkdir()
    (there / "METADATA").write_text("Name: pytorch-ignite\nVersion: 0.4.11\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UsageError, match=r"pytorch-ignite 0\.4\.11 is installed: pip install"
    ):
        attach(Training())


def test_without_ignite_the_message_says_what_to_install() -> None:
    """The import fails."""
    code = "import sys; sys.modules['ignite'] = None; import hookbus_ignite"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "hookbus-ignite needs PyTorch-Ignite, which cannot be imported" in done.stderr
    assert "pip install pytorch-ignite" in done.stderr
