"""Tests that callbacks of transformers run as hooks in sessions of hookbus."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_transformers import from_callback
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainingArguments,
)

from hookbus import Config, Graph, MonitoredSession, MonitoredTrainingSession, UsageError
from tests.support.in_transformers import arguments_of, trainer_of

OFF = Config(autoload=False, header=False)


class Notes(TrainerCallback):
    """Notes every call, with the step, the epoch and the names of what comes with it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _note(self, event: str, state: Any, **more: Any) -> None:
        self.calls.append((event, state.global_step, state.epoch, more))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_train_begin", state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_epoch_begin", state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_step_begin", state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_step_end", state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        self._note("on_log", state, **{n: v for n, v in logs.items() if n == "loss"})

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any, **_: Any
    ) -> None:
        self._note("on_evaluate", state)
        assert "eval_loss" in metrics

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_save", state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_epoch_end", state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_train_end", state)


def train(*hooks: Any, losses: Any = None, epochs: int = 2, **settings: Any) -> Any:
    """Run a loop of epochs with three steps, each with an evaluation behind it."""
    losses = iter(losses or [float(number) for number in range(1, 99)])
    with MonitoredTrainingSession(hooks=hooks, config=OFF, **settings) as session:
        for _ in session.epochs(epochs):
            for _ in session.iterate(range(3)):
                with session.step() as step:
                    step.report(loss=1.0 + session.global_step, rate=0.5)
            with session.evaluation() as evaluation:
                evaluation.report(loss=next(losses))
    return session


def test_the_calls_are_those_of_a_trainer() -> None:
    """In its order; but a session evaluates in an epoch, and a Trainer behind it."""
    logs = {"logging_strategy": "steps", "logging_steps": 2}
    here, there = Notes(), Notes()
    train(from_callback(here, args=arguments_of(**logs)))
    trainer_of(there, num_train_epochs=2, per_device_train_batch_size=8, **logs).train()
    of_speed = there.calls.pop(-2)
    assert of_speed[0] == "on_log"
    late = ("on_epoch_end",)
    calls = [
        [(event, step) for event, step, *_ in found if event not in late]
        for found in (here.calls, there.calls)
    ]
    assert calls[0] == calls[1]
    for found in (here.calls, there.calls):
        ends = [(step, epoch) for event, step, epoch, _ in found if event in late]
        assert ends == [(3, 1.0), (6, 2.0)]
    assert [(step, more) for event, step, _, more in here.calls if more] == [
        (2, {"loss": 2.0}),
        (4, {"loss": 4.0}),
        (6, {"loss": 6.0}),
    ]


def test_a_callback_of_transformers_prints_what_it_prints_in_a_trainer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The values that are chosen, at the steps of its arguments."""
    first = arguments_of(logging_strategy="steps", logging_steps=4, logging_first_step=True)
    train(from_callback(PrinterCallback(), args=first, log=["loss", "rate"]))
    lines = map(ast.literal_eval, capsys.readouterr().out.splitlines())
    # Since transformers 5 it prints texts.
    assert [{name: float(value) for name, value in line.items()} for line in lines] == [
        {"loss": 1, "rate": 0.5, "epoch": 0},
        {"eval_loss": 1, "epoch": 0},
        {"loss": 4, "rate": 0.5, "epoch": 1},
        {"eval_loss": 2, "epoch": 1},
    ]


BEST = {"metric_for_best_model": "loss", "greater_is_better": False}


def test_early_stopping_stops_the_session() -> None:
    """The best value is kept as a Trainer keeps it, also in checkpoints."""

    def stopper() -> Any:
        return from_callback(EarlyStoppingCallback(2), args=arguments_of(**BEST))

    losses = [3.0, 2.0, 2.5, 2.2, 1.0, 0.5]
    session = train(stopper(), losses=losses, epochs=6)
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 12)
    assert session.outcome.who == "early-stopping-callback"
    assert session.outcome.why == "control.should_training_stop is set in on_evaluate"
    saved = {"checkpoint_dir": "run", "save_checkpoint_steps": 3}
    train(stopper(), losses=losses, epochs=3, **saved)
    session = train(stopper(), losses=losses[3:], epochs=6, **saved)
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 12)


def test_what_a_callback_lacks_is_an_error_before_the_first_step() -> None:
    """It says what it needs, and what to give."""
    hook, begun = from_callback(EarlyStoppingCallback), []
    session = MonitoredSession(hooks=[hook], config=OFF)
    message = "requires metric_for_best_model"
    with pytest.raises(UsageError, match=message) as caught, session, session.step():
        begun.append("the step")
    assert not begun
    assert "from_callback(..., args=TrainingArguments(...))" in str(caught.value)

    class Reads(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any):
            self.seen = model.weight.item()

    with pytest.raises(
        UsageError, match=r"Reads takes model.*from_callback\(Reads\(\), mod"
    ):
        from_callback(Reads)
    reads, model = Reads(), torch.nn.Linear(1, 1, bias=False)
    train(from_callback(reads, model=model))
    assert reads.seen == model.weight.item()


@pytest.mark.parametrize(
    ("callback", "parts", "message"),
    [
        (ProgressCallback, {}, "ProgressCallback has on_prediction_step, which only a"),
        (print, {}, "takes a TrainerCallback, not builtin_function_or_method"),
        (Notes, {"modle": 1}, "got modle; a callback takes some of model"),
    ],
)
def test_what_is_no_use_in_a_session_is_refused(
    callback: Any, parts: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        from_callback(callback, **parts)


class Sets(TrainerCallback):
    """Sets a flag of the control in an event after a step."""

    def __init__(self, flag: str, event: str, step: int) -> None:
        self.flag, self.step, self.saved = flag, step, []
        setattr(self, event, self.set)

    def set(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == self.step:
            setattr(control, self.flag, True)
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.saved.append(state.global_step)


@pytest.mark.parametrize(
    ("event", "step", "ended"),
    [
        ("on_train_begin", 0, 1),
        ("on_step_begin", 2, 3),
        ("on_step_end", 2, 2),
        ("on_log", 2, 2),
        ("on_evaluate", 3, 3),
        ("on_epoch_end", 3, 3),
    ],
)
def test_a_callback_stops_the_session(event: str, step: int, ended: int) -> None:
    callback = Sets("should_training_stop", event, step)
    logs = arguments_of(logging_strategy="steps", logging_steps=1)
    outcome = train(from_callback(callback, args=logs)).outcome
    assert (outcome.kind, outcome.who, outcome.step) == ("stopped", "sets", ended)


@pytest.mark.parametrize("event", ["on_step_end", "on_evaluate", "on_epoch_end"])
def test_a_callback_asks_for_a_checkpoint(event: str) -> None:
    callback = Sets("should_save", event, 3)
    saver = CheckpointSaverHook("run", save_steps=99)
    train(from_callback(callback), saver)
    assert 3 in callback.saved


def test_a_callback_asks_for_a_log_line() -> None:
    """It comes with the values of the next step."""
    notes, callback = Notes(), Sets("should_log", "on_step_end", 2)
    callback.on_log = notes.on_log
    train(from_callback(callback))
    assert [step for _, step, _, more in notes.calls if more] == [3]


@pytest.mark.parametrize("flag", ["should_evaluate", "should_epoch_stop"])
def test_what_only_a_trainer_serves_is_an_error(flag: str) -> None:
    with pytest.raises(UsageError, match=f"set control.{flag} in on_step_end, which only"):
        train(from_callback(Sets(flag, "on_step_end", 2)))


def test_a_graph_has_callbacks_too() -> None:
    """Their hook is one like all others."""
    graph, notes = Graph(), Notes()
    graph.variable("w", 8.0)
    graph.op(lambda w: w**2, name="loss")
    graph.train_op(lambda w: w / 2, name="train", updates="w")
    args = TrainingArguments("out", logging_steps=1, report_to="none", max_steps=9)
    args_seen: list[Any] = []

    class Stops(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            args_seen.append((args.max_steps, state.max_steps))
            control.should_training_stop = logs["loss"] < 10

    hooks = [from_callback(notes, args=args), from_callback(Stops, args=args)]
    with MonitoredSession(graph, hooks=hooks, config=OFF) as session:
        for _ in session.loop():
            pass
    assert session.outcome.who == "stops"
    logged = [more["loss"] for event, *_, more in notes.calls if event == "on_log"]
    assert logged == [64.0, 16.0, 4.0]
    assert args_seen == [(9, 9)] * 3
