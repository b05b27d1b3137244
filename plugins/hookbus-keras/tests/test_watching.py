"""Tests callbacks of Keras as hooks of sessions in which Keras trains nothing."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_keras import BusCallback, from_callback

from hookbus import Config, Graph, MonitoredSession, UsageError
from tests.support.in_keras import fit, net

OFF = Config(autoload=False, header=False)


def losses() -> list[float]:
    return [float(each) for each in 1 / np.arange(1, 13)]


def in_a_graph(*hooks: Any) -> Any:
    """Train 12 steps in a graph, which has no epochs; return the session."""
    graph = Graph()
    graph.input("batch", losses)
    graph.variable("w", 0.0)
    graph.op(lambda batch: np.float32(batch), name="loss")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredSession(graph, hooks=hooks, config=OFF) as session:
        for _ in session.loop():
            pass
    return session


def in_a_loop(*hooks: Any, bad: int | None = None) -> Any:
    """Train three epochs of four steps, and evaluate in each; return the session."""
    step = 0
    with MonitoredSession(hooks=hooks, config=OFF) as session:
        for epoch in session.epochs(3):
            for value in session.iterate(losses()[4 * epoch : 4 * epoch + 4]):
                with session.step() as opened:
                    step += 1
                    opened.report(loss=float("nan") if step == bad else value, lr=0.5)
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=epoch + 0.25)
    return session


def rows() -> list[dict[str, str]]:
    with Path("log.csv").open() as file:
        return [*csv.DictReader(file)]


def test_a_csv_logger_writes_the_epochs_of_a_loop() -> None:
    """With the metrics of evaluations, under the names of fit."""
    hook = from_callback(keras.callbacks.CSVLogger("log.csv"), logs=["loss", "lr"])
    in_a_loop(hook)
    found = [(row["epoch"], float(row["loss"]), float(row["val_loss"])) for row in rows()]
    expected = [losses()[at] for at in (3, 7, 11)]
    assert found == [(str(n), loss, n + 0.25) for n, loss in enumerate(expected)]
    assert {row["lr"] for row in rows()} == {"0.5"}


def test_a_csv_logger_writes_the_training_of_a_graph() -> None:
    """It is one epoch."""
    in_a_graph(from_callback(keras.callbacks.CSVLogger("log.csv")))
    assert [(row["epoch"], float(row["loss"])) for row in rows()] == [
        ("0", float(np.float32(losses()[-1])))
    ]


@pytest.mark.parametrize("train", [in_a_graph, in_a_loop])
def test_a_lambda_callback_gets_each_event_in_order(train: Any) -> None:
    """As from Keras, with numbers of Python in the logs."""
    told: list[Any] = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: told.append(("epoch", epoch)),
        on_epoch_end=lambda epoch, logs: told.append(("epoch ended", epoch)),
        on_train_begin=lambda logs: told.append("begin"),
        on_train_end=lambda logs: told.append("end"),
        on_train_batch_begin=lambda batch, logs: told.append(batch),
        on_train_batch_end=lambda batch, logs: told.append((batch, logs["loss"])),
    )
    train(from_callback(callback))
    length = 12 if train is in_a_graph else 4
    assert told[:3] == ["begin", ("epoch", 0), 0]
    assert told[-2:] == [("epoch ended", 12 // length - 1), "end"]
    numbers = [each for each in told if isinstance(each, tuple) and type(each[0]) is int]
    assert [batch for batch, _ in numbers] == [*range(length)] * (12 // length)
    assert [loss for _, loss in numbers] == pytest.approx(losses())
    assert {type(loss) for _, loss in numbers} == {float}


def test_terminate_on_nan_stops_a_session() -> None:
    """At the step with the loss, in its own name."""
    session = in_a_loop(from_callback(keras.callbacks.TerminateOnNaN()), bad=6)
    assert session.outcome.kind == "stopped"
    assert session.outcome.step == 6
    assert session.outcome.who.startswith("terminate-on-na")
    assert session.outcome.why == "TerminateOnNaN has set stop_training"


def test_early_stopping_stops_a_loop_after_an_epoch() -> None:
    """Without the weights, its rule needs no model."""
    callback = keras.callbacks.EarlyStopping("val_loss", patience=1)
    session = in_a_loop(from_callback(callback))
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 8)


def test_a_history_is_filled() -> None:
    """It also sets an attribute of the model, which nobody needs."""
    history = keras.callbacks.History()
    in_a_loop(from_callback(history))
    assert history.epoch == [0, 1, 2]
    assert history.history["val_loss"] == [0.25, 1.25, 2.25]


class Own(keras.callbacks.Callback):
    """A user's own way to see evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def on_test_begin(self, logs=None):
        self.told.append("test")

    def on_test_end(self, logs=None):
        self.told.append(logs)


def test_a_callback_of_the_user_sees_evaluations() -> None:
    """Their begin and their metrics."""
    callback = Own()
    in_a_loop(from_callback(callback))
    assert callback.told == [x for n in range(3) for x in ("test", {"loss": n + 0.25})]


def test_a_hook_of_a_callback_works_in_keras_too() -> None:
    """Though there the callback itself does the same."""
    hook = from_callback(keras.callbacks.CSVLogger("log.csv"))
    callback = keras.callbacks.CSVLogger("other.csv")
    fit(net(), BusCallback([hook], config=OFF), callback)
    assert Path("log.csv").read_text() == Path("other.csv").read_text()


class Saves(keras.callbacks.Callback):
    """Needs the model of Keras."""

    def on_epoch_end(self, epoch, logs=None):
        def write():
            self.model.save("model.keras")

        write()


class Freezes(keras.callbacks.Callback):
    """Changes the model of Keras."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.trainable = False


@pytest.mark.parametrize(
    ("callback", "used"),
    [
        (lambda: keras.callbacks.ModelCheckpoint("best.keras"), ""),
        (lambda: keras.callbacks.BackupAndRestore("backup"), ""),
        (lambda: keras.callbacks.EarlyStopping(restore_best_weights=True), "set_weights"),
        (lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), "optimizer"),
        (lambda: keras.callbacks.ReduceLROnPlateau(), "optimizer"),
        (lambda: keras.callbacks.TensorBoard("logs"), ""),
        (Saves, "save"),
        (Freezes, "trainable"),
    ],
)
def test_what_needs_the_model_is_refused_at_once(callback: Any, used: str) -> None:
    """And not when it needs it, hours later."""
    made = callback()
    match = rf"{type(made).__name__} uses self\.model\.{used}"
    with pytest.raises(UsageError, match=match):
        from_callback(made)


def test_a_hidden_use_of_the_model_is_refused_when_it_comes() -> None:
    """Here by another name of it; the error names the hook."""

    class Reads(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model = self.model
            print(model.weights)

    class Sets(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model = self.model
            model.trainable = False

    for kind, name in ((Reads, "weights"), (Sets, "trainable")):
        with pytest.raises(
            UsageError, match=rf"{kind.__name__} uses self.model.{name}"
        ) as e:
            in_a_loop(from_callback(kind()))
        assert kind.__name__.lower() in "".join(e.value.__notes__)


def test_something_else_is_no_callback() -> None:
    """A hook of hookbus needs no help."""
    with pytest.raises(
        UsageError, match="takes a callback of Keras, not EarlyStoppingHook"
    ):
        from_callback(EarlyStoppingHook("loss", patience=1))


def test_the_batches_of_an_evaluation_are_told_to_nobody() -> None:
    """So a callback that waits for them is refused."""

    class Batches(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            print(batch)

    with pytest.raises(
        UsageError, match=r"Batches has on_test_batch_end\(\), which a sess"
    ):
        from_callback(Batches())
