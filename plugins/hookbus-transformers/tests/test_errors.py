"""Tests that errors reach hooks, and that wrong uses get clear messages."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hookbus_nan_tensor import NanTensorHook
from hookbus_transformers import BusCallback
from transformers import TrainerCallback, TrainerControl, TrainerState

from hookbus import Config, SessionRunHook, TrainingError, UsageError, hookimpl
from tests.support.in_transformers import Net, arguments_of, trainer_of

OFF = Config(autoload=False, header=False)
OWN = ("training_step", "prediction_step", "get_batch_samples", "evaluation_loop")


class Told(SessionRunHook):
    """Notes how its session ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def end(self) -> None:
        self.seen.append("end")

    @hookimpl
    def on_exception(self, exception: BaseException, outcome: Any) -> None:
        self.seen.append(f"{outcome.who}: {type(exception).__name__}: {exception}")


class Breaks(SessionRunHook):
    def after_run(self, run_values: Any) -> None:
        if run_values.global_step == 3:
            raise ValueError("the hook is broken")


class Broken(TrainerCallback):
    """Raises an error in an event."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.break_)

    def break_(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= 3:
            raise ValueError("the callback is broken")


class NoNumber(Net):
    """Returns a loss that is NaN from the third batch on."""

    batches = 0

    def forward(self, x: Any, labels: Any = None) -> Any:
        self.batches += 1
        found = super().forward(x, labels)
        return {**found, "loss": found["loss"] * (float("nan") if self.batches > 2 else 1)}


def check_released(trainer: Any) -> None:
    """Assert that the Trainer and its model have their own methods again."""
    assert not {*OWN, "prediction_loop"} & {*vars(trainer)}
    assert "zero_grad" not in vars(trainer.model)


def test_an_error_of_a_hook_names_it_and_leaves_the_trainer() -> None:
    told = Told()
    bus = BusCallback([Breaks(), told], config=OFF)
    trainer = trainer_of(bus)
    with pytest.raises(ValueError, match="the hook is broken") as caught, bus:
        trainer.train()
    assert "raised by plugin 'breaks'" in caught.value.__notes__[0]
    assert told.seen == ["breaks: ValueError: the hook is broken"]
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.who, bus.outcome.step) == ("failed", "breaks", 3)
    check_released(trainer)


@pytest.mark.parametrize(
    "event", ["on_step_begin", "on_step_end", "on_optimizer_step", "on_evaluate", "on_log"]
)
def test_an_error_in_the_training_reaches_hooks(event: str) -> None:
    """Wherever it comes from; a second run begins anew."""
    told, broken = Told(), Broken(event)
    bus = BusCallback([told], config=OFF)
    trainer = trainer_of(bus, broken, logging_strategy="epoch")
    with pytest.raises(ValueError, match="the callback is broken"), bus:
        trainer.train()
    assert told.seen == ["caller: ValueError: the callback is broken"]
    check_released(trainer)
    trainer.remove_callback(broken)
    with bus:
        trainer.train()
    assert bus.outcome is not None
    assert bus.outcome.kind == "completed"
    assert told.seen[1:] == ["end"]
    check_released(trainer)


def test_a_loss_that_is_nan_is_seen_although_the_trainer_logs_another() -> None:
    bus = BusCallback([NanTensorHook()], config=OFF)
    trainer = trainer_of(bus, model=NoNumber)
    with pytest.raises(TrainingError, match="nan-tensor: loss is NaN at step 3"), bus:
        trainer.train()


def test_without_a_block_the_next_training_ends_the_session_that_failed() -> None:
    """The Trainer itself tells nobody of the error."""
    told = Told()
    bus = BusCallback([told], config=OFF)
    trainer = trainer_of(bus, Broken("on_step_end"))
    with pytest.raises(ValueError, match="the callback is broken"):
        trainer.train()
    failed = bus.session
    assert bus.is_open
    assert failed is not None
    trainer.remove_callback(Broken)
    trainer.train()
    assert told.seen[0].endswith("the loop left its session without end() or failed()")
    assert (failed.outcome.kind, bus.outcome.kind) == ("failed", "completed")
    check_released(trainer)


def test_an_evaluation_that_fails_is_over() -> None:
    """A callback may catch the error, and the training goes on."""

    class Evaluates(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (2, 4):
                with pytest.raises(ValueError, match="batch received was empty"):
                    trainer.evaluate([{"x": None}])

    with BusCallback(config=OFF) as bus:
        trainer = trainer_of(bus, Evaluates())
        trainer.train()
    assert bus.outcome is not None
    assert bus.outcome.kind == "completed"


def test_one_trainer_has_one_bus_callback() -> None:
    bus = BusCallback(config=OFF)
    trainer = trainer_of(bus, BusCallback(config=OFF))
    with pytest.raises(UsageError, match="has two callbacks of hookbus-transformers"), bus:
        trainer.train()


def test_something_that_is_no_trainer_is_refused() -> None:
    with pytest.raises(UsageError, match="by something that is no Trainer of transformers"):
        BusCallback(config=OFF).on_train_begin(
            arguments_of(), TrainerState(), TrainerControl(), model=Net()
        )


def test_a_version_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    versions = {"transformers": "3.5.1", "hookbus-transformers": "0.1.0"}
    monkeypatch.setattr("hookbus.plugin.requirements.version_of", versions.__getitem__)
    with pytest.raises(UsageError, match=r"transformers 3\.5\.1 is installed: pip install"):
        BusCallback(config=OFF)


def test_without_transformers_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import hookbus_transformers"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: hookbus-transformers needs transformers" in done.stderr
    assert "pip install hookbus-transformers" in done.stderr


def test_a_smaller_batch_that_the_trainer_finds_is_a_new_training() -> None:
    """The session of the one that did not fit has failed."""

    class Big(Net):
        def forward(self, x: Any, labels: Any = None) -> Any:
            if len(x) > 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB.")
            return super().forward(x, labels)

    told = Told()
    finds = {"auto_find_batch_size": True, "per_device_eval_batch_size": 2}
    with BusCallback([told], config=OFF) as bus:
        trainer = trainer_of(bus, model=Big, **finds)
        trainer.train()
    assert told.seen[-1] == "end"
    assert told.seen[0].endswith("the loop left its session without end() or failed()")
    assert bus.outcome is not None
    assert bus.outcome.step == trainer.state.global_step == 36
