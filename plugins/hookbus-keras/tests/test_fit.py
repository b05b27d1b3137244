"""Tests what hooks see and do in Keras' fit, and that nothing else changes."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import attrs
import keras
import numpy as np
import pytest
from hookbus_keras import BusCallback
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_monitor import MonitorHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_time_limit import TimeLimitHook
from hookbus_weight_average import WeightAverageHook

from hookbus import Config, GraphError, SessionRunArgs, SessionRunHook, UsageError, hookimpl
from tests.support.in_keras import data, fit, net, weights_of

OFF = Config(autoload=False, header=False)
RATE, KERNEL = "optimizer.learning_rate", "model.layer.kernel"
IN_PARTS = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="this backend has no steps_per_execution"
)


def bus(*hooks: Any, **settings: Any) -> BusCallback:
    return BusCallback(hooks, config=OFF, **settings)


@attrs.define(eq=False)
class SeesHook(SessionRunHook):
    """Notes values after each step."""

    names: Any = "loss"
    seen: list[Any] = attrs.field(factory=list)
    epochs: list[Any] = attrs.field(factory=list)
    told: list[Any] = attrs.field(factory=list)

    def before_run(self, run_context):
        self.epochs.append((run_context.epoch, run_context.last_step))
        return SessionRunArgs(self.names)

    def after_run(self, run_values):
        self.seen.append((run_values.global_step, run_values.results))

    @hookimpl
    def on_exception(self, exception, outcome):
        self.told.append((outcome.kind, str(exception)))


class AssignsHook(SessionRunHook):
    """Assigns a value after one step."""

    def __init__(self, name: str, value: Any, step: int = 3) -> None:
        self.name, self.value, self.step = name, value, step

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.step:
            run_context.assign({self.name: self.value})


class Each(keras.callbacks.Callback):
    """Notes what a callback of Keras sees at the end of each batch."""

    def __init__(self, see: Any) -> None:
        super().__init__()
        self.see, self.seen = see, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.see(self.model, logs))


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"validation_split": 0.2}])
def test_a_training_with_hooks_is_the_same_bit_for_bit(settings: Any) -> None:
    """With dropout, moving means, momentum and shuffled data."""
    plain = net(hidden=5)
    before = fit(plain, **settings).history
    watched = net(hidden=5)
    hooks = [MonitorHook(["model.*"], every_n_steps=1), LoggingTensorHook([RATE], 2)]
    assert fit(watched, bus(*hooks), **settings).history == before
    assert weights_of(watched) == weights_of(plain)
    here, there = ([np.array(v) for v in m.optimizer.variables] for m in (watched, plain))
    assert all(map(np.array_equal, here, there))


def test_hooks_see_what_keras_logs() -> None:
    """The loss is the mean over the epoch so far, as in the History and CSVLogger."""
    hook, each = SeesHook(["loss", "mae"]), Each(lambda _, logs: [*logs.values()])
    csv = keras.callbacks.CSVLogger("log.csv")
    history = fit(net(metrics=["mae"]), bus(hook), each, csv).history
    assert [values for _, values in hook.seen] == each.seen
    assert [step for step, _ in hook.seen] == [*range(1, 19)]
    ends = [values[0] for step, values in hook.seen if step % 6 == 0]
    assert ends == history["loss"]
    rows = Path("log.csv").read_text().splitlines()
    assert [float(row.split(",")[1]) for row in rows[1:]] == ends
    assert hook.epochs == [(step // 6, 18) for step in range(18)]


def test_hooks_read_the_weights_of_now() -> None:
    """Not those that the variables had when the epoch began."""
    hook = SeesHook([KERNEL, RATE])
    each = Each(lambda model, _: model.get_weights()[0])
    fit(net(), bus(hook), each)
    read = [values[0] for _, values in hook.seen]
    assert all(map(np.array_equal, read, each.seen))
    assert not np.array_equal(read[0], read[1])
    assert {float(values[1]) for _, values in hook.seen} == {float(np.float32(0.05))}


def test_names_of_weights_are_those_of_the_variables() -> None:
    """Layers in layers, models without layers in order, and two layers of one name."""

    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="two")
            self.a = keras.layers.Dense(2, name="same")
            self.b = keras.layers.Dense(1, name="same")

        def call(self, x):
            return self.b(self.a(x))

    keras.utils.set_random_seed(1)
    entry = keras.Input((4,))
    inner = keras.Sequential([keras.layers.Dense(2, name="deep")], name="inner")
    functional = keras.Model(entry, keras.layers.Dense(1, name="top")(inner(entry)))
    for model, names in [
        (Two(), {"same.kernel", "same.bias", "same.kernel_1", "same.bias_1"}),
        (functional, {"inner.deep.kernel", "inner.deep.bias", "top.kernel", "top.bias"}),
    ]:
        model(data(4)[0])
        model.compile("sgd", "mse")
        callback = bus()
        fit(model, callback, epochs=1)
        assert callback.session is not None
        tracked = callback.session.graph.tracked
        assert tracked.keys() == {RATE, *(f"model.{name}" for name in names)}


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="this backend builds models before"
)
def test_a_model_that_fit_builds_late_is_named(lines: Any) -> None:
    """Its weights have no names for hooks; the rest works."""

    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.top = keras.layers.Dense(1)

        def call(self, x):
            return self.top(x)

    model, hook = Late(), SeesHook(["loss", RATE])
    model.compile("sgd", "mse")
    fit(model, bus(hook))
    assert len(hook.seen) == 18
    (told,) = [line for line in lines if "not built" in line["event"]]
    assert told["hint"] == "call the model with a batch before fit"


@pytest.mark.parametrize(
    ("name", "value", "write"),
    [
        (RATE, 0.01, lambda model: setattr(model.optimizer, "learning_rate", 0.01)),
        (
            KERNEL,
            np.ones((4, 1), "float32"),
            lambda model: model.layers[-1].kernel.assign(np.ones((4, 1), "float32")),
        ),
    ],
)
def test_what_hooks_assign_is_used_from_the_next_step(
    name: str, value: Any, write: Any
) -> None:
    """It equals the value that a callback of Keras assigns."""

    class Assigns(keras.callbacks.Callback):
        done = 0

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            if self.done == 3:
                write(self.model)

    plain, ours, unchanged = net(), net(), net()
    fit(plain, Assigns())
    fit(ours, bus(AssignsHook(name, value)))
    fit(unchanged)
    assert weights_of(ours) == weights_of(plain) != weights_of(unchanged)


def test_a_schedule_is_read_and_not_assigned() -> None:
    """Keras computes it; the error names the hook."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    hook = SeesHook(RATE)
    fit(net(keras.optimizers.SGD(schedule)), bus(hook), epochs=1)
    rates = [float(value) for _, value in hook.seen]
    assert rates == pytest.approx([0.1 * 0.5**step for step in range(1, 7)])
    with pytest.raises(GraphError, match=f"'{RATE}' cannot be written") as caught:
        fit(net(keras.optimizers.SGD(schedule)), bus(AssignsHook(RATE, 0.5)))
    assert "assigns" in "".join(caught.value.__notes__)


def test_averages_are_shown_to_the_validation_only() -> None:
    """The metrics are those of the averages, and the training goes on with its weights."""
    plain = net()
    each = Each(lambda model, _: model.get_weights())
    fit(plain, each)
    averaged = net()
    history = fit(averaged, bus(WeightAverageHook(decay=None))).history
    assert weights_of(averaged) == weights_of(plain)
    means = [np.mean([np.float64(w[i]) for w in each.seen], axis=0) for i in range(2)]
    plain.set_weights(means)
    loss = plain.evaluate(*data(8), verbose=0)
    assert history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)


class EvaluatedHook(SessionRunHook):
    """Notes validations and their batches."""

    options = None

    def __init__(self) -> None:
        self.metrics: list[Any] = []

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.metrics.append((global_step, name, dict(metrics)))


def test_validations_have_the_names_of_fit() -> None:
    """Also with validation_freq; an evaluation outside of a fit is no concern of hooks."""
    hook, model = EvaluatedHook(), net(metrics=["mae"])
    callback = bus(hook)
    history = fit(model, callback, validation_freq=2, epochs=4).history
    model.evaluate(*data(8), verbose=0, callbacks=[callback])
    given = zip(history["val_loss"], history["val_mae"], strict=True)
    expected = [{"val_loss": loss, "val_mae": mae} for loss, mae in given]
    assert [metrics for _, _, metrics in hook.metrics] == expected
    assert [step for step, _, _ in hook.metrics] == [12, 24]


def test_a_stop_ends_the_fit_at_that_step() -> None:
    """Keras still validates, as after a stop of its own."""
    model, callback = net(), bus(StopAtStepHook(last_step=8))
    history = fit(model, callback)
    assert int(model.optimizer.iterations) == 8
    assert len(history.history["val_loss"]) == 2
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == ("stopped", 8)


def test_a_stop_before_the_first_step_does_none() -> None:
    """And the next fit trains again."""
    model = net()
    fit(model, epochs=1)
    before = weights_of(model)
    callback = bus(StopAtStepHook(last_step=6))
    fit(model, callback)
    assert weights_of(model) == before
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == ("stopped", 6)
    fit(model, bus())
    assert int(model.optimizer.iterations) == 24


def test_a_second_fit_is_a_session_of_its_own(lines: Any) -> None:
    """Its steps go on where the optimizer is, without a word about a checkpoint."""
    model, hook = net(), SeesHook()
    callback = bus(hook)
    fit(model, callback, epochs=2)
    first = callback.outcome
    fit(model, callback, epochs=3, initial_epoch=2)
    assert first is not None
    assert callback.outcome is not None
    assert (first.kind, first.step) == ("completed", 12)
    assert (callback.outcome.kind, callback.outcome.step) == ("completed", 18)
    assert [step for step, _ in hook.seen] == [*range(1, 19)]
    assert [epoch for epoch, _ in hook.epochs] == [0] * 6 + [1] * 6 + [2] * 6
    told = [line for line in lines if "no state of hooks" in line["event"]]
    assert told == []
    fit(model, bus(), epochs=4, initial_epoch=3)  # it may have come from a file
    assert any("no state of hooks" in line["event"] for line in lines)


def test_accumulated_gradients_count_each_batch() -> None:
    """Keras has the optimizer do an update in every second one."""
    model = net(keras.optimizers.SGD(0.05, gradient_accumulation_steps=2))
    hook, callback = SeesHook(), bus(StopAtStepHook(last_step=7))
    fit(model, callback)
    assert int(model.optimizer.iterations) == 3
    fit(model, bus(hook), epochs=1)
    assert [step for step, _ in hook.seen] == [*range(8, 14)]


@IN_PARTS
@pytest.mark.parametrize("is_counted", [True, False])
def test_steps_of_one_execution_count_together(is_counted: bool) -> None:
    """The last one of an epoch may have fewer batches."""

    def batches():
        x, y = data()
        for at in range(0, 24, 4):
            yield x[at : at + 4], y[at : at + 4]

    hook, model = SeesHook(), net(steps_per_execution=4, jit_compile=False)
    callback = bus(hook)
    if is_counted:
        fit(model, callback, epochs=2)
        expected = [4, 6, 10, 12]
    else:
        model.fit(batches(), epochs=1, callbacks=[callback], verbose=0)
        expected = [4, 6]
    assert [step for step, _ in hook.seen] == expected
    assert int(model.optimizer.iterations) == expected[-1]


class FailsHook(SessionRunHook):
    """Fails in one event."""

    def __init__(self, where: str) -> None:
        self.where = where

    def after_create_session(self):
        self.fail("begin")

    def after_run(self, run_values):
        if run_values.global_step == 8:
            self.fail("run")

    @hookimpl
    def evaluated(self):
        self.fail("evaluated")

    @hookimpl
    def epoch_ended(self):
        self.fail("epoch")

    def end(self):
        self.fail("end")

    def fail(self, where: str) -> None:
        if where == self.where:
            raise ValueError(f"no {where}")


@pytest.mark.parametrize("where", ["begin", "run", "evaluated", "epoch", "end"])
def test_an_error_of_a_hook_leaves_fit_and_names_it(where: str) -> None:
    """It is the error of the fit."""
    seen = SeesHook()
    with (
        pytest.raises(ValueError, match=f"no {where}") as caught,
        bus(FailsHook(where), seen) as callback,
    ):
        fit(net(), callback)
    assert "plugin 'fails'" in "".join(caught.value.__notes__)
    assert callback.outcome is not None
    if where != "end":
        assert seen.told == [("failed", f"no {where}")]


class Broken(keras.callbacks.Callback):
    """Fails like the code of a user."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            raise OSError("no disk")


def test_an_error_of_the_training_reaches_hooks() -> None:
    """In a block at once; else when the callback is dropped, or begins again."""
    with_block, dropped, again = SeesHook(), SeesHook(), SeesHook()
    with pytest.raises(OSError, match="no disk"), bus(with_block) as callback:
        fit(net(), callback, Broken())
    assert with_block.told == [("failed", "no disk")]
    callback, left = bus(dropped), "the loop left its session without end() or failed()"
    with pytest.raises(OSError, match="no disk"):
        fit(net(), callback, Broken())
    del callback
    gc.collect()
    assert dropped.told == [("failed", left)]
    callback = bus(again)
    with pytest.raises(OSError, match="no disk"):
        fit(net(), callback, Broken())
    fit(net(), callback)
    assert again.told == [("failed", left)]
    assert callback.outcome is not None
    assert callback.outcome.kind == "completed"


def test_two_callbacks_in_one_fit_are_refused() -> None:
    """Two that train one after the other are not."""
    first, second = bus(), bus()
    with pytest.raises(UsageError, match="Keras' fit has two callbacks of hookbus-keras"):
        fit(net(), first, second)
    fit(net(), first)
    fit(net(), second)


def test_gradients_and_batches_are_named_as_what_keras_does_not_show() -> None:
    """The message tells what to set in Keras instead."""

    class ClipsHook(SessionRunHook):
        def begin(self, graph):
            graph.wrap("model.layer.kernel:grad", lambda value: value)

    with pytest.raises(UsageError, match=r"changes 'model.layer.kernel:grad'.*clipnorm="):
        fit(net(), bus(ClipsHook()))


class RequestsHook(SessionRunHook):
    """Asks for a checkpoint."""

    def after_run(self, run_context):
        run_context.request_save("now")


def test_without_a_backup_a_request_to_save_tells_how() -> None:
    """It is refused and not forgotten."""
    with pytest.raises(
        UsageError, match=r"saves no checkpoint for hooks: pass BusCallback"
    ):
        fit(net(), bus(RequestsHook()))


@pytest.mark.parametrize(
    ("number", "error", "kind"),
    [
        (signal.SIGTERM, SystemExit, "preempted"),
        (signal.SIGINT, KeyboardInterrupt, "interrupted"),
    ],
)
def test_a_signal_ends_the_step_and_leaves_fit(number: int, error: Any, kind: str) -> None:
    """Without a validation: the time until the process is killed is short."""

    class SignalsHook(SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == 8:
                os.kill(os.getpid(), number)

    hook, model = EvaluatedHook(), net()
    callback = bus(SignalsHook(), hook)
    with pytest.raises(error) as caught, callback:
        fit(model, callback)
    assert getattr(caught.value, "code", 75) == 75
    assert int(model.optimizer.iterations) == 8
    assert len(hook.metrics) == 1
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == (kind, 8)


def test_a_time_limit_leaves_the_backup_for_the_next_run() -> None:
    """As Keras does after a kill; it deletes the backup of a run that has ended."""
    backup = keras.callbacks.BackupAndRestore("backup")
    limit, model = TimeLimitHook(0.002, margin=0.001), net()
    callback = bus(limit, backup=backup)
    with pytest.raises(SystemExit, match="75"):
        fit(model, callback)
    assert callback.outcome is not None
    assert (callback.outcome.kind, callback.outcome.step) == ("preempted", 1)
    assert int(model.optimizer.iterations) == 1
    assert Path("backup/hookbus.json").exists()
    other = net()
    fit(other, bus(backup=keras.callbacks.BackupAndRestore("backup")))
    assert int(other.optimizer.iterations) == 19
    assert not Path("backup").exists()
