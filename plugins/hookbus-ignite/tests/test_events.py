"""Tests which events of an Engine hooks see, with which values, and in which order."""

from __future__ import annotations

from typing import Any

import hookbus_ignite
import numpy as np
import pytest
import torch
from hookbus_ignite import EngineBus
from hookbus_prediction_writer import PredictionWriterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_weight_average import WeightAverageHook
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.metrics import RunningAverage

from hookbus import Config, SessionRunArgs, SessionRunHook, hookimpl
from tests.support.in_ignite import Training, since_ignite

OFF = Config(autoload=False, header=False)


class SeeHook(SessionRunHook):
    """Notes what it gets, and the other events in their order."""

    def __init__(self, names: Any = "loss") -> None:
        self.names, self.seen = names, []  # type: tuple[Any, list[Any]]
        self.told: list[Any] = []

    def before_run(self, run_context):
        self.told.append((run_context.global_step, run_context.last_step))
        return SessionRunArgs(self.names)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)

    @hookimpl
    def cancelled(self, run_context):
        self.told.append("cancelled")

    @hookimpl
    def epoch_ended(self, epoch, global_step):
        self.told.append(f"epoch {epoch} ended at {global_step}")

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.told.append((name, [*metrics], global_step))


def attach(training: Training, *hooks: Any, **settings: Any) -> EngineBus:
    usual: dict[str, Any] = {
        "model": training.model,
        "optimizer": training.optimizer,
        "evaluators": {"val": training.evaluator},
        "config": OFF,
    }
    return hookbus_ignite.attach(training.trainer, hooks, **{**usual, **settings})


def test_hooks_see_the_loss_of_the_engine_and_change_nothing() -> None:
    """The loss is the output, bit for bit, and so are the weights those without hookbus."""
    plain, hook = Training(), SeeHook()
    plain.run()
    training = Training()
    bus = attach(training, hook)
    training.run()
    assert hook.seen == training.losses == plain.losses
    assert len(hook.seen) == 18
    assert training.weights == plain.weights
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.step) == ("completed", 18)


def test_hooks_see_the_epochs_and_the_evaluations_in_order() -> None:
    """An evaluation in a handler of EPOCH_COMPLETED belongs to its epoch."""
    training, hook = Training(), SeeHook()
    attach(training, hook)
    training.run(2)
    assert hook.told == [
        *((step, 12) for step in range(6)),
        ("val", ["val_loss"], 6),
        "epoch 0 ended at 6",
        *((step, 12) for step in range(6, 12)),
        ("val", ["val_loss"], 12),
        "epoch 1 ended at 12",
    ]


def test_hooks_see_the_tracked_objects_by_name() -> None:
    """The rate, the weights, the gradients and the output of the model."""
    training = Training()
    names = ["optimizer.lr", "model.weight", "model.bias:grad", "model:output"]
    hook = SeeHook(names)
    attach(training, hook)
    training.run(1)
    rate, weight, gradient, output = hook.seen[-1]
    assert rate == 0.05
    assert weight.flatten().tolist() == training.weights[:4]
    assert gradient.shape == (1,)
    assert output.shape == (4, 1)


@pytest.mark.parametrize("first", ["bus", "handlers"])
def test_handlers_before_and_after_the_bus_see_the_step_that_has_ended(first: str) -> None:
    """Evaluations in the middle of an epoch follow the step."""
    training, hook = Training(evaluates=False), SeeHook()
    trainer = training.trainer

    def add_handlers() -> None:
        RunningAverage(output_transform=lambda loss: loss).attach(trainer, "average")
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), training.evaluate)

    if first == "handlers":
        add_handlers()
    attach(training, hook)
    if first == "bus":
        add_handlers()
    training.run(1)
    assert hook.told == [
        (0, 6),
        (1, 6),
        (2, 6),
        ("val", ["val_loss"], 3),
        (3, 6),
        (4, 6),
        (5, 6),
        ("val", ["val_loss"], 6),
        "epoch 0 ended at 6",
    ]
    assert trainer.state.metrics["average"] > 0


def test_hooks_see_the_metrics_of_the_engine() -> None:
    """Those whose handlers came before the bus are of this iteration."""
    training, hook = Training(), SeeHook(["loss", "average"])
    average = RunningAverage(output_transform=lambda loss: loss, alpha=0.5)
    average.attach(training.trainer, "average")
    attach(training, hook)
    training.run(1)
    expected = training.losses[0]
    for (loss, seen), own in zip(hook.seen, training.losses, strict=True):
        expected = expected if own is training.losses[0] else (expected + own) / 2
        assert (loss, seen) == (own, pytest.approx(expected))


@pytest.mark.parametrize("batches", [2, 3, 4])
def test_a_step_is_an_update_of_the_optimizer(batches: int) -> None:
    """The loss is the mean of its batches, also if an epoch ends within it."""
    training, hook = Training(accumulates=batches), SeeHook()
    bus = attach(training, hook, gradient_accumulation_steps=batches)
    training.run()
    updates = 18 // batches
    groups = [training.losses[i * batches : (i + 1) * batches] for i in range(updates)]
    assert hook.seen == [sum(group[1:], group[0]) / batches for group in groups]
    assert {last for _, last in (t for t in hook.told if len(t) == 2)} == {updates}
    assert bus.session is not None
    assert bus.session.global_step == updates
    plain = Training(accumulates=batches)
    plain.run()
    assert training.weights == plain.weights


def test_the_accumulation_of_ignite_counts_alike() -> None:
    """create_supervised_trainer gives the loss of each batch, not a part of it."""
    training, hook = Training(), SeeHook()
    losses: list[float] = []
    engine = create_supervised_trainer(
        training.model,
        training.optimizer,
        torch.nn.functional.mse_loss,
        gradient_accumulation_steps=3,
    )
    hookbus_ignite.attach(
        engine, [hook], model=training.model, optimizer=training.optimizer, config=OFF
    )
    engine.add_event_handler(
        Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output)
    )
    engine.run(training.loader, max_epochs=1)
    assert hook.seen == [sum(losses[:3]) / 3, sum(losses[3:]) / 3]


def test_only_updates_of_tracked_optimizers_count() -> None:
    """Another optimizer of the process makes no step."""
    training, hook = Training(), SeeHook()
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    attach(training, hook)
    training.trainer.add_event_handler(Events.ITERATION_STARTED, lambda: other.step())
    training.run(1)
    assert len(hook.seen) == 6


def test_several_optimizers_make_one_step() -> None:
    """The two of a GAN update their models in one iteration."""
    models = {name: torch.nn.Linear(1, 1) for name in ("generator", "critic")}
    optimizers = {
        f"{name}_optimizer": torch.optim.SGD(model.parameters(), lr=0.1)
        for name, model in models.items()
    }

    def step(engine: Engine, batch: Any) -> dict[str, Any]:
        for optimizer in optimizers.values():
            optimizer.step()
        return {"generator_loss": batch, "critic_loss": -batch}

    engine, hook = Engine(step), SeeHook(["generator_loss", "critic_optimizer.lr"])
    bus = hookbus_ignite.attach(engine, [hook], track={**models, **optimizers}, config=OFF)
    engine.run([1.0, 2.0])
    assert hook.seen == [[1.0, 0.1], [2.0, 0.1]]
    assert bus.session is not None
    assert bus.session.global_step == 2


@pytest.mark.parametrize("updates", [2, 3])
def test_several_updates_in_an_iteration_are_counted(updates: int) -> None:
    """Hooks see one step, which counts that many."""
    training = Training()

    def step(engine: Engine, batch: Any) -> float:
        for _ in range(updates):
            training.optimizer.step()
        return 1.0

    engine = Engine(step)
    bus = hookbus_ignite.attach(engine, optimizer=training.optimizer, config=OFF)
    engine.run([1, 2])
    assert bus.session is not None
    assert bus.session.global_step == 2 * updates


def test_without_an_optimizer_each_iteration_is_a_step() -> None:
    """The engine may compute anything."""
    hook, engine = SeeHook(), Engine(lambda engine, batch: torch.tensor(batch))
    hookbus_ignite.attach(engine, [hook], config=OFF)
    engine.run([1.0, 2.0], max_epochs=2)
    assert [float(each) for each in hook.seen] == [1.0, 2.0, 1.0, 2.0]


def test_an_optimizer_that_makes_no_update_is_reported(lines: list[Any]) -> None:
    """Otherwise hooks would be dropped without a word."""
    training = Training()
    attach(training, optimizer=torch.optim.SGD(training.model.parameters()))
    training.run(2)
    (line,) = [each for each in lines if "made no update" in each["event"]]
    assert line["why"].startswith("give attach() the optimizer")


@pytest.mark.parametrize(
    ("output", "naming", "names", "expected"),
    [
        (2.0, None, "loss", 2.0),
        (torch.tensor(2.0, requires_grad=True), None, "loss", 2.0),
        ({"a": 1, "b": 2}, None, ["a", "b"], [1, 2]),
        ((1, 2), ("a", "b"), ["a", "b"], [1, 2]),
        ([3.0], ["a"], "a", 3.0),
        (3.0, "a", "a", 3.0),
        ((1, 2), lambda output: {"a": output[1]}, "a", 2),
        (None, None, [], []),
    ],
)
def test_the_values_of_an_output_have_names(
    output: Any, naming: Any, names: Any, expected: Any
) -> None:
    """A number is the loss, a dict has names, and anything else is given names."""
    engine, hook = Engine(lambda engine, batch: output), SeeHook(names)
    hookbus_ignite.attach(engine, [hook], output=naming, config=OFF)
    engine.run([0])
    assert hook.seen == [expected]


def test_hooks_of_evaluations_see_the_batches_of_a_supervised_evaluator() -> None:
    """Its output is a tuple, whose names are those of Ignite."""

    training = Training()
    training.evaluator = Engine(lambda engine, batch: (batch[0].sum(1), batch[1]))
    attach(training, PredictionWriterHook(["y_pred", "y"]))
    training.run(1)
    written = np.load("predictions/val-6.npz")
    assert {name: written[name].shape for name in ("y_pred", "y")} == {
        "y_pred": (8,),
        "y": (8, 1),
    }


def test_an_evaluation_outside_of_a_run_is_not_told() -> None:
    """There is no session then."""
    training, hook = Training(), SeeHook()
    attach(training, hook)
    training.evaluate()
    training.run(1)
    training.evaluate()
    assert [each[2] for each in hook.told if each[0] == "val"] == [6]


def test_handlers_behind_an_evaluation_see_the_weights_of_the_training() -> None:
    """A checkpoint that one of them writes goes on with the training, not with averages."""
    training, seen = Training(evaluates=False), []  # type: tuple[Training, list[Any]]
    attach(training, WeightAverageHook(decay=0.9))

    @training.trainer.on(Events.EPOCH_COMPLETED)
    def evaluate() -> None:
        before = training.weights
        training.evaluate()
        seen.append((before, training.weights))

    training.evaluator.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: seen.append(training.weights)
    )
    training.evaluator.add_event_handler(
        Events.COMPLETED, lambda: seen.append(training.weights)
    )
    training.run(1)
    first, second, completed, (before, after) = seen
    assert first == second != before
    assert completed == before == after


def test_a_stop_ends_the_run_at_that_step() -> None:
    """No batch more is computed, and COMPLETED is fired as Ignite does."""
    training, completed = Training(), []  # type: tuple[Training, list[int]]
    bus = attach(training, StopAtStepHook(last_step=7))
    training.trainer.add_event_handler(
        Events.COMPLETED, lambda engine: completed.append(engine.state.iteration)
    )
    training.run()
    assert len(training.losses) == 7
    assert completed == [7]
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.who) == ("stopped", "stop-at-step")


def test_a_stop_at_the_end_of_an_epoch_lets_the_epoch_end() -> None:
    """Its evaluation takes place, and no step more."""
    training, hook = Training(), SeeHook()
    attach(training, hook, StopAtStepHook(last_step=12))
    training.run()
    assert len(training.losses) == 12
    assert hook.told[-2:] == [("val", ["val_loss"], 12), "epoch 1 ended at 12"]


def test_a_stop_of_an_epoch_that_ends_early_is_heeded() -> None:
    """The engine begins a new epoch where none was planned."""
    training = Training(evaluates=False)
    attach(training, StopAtStepHook(last_step=6))
    training.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=3), training.trainer.terminate_epoch
    )
    training.run()
    assert len(training.losses) == 6
    assert training.trainer.state.iteration == 6


def test_a_stop_before_the_first_step_computes_nothing() -> None:
    """The engine is terminated in STARTED."""

    class Full(SessionRunHook):
        def after_create_session(self, session, coord):
            coord.request_stop()

    training = Training()
    bus = attach(training, Full())
    training.run()
    assert training.losses == []
    assert training.trainer.state.iteration == 0
    assert bus.outcome is not None
    assert bus.outcome.step == 0


def test_a_stop_in_an_engine_without_data_computes_nothing_more() -> None:
    """Such an engine has no event between two batches."""
    calls: list[int] = []
    engine = Engine(lambda engine, batch: calls.append(engine.state.iteration))
    hookbus_ignite.attach(engine, [StopAtStepHook(last_step=3)], config=OFF)
    engine.run(epoch_length=5, max_epochs=2)
    assert calls == [1, 2, 3]


def test_an_engine_that_runs_twice_has_two_trainings() -> None:
    """Ignite trains anew, and so do the hooks; more epochs go on."""
    training, hook = Training(evaluates=False), SeeHook()
    bus = attach(training, hook)
    training.run(1)
    first = bus.session
    training.run(1)
    assert bus.session is not first
    assert [t for t in hook.told if t[0] == 0] == [(0, 6), (0, 6)]
    training.run(2)
    assert hook.told[-7:-1] == [(step, 12) for step in range(6, 12)]
    assert bus.session is not None
    assert bus.session.global_step == 12


def test_a_run_that_was_terminated_goes_on() -> None:
    """Hooks go on with their steps and their state."""
    training, hook = Training(evaluates=False), SeeHook()
    bus = attach(training, hook, WeightAverageHook(decay=0.9))
    training.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=6), training.trainer.terminate
    )
    training.run()
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.step) == ("completed", 6)
    training.run()
    assert [t[0] for t in hook.told if len(t) == 2] == [*range(18)]


@since_ignite("0.5.2")
def test_a_run_that_skips_completed_ends_its_session() -> None:
    """terminate(skip_completed=True) fires no COMPLETED."""
    training = Training()
    bus = attach(training)
    training.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=2), training.trainer.terminate, skip_completed=True
    )
    training.run()
    assert bus.outcome is not None
    assert bus.outcome.step == 2


def test_a_run_that_is_interrupted_goes_on() -> None:
    """Each of the two calls has a session; together they do all steps."""
    plain, hook = Training(), SeeHook()
    plain.run()
    training = Training()
    bus = attach(training, hook)
    training.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=8), training.trainer.interrupt
    )
    training.run()
    assert bus.outcome is not None
    assert bus.outcome.step == 8
    training.run()
    assert [t[0] for t in hook.told if len(t) == 2] == [*range(18)]
    assert hook.told[-1] == "epoch 2 ended at 18"
    assert training.weights == plain.weights


@since_ignite("0.5.5")
def test_a_number_of_iterations_is_the_last_step() -> None:
    """max_iters ends the run in the middle of an epoch."""
    training, hook = Training(), SeeHook()
    attach(training, hook)
    training.trainer.run(training.loader, max_iters=8)
    assert [t for t in hook.told if len(t) == 2] == [(step, 8) for step in range(8)]
