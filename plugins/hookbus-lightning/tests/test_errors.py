"""Errors reach hooks and leave fit() as they are; mistakes are told at the start."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path
from typing import Any

import pytest
from hookbus_lightning import BusCallback
from hookbus_logging_tensor import LoggingTensorHook
from lightning.pytorch.callbacks import Callback

from hookbus import SessionRunHook, UsageError, hookimpl
from hookbus.errors import UnfedPlaceholderError
from tests.support import commands
from tests.support.in_lightning import OFF, Net, fit, trainer_of


class Broken(SessionRunHook):
    """Fails in one of its events."""

    def __init__(self, event: str) -> None:
        self.event = event

    def _come(self, event: str) -> None:
        if event == self.event:
            raise ValueError(f"broken in {event}")

    def begin(self) -> None:
        self._come("begin")

    def before_run(self, run_context: Any) -> None:
        if run_context.global_step == 7:
            self._come("before_run")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == 7:
            self._come("after_run")

    @hookimpl
    def evaluated(self) -> None:
        self._come("evaluated")

    @hookimpl
    def epoch_ended(self) -> None:
        self._come("epoch_ended")

    def end(self, session: Any) -> None:
        self._come("end")


class Hears(SessionRunHook):
    """Notes the errors that it is told of."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @hookimpl
    def on_exception(self, exception: BaseException, outcome: Any) -> None:
        self.heard.append((exception, outcome.kind, outcome.who, outcome.step))


@pytest.mark.parametrize(
    ("event", "step"),
    [
        ("before_run", 7),
        ("after_run", 7),
        ("evaluated", 6),
        ("epoch_ended", 6),
    ],
)
def test_the_error_of_a_hook_ends_the_training(event: str, step: int) -> None:
    """It leaves fit() with the hook's name, and other hooks hear of it."""
    hears = Hears()
    callback = BusCallback([Broken(event), hears], config=OFF)
    trainer = trainer_of(callback)
    with pytest.raises(ValueError, match=f"broken in {event}") as caught:
        fit(trainer)
    notes = "".join(caught.value.__notes__)
    assert f"raised by plugin 'broken' (hooks=) in {event}()" in notes
    assert [each[1:] for each in hears.heard] == [("failed", "broken", step)]
    assert hears.heard[0][0] is caught.value
    assert trainer.interrupted


@pytest.mark.parametrize(("event", "kind"), [("begin", "failed"), ("end", "completed")])
def test_so_does_one_at_the_beginning_and_at_the_end(event: str, kind: str) -> None:
    """At the end the steps are done."""
    callback = BusCallback([Broken(event)], config=OFF)
    with pytest.raises(ValueError, match=f"broken in {event}") as caught:
        fit(trainer_of(callback))
    assert f"by plugin 'broken' (hooks=) in {event}()" in "".join(caught.value.__notes__)
    assert callback.outcome is not None
    assert callback.outcome.kind == kind


class Fails(Net):
    """Fails in one of its methods."""

    where: str = "training_step"

    def _come(self, where: str) -> None:
        if where == self.where and self.trainer.global_step >= 6:
            raise ZeroDivisionError(where)

    def training_step(self, batch: Any, number: int) -> Any:
        self._come("training_step")
        return super().training_step(batch, number)

    def validation_step(self, batch: Any, number: int) -> Any:
        self._come("validation_step")
        return super().validation_step(batch, number)

    def on_train_epoch_end(self) -> None:
        self._come("on_train_epoch_end")

    def on_train_end(self) -> None:
        self._come("on_train_end")


@pytest.mark.parametrize(
    "where", ["training_step", "validation_step", "on_train_epoch_end"]
)
def test_an_error_of_the_module_reaches_hooks(where: str) -> None:
    """It leaves fit() itself."""
    hears = Hears()
    callback = BusCallback([hears], config=OFF)
    with pytest.raises(ZeroDivisionError, match=where) as caught:
        fit(trainer_of(callback), module=type("Fails", (Fails,), {"where": where}))
    assert hears.heard == [(caught.value, "failed", "caller", 6)]


def test_an_error_behind_the_end_comes_too_late() -> None:
    """The session has completed."""
    hears = Hears()
    callback = BusCallback([hears], config=OFF)
    with pytest.raises(ZeroDivisionError):
        fit(trainer_of(callback), module=type("Fails", (Fails,), {"where": "on_train_end"}))
    assert hears.heard == []
    assert callback.outcome is not None
    assert callback.outcome.kind == "completed"


def test_a_trainer_is_used_again_after_an_error() -> None:
    """Its hooks begin anew with the next training."""
    hears = Hears()
    callback = BusCallback([hears], config=OFF)
    with pytest.raises(ZeroDivisionError):
        fit(trainer_of(callback), module=Fails)
    fit(trainer_of(callback))
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == ("completed", 18)


def test_an_error_of_another_callback_is_no_hooks() -> None:
    """It may come when the step has not begun."""

    class Other(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 4:
                raise RuntimeError("another callback")

    hears = Hears()
    with pytest.raises(RuntimeError, match="another callback"):
        fit(trainer_of(BusCallback([hears], config=OFF), Other()))
    assert [each[1:] for each in hears.heard] == [("failed", "caller", 4)]


def test_two_callbacks_in_one_trainer_are_refused() -> None:
    """Before anything is done."""
    trainer = trainer_of(BusCallback(config=OFF), BusCallback(config=OFF))
    with pytest.raises(UsageError, match="has two callbacks of hookbus-lightning: give it"):
        fit(trainer)
    assert trainer.global_step == 0


def test_a_value_that_nobody_has_is_an_error_of_the_hook_that_asks() -> None:
    """It lists the names that there are."""
    callback = BusCallback([LoggingTensorHook(["acuracy"], every_n_iter=1)], config=OFF)
    with pytest.raises(UnfedPlaceholderError, match="acuracy") as caught:
        fit(trainer_of(callback))
    assert "'train_loss'" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.4.0", "works with lightning<2.7,>=2.5, and lightning 2.4.0 is installed: pip"),
        ("2.7.0", "lightning 2.7.0 is installed: pip install 'lightning<2.7,>=2.5'"),
    ],
)
def test_another_version_of_lightning_is_refused(
    version: str, message: str, fake_dist: Any
) -> None:
    """When the callback is made."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    needs = setup["options"]["install_requires"].split()
    fake_dist("hookbus-lightning", {}, version="0.1.0", requires=needs)
    fake_dist("lightning", {}, version=version)
    with pytest.raises(UsageError, match=message):
        BusCallback(config=OFF)


def test_without_lightning_the_import_says_what_to_install(tmp_path: Path) -> None:
    """In a process in which it cannot be imported."""
    (tmp_path / "lightning.py").write_text("raise ImportError('no module here')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import hookbus_lightning"
    done = commands.run_new([sys.executable, "-c", program])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: hookbus-lightning needs Lightning, which cannot be imported "
        "(no module here): pip install lightning"
    )
