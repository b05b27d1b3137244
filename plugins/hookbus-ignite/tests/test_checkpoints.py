"""Tests how hooks ask for checkpoints of an Engine, and how their state comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import hookbus_ignite
import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ignite import EngineBus
from ignite.engine import Events
from ignite.handlers import Checkpoint, ModelCheckpoint

from hookbus import CheckpointError, Config, SessionRunHook, UsageError, hookimpl
from tests.support.in_ignite import Training, checkpoint_of

OFF = Config(autoload=False, header=False)


STOPS = {"mode": "no_increase", "patience": 6}
"""Settings that stop the training in the middle of the third epoch."""


class CountHook(SessionRunHook):
    """Counts its steps and epochs, and notes the checkpoints of which it is told."""

    def __init__(self, ask_at: int | None = None) -> None:
        self.steps = self.epochs = 0
        self.ask_at, self.saved = ask_at, []  # type: tuple[int | None, list[Any]]

    def after_run(self, run_context, run_values):
        self.steps += 1
        if run_values.global_step == self.ask_at:
            run_context.request_save("asked")

    @hookimpl
    def epoch_ended(self):
        self.epochs += 1

    @hookimpl
    def after_save(self, global_step, path):
        self.saved.append((global_step, path.name))

    def state_dict(self):
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state):
        self.steps, self.epochs = state["steps"], state["epochs"]


def loaded(step: int) -> dict[str, Any]:
    """Return a checkpoint, with the generators that the deterministic engine pickles."""
    return torch.load(f"checkpoints/checkpoint_{step}.pt", weights_only=False)


class Saved:
    """A run with hooks whose checkpoints hold everything.

    Attributes:
        handler: writes them.
    """

    def __init__(self, *hooks: Any, training: Training | None = None) -> None:
        self.training = training or Training()
        self.to_save: dict[str, Any] = {
            "trainer": self.training.trainer,
            "model": self.training.model,
            "optimizer": self.training.optimizer,
        }
        self.handler = checkpoint_of(self.to_save, n_saved=None)
        self.bus: EngineBus = hookbus_ignite.attach(
            self.training.trainer,
            hooks,
            model=self.training.model,
            optimizer=self.training.optimizer,
            evaluators={"val": self.training.evaluator},
            checkpoint=self.handler,
            config=OFF,
        )
        self.to_save["bus"] = self.bus

    def load(self, step: int) -> None:
        """Load a checkpoint by Ignite's own means."""
        Checkpoint.load_objects(self.to_save, loaded(step))


def test_hooks_have_the_handler_write_and_are_told() -> None:
    """Also of what it writes by itself, each once."""
    hook = CountHook(ask_at=4)
    saved = Saved(hook, CheckpointSaverHook(save_steps=5))
    saved.training.trainer.add_event_handler(Events.EPOCH_COMPLETED, saved.handler)
    saved.training.run()
    steps = [4, 5, 6, 10, 12, 15, 18]
    assert hook.saved == [(step, f"checkpoint_{step}.pt") for step in steps]
    assert {path.name for path in Path("checkpoints").iterdir()} == {
        name for _, name in hook.saved
    }


def test_a_checkpoint_at_the_start_of_an_epoch_is_told_with_its_step() -> None:
    """Hooks hear of it before the next step, not after it."""
    saved = Saved(hook := CountHook())
    saved.training.trainer.add_event_handler(Events.EPOCH_STARTED, saved.handler)
    saved.training.run()
    assert hook.saved == [(step, f"checkpoint_{step}.pt") for step in (0, 6, 12)]


def test_a_function_may_write_the_checkpoint() -> None:
    """It returns the path: so a ModelCheckpoint can be used."""
    hook, training = CountHook(ask_at=4), Training()
    handler = ModelCheckpoint("own", "mine", n_saved=None)

    def write(engine: Any) -> Any:
        handler(engine, {"trainer": engine, "model": training.model})
        return handler.last_checkpoint

    hookbus_ignite.attach(
        training.trainer,
        [hook],
        model=training.model,
        optimizer=training.optimizer,
        checkpoint=write,
        config=OFF,
    )
    training.run()
    assert hook.saved == [(4, "mine_checkpoint_4.pt")]
    assert Path("own/mine_checkpoint_4.pt").exists()


def test_a_checkpoint_holds_what_later_handlers_do_in_its_iteration() -> None:
    """Handlers behind the bus belong to the iteration, like the step of a scheduler."""
    saved = Saved(CountHook(ask_at=4))
    scheduler = torch.optim.lr_scheduler.StepLR(saved.training.optimizer, 1, gamma=0.5)
    saved.training.trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: scheduler.step()
    )
    saved.training.run(1)
    assert loaded(4)["optimizer"]["param_groups"][0]["lr"] == 0.05 * 0.5**4


@pytest.mark.parametrize("first", ["bus", "handler"])
@pytest.mark.parametrize("every", [1, 6])
def test_a_handler_before_or_after_the_bus_saves_the_step_that_has_ended(
    first: str, every: int
) -> None:
    """The state of hooks is that of the weights."""
    training = Training()
    to_save: dict[str, Any] = {"trainer": training.trainer, "model": training.model}
    handler, hook = checkpoint_of(to_save, n_saved=None), CountHook()
    event = Events.EPOCH_COMPLETED if every == 6 else Events.ITERATION_COMPLETED
    if first == "handler":
        training.trainer.add_event_handler(event, handler)
    to_save["bus"] = hookbus_ignite.attach(
        training.trainer, [hook], optimizer=training.optimizer, config=OFF
    )
    if first == "bus":
        training.trainer.add_event_handler(event, handler)
    training.run()
    for step in range(every, 19, every):
        state = loaded(step)["bus"]
        assert (state["iteration"], state["step"]) == (step, step)
        epochs = step // 6 if every == 6 else (step - 1) // 6
        assert hooks_in(state) == {"steps": step, "epochs": epochs}


def hooks_in(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the hook that counts, as a resumed run loads it."""
    training, hook = Training(), CountHook()
    bus = hookbus_ignite.attach(
        training.trainer, [hook], optimizer=training.optimizer, config=OFF
    )
    bus.load_state_dict(state)
    training.trainer.load_state_dict(
        {
            "iteration": state["iteration"],
            "max_epochs": 9,
            "epoch_length": 6,
            "rng_states": None,
        }
    )
    training.trainer.add_event_handler(Events.STARTED, training.trainer.terminate)
    training.run(9)
    return hook.state_dict()


@pytest.mark.parametrize("at", [1, 5, 6, 7, 12])
def test_a_resumed_training_is_like_an_uninterrupted_one(at: int) -> None:
    """Weights, steps, epochs and the stop of a hook are the same."""
    whole = Saved(hook := CountHook(), EarlyStoppingHook("loss", **STOPS))
    for event in (Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED):
        whole.training.trainer.add_event_handler(event, whole.handler)
    whole.training.run()
    assert 12 < hook.steps < 18
    resumed = Saved(seen := CountHook(), EarlyStoppingHook("loss", **STOPS))
    resumed.load(at)
    resumed.training.run()
    assert resumed.training.losses == whole.training.losses[at:]
    assert resumed.training.weights == whole.training.weights
    assert seen.steps == hook.steps
    assert resumed.bus.outcome == whole.bus.outcome


def test_a_training_that_was_complete_does_no_step_more(lines: list[Any]) -> None:
    """Ignite alone would train it anew; more epochs go on where it ended."""
    saved = Saved()
    saved.training.trainer.add_event_handler(Events.COMPLETED, saved.handler)
    saved.training.run(2)
    again = Saved(hook := CountHook())
    again.load(12)
    again.training.run(2)
    assert again.training.losses == []
    assert again.training.weights == saved.training.weights
    assert any("the training was complete" in line["event"] for line in lines)
    again.training.run(3)
    assert hook.steps == 6
    assert again.training.trainer.state.iteration == 18


def test_a_training_that_a_hook_has_stopped_stops_again() -> None:
    """The state of the hook says so, before the first step."""
    saved = Saved(EarlyStoppingHook("loss", **STOPS))
    saved.training.trainer.add_event_handler(Events.COMPLETED, saved.handler)
    saved.training.run()
    done = len(saved.training.losses)
    assert 12 < done < 18
    again = Saved(EarlyStoppingHook("loss", **STOPS))
    again.load(done)
    again.training.run()
    assert again.training.losses == []


def test_a_resume_without_the_state_of_hooks_is_reported(lines: list[Any]) -> None:
    """Hooks begin anew, at the step of the engine."""
    training = Training()
    handler = checkpoint_of({"trainer": training.trainer, "model": training.model})
    training.trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    training.run(1)
    again = Saved(hook := CountHook())
    del again.to_save["bus"], again.to_save["optimizer"]
    again.load(6)
    again.training.run(2)
    assert hook.steps == 6
    assert again.bus.session is not None
    assert again.bus.session.global_step == 12
    assert any("has no state of hooks" in line["event"] for line in lines)


def test_the_state_of_other_hooks_is_reported(lines: list[Any]) -> None:
    """Those that it lacks begin anew, and those that are not on are left out."""
    saved = Saved(EarlyStoppingHook("loss", patience=99))
    saved.training.trainer.add_event_handler(Events.EPOCH_COMPLETED, saved.handler)
    saved.training.run(1)
    again = Saved(hook := CountHook())
    again.load(6)
    again.training.run(2)
    assert hook.steps == 6
    assert {line["event"]: line["hook"] for line in lines if "hook" in line} == {
        "the checkpoint contains the state of a hook that is not on": "early-stopping",
        "the checkpoint has no state for this hook": "count",
    }


@pytest.mark.parametrize(
    "state", [{"hooks": "x"}, {"iteration": 1, "step": 1, "hooks": 2}, [], "text"]
)
def test_a_wrong_state_is_refused(state: Any) -> None:
    """When it is loaded."""
    with pytest.raises(CheckpointError, match="no state of hooks from a bus"):
        Saved().bus.load_state_dict(state)


def test_a_state_that_has_changed_is_refused() -> None:
    """When the training begins, which does no step."""
    saved = Saved()
    saved.bus.load_state_dict({"iteration": 0, "step": 0, "hooks": "{}"})
    with pytest.raises(CheckpointError, match="cannot be read"):
        saved.training.run()
    assert saved.training.losses == []


def test_the_state_of_another_iteration_is_refused() -> None:
    """The engine and the hooks have to come from one checkpoint."""
    saved = Saved()
    saved.training.trainer.add_event_handler(Events.EPOCH_COMPLETED, saved.handler)
    saved.training.run(1)
    again = Saved()
    del again.to_save["trainer"]
    again.load(6)
    with pytest.raises(CheckpointError, match="of iteration 6, and the engine is at"):
        again.training.run()
    assert again.training.losses == []


def test_a_state_is_not_loaded_into_a_run() -> None:
    """It would not reach the hooks."""
    saved = Saved()
    saved.training.trainer.add_event_handler(
        Events.EPOCH_STARTED, lambda: saved.bus.load_state_dict({})
    )
    with pytest.raises(UsageError, match="while the engine runs"):
        saved.training.run()


def test_a_request_without_a_handler_is_refused() -> None:
    """A checkpoint that is asked for is not left out without a word."""
    training = Training()
    hookbus_ignite.attach(training.trainer, [CountHook(ask_at=4)], config=OFF)
    with pytest.raises(UsageError, match="give it checkpoint=handler"):
        training.run()


@pytest.mark.parametrize("where", ["a batch", "the end of an epoch", "an evaluation"])
def test_after_sigterm_the_run_saves_and_exits_with_75(where: str) -> None:
    """And goes on from there as if nothing had been."""
    plain = Training()
    plain.run()
    saved, events = Saved(hook := CountHook()), Events

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    trainer, step = saved.training.trainer, 6
    if where == "a batch":
        trainer.add_event_handler(events.ITERATION_STARTED(once=4), kill)
        step = 4
    elif where == "the end of an epoch":
        trainer.add_event_handler(events.ITERATION_STARTED(once=6), kill)
    else:
        saved.training.evaluator.add_event_handler(events.STARTED, kill)
    with pytest.raises(SystemExit) as exits:
        saved.training.run()
    assert exits.value.code == 75
    assert saved.bus.outcome is not None
    assert saved.bus.outcome.kind == "preempted"
    assert hook.saved == [(step, f"checkpoint_{step}.pt")]
    assert len(saved.training.losses) == step
    again = Saved(CountHook())
    again.load(step)
    again.training.run()
    assert again.training.weights == plain.weights


def test_after_sigterm_a_run_without_a_handler_says_that_nothing_is_saved(
    lines: list[Any],
) -> None:
    """It still ends in good order."""
    training = Training()
    training.trainer.add_event_handler(
        Events.ITERATION_STARTED(once=4), lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    hookbus_ignite.attach(training.trainer, config=OFF)
    with pytest.raises(SystemExit):
        training.run()
    assert any("no checkpoint is written" in line["event"] for line in lines)


def test_ctrl_c_ends_the_step_and_leaves_as_keyboard_interrupt() -> None:
    """A handler of EXCEPTION_RAISED does not see it: the run has ended in good order."""
    saved = Saved(hook := CountHook())
    kept: list[Any] = []
    saved.training.trainer.add_event_handler(Events.EXCEPTION_RAISED, kept.append)
    saved.training.trainer.add_event_handler(
        Events.ITERATION_STARTED(once=4), lambda: os.kill(os.getpid(), signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        saved.training.run()
    assert kept == []
    assert saved.bus.outcome is not None
    assert (saved.bus.outcome.kind, saved.bus.outcome.step) == ("interrupted", 4)
    assert hook.saved == [(4, "checkpoint_4.pt")]


def test_a_hook_may_ask_for_a_checkpoint_at_the_end() -> None:
    """It is written when all handlers have been called."""

    class AsksAtEnd(SessionRunHook):
        def begin(self, checkpoints):
            self.checkpoints = checkpoints

        def end(self, session):
            self.checkpoints.request_save("the end")

    saved = Saved(AsksAtEnd())
    saved.training.run()
    assert loaded(18)["bus"]["step"] == 18


def test_the_state_of_hooks_needs_no_pickle() -> None:
    """A load of weights only accepts it."""
    saved = Saved(CountHook())
    saved.training.run(1)
    torch.save(saved.bus.state_dict(), "bus.pt")
    state = torch.load("bus.pt", weights_only=True)
    assert state == saved.bus.state_dict()
    assert state["step"] == 6
