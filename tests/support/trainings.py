"""Trains one small model by hand, in graph sessions and in custom loops, and cuts it short.

A library gives a model for loops and the same as a graph. A row of the table in
`tests.support.kept` names a plugin, and the loop by hand whose training it promises.
"""

from __future__ import annotations

import functools
import operator
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from hookbus import Config, Graph, MonitoredTrainingSession, Outcome, SessionRunHook

BATCHES, SAVED_EVERY = 30, 4

SIGNALS = signal.SIGKILL, signal.SIGTERM

Batch = tuple[int, Any]
"""Its number, from 1, and its examples."""
Watch = Callable[[int], object]
"""Gets the number of each batch whose gradient is about to be computed."""


class Model(Protocol):
    """A model with its optimizer, as a loop without hookbus has them.

    Attributes:
        objects: what a session tracks.
        lr: the learning rate.
    """

    objects: Mapping[str, Any]
    lr: float

    def add_gradient(self, batch: Batch) -> Any:
        """Add the gradient of a batch to those before it; return the loss."""

    def update(self) -> None:
        """Do a step of the optimizer with the mean of the gradients, and drop them."""

    def drop_gradients(self) -> None:
        """Forget the gradients that were added."""

    def weights(self) -> dict[str, Any]:
        """Return copies of the arrays, by the names that they have in a session."""


@attrs.frozen
class Library:
    """The trainer of the model.

    Attributes:
        name: of the library.
        array: makes an array of it from one of NumPy.
        model: makes a model for a loop.
        graph: makes the graph that does the same, with the input ``batch``, the train op
            ``train`` and the value ``loss``.
        learning_rate: the name of the variable in sessions.
    """

    name: str
    array: Callable[[Any], Any]
    model: Callable[[Watch], Model]
    graph: Callable[[Sequence[Batch], Watch], Any]
    learning_rate: str


@attrs.frozen
class Site:
    """A library, and a kind of session."""

    library: Library
    custom_loop: bool

    def __str__(self) -> str:
        return f"{self.library.name}-{'loop' if self.custom_loop else 'graph'}"


@attrs.frozen
class Row:
    """A plugin, and the training that it promises.

    Attributes:
        plugin: its name.
        hooks: makes its hook, and others that it needs to act, for a site and the folder
            of the checkpoints.
        by_hand: trains a model with batches as the plugin promises, in a loop without
            hookbus; returns the weights, and what else it computes, by name.
        also: returns what the hooks, or files in the folder, have at the end of the
            training that *by_hand* also computes.
        saves: whether the session saves every few steps. If not, a hook does.
        spoiled: the numbers of batches with NaN.
        is_cut: whether the hooks end sessions before their time, as preempted.
        signals: returns the signals that change nothing at a site. SIGTERM has the session
            save, so it does where the training depends on when checkpoints are saved.
        in_loops: whether it also trains in custom loops.
        refused: the sites where the plugin cannot work, with what its error says.
    """

    plugin: str
    hooks: Callable[[Site, Path], Sequence[Any]]
    by_hand: Callable[[Model, Sequence[Batch], Site], Mapping[str, Any]]
    also: Callable[[Sequence[Any], Path], Mapping[str, Any]] = lambda *_: {}
    saves: bool = True
    spoiled: Sequence[int] = ()
    is_cut: bool = False
    signals: Callable[[Site], Sequence[signal.Signals]] = lambda _: SIGNALS
    in_loops: bool = True
    refused: Mapping[str, str] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return self.plugin

    def batches(self, library: Library) -> list[Batch]:
        """Return the data."""
        draw = np.random.default_rng(5)
        found = [draw.normal(size=(8, 4)).astype(np.float32) for _ in range(BATCHES)]
        for number in self.spoiled:
            found[number - 1][2, 1] = np.nan
        return [(number, library.array(x)) for number, x in enumerate(found, start=1)]

    def plainly(self, site: Site) -> dict[str, bytes]:
        """Train by hand; return the bits of all values."""
        model, batches = site.library.model(int), self.batches(site.library)
        return bits(self.by_hand(model, batches, site))

    def train(
        self, site: Site, folder: Path, watch: Watch = int
    ) -> tuple[Outcome, dict[str, bytes]]:
        """Train, or go on, in a session; return how it ended and the bits of all values."""
        batches, hooks = self.batches(site.library), self.hooks(site, folder)
        keeps = KeepsWeights()
        with MonitoredTrainingSession(
            None if site.custom_loop else site.library.graph(batches, watch),
            checkpoint_dir=folder,
            hooks=[*hooks, keeps],
            save_checkpoint_secs=None,
            save_checkpoint_steps=SAVED_EVERY if self.saves else None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            exit_on_signal=False,
            config=Config(autoload=False, header=False),
        ) as session:
            if site.custom_loop:
                self.loop(session, site.library.model(watch), batches)
            else:
                for _ in session.loop():
                    pass
        return session.outcome, bits({**keeps.weights, **self.also(hooks, folder)})

    def loop(self, session: Any, model: Any, batches: Sequence[Any]) -> None:
        """Train a model in a custom loop."""
        step_before = -1
        session.track(**model.objects)
        for batch in session.iterate(batches):
            with session.step() as step:
                if session.global_step <= step_before:  # a hook has gone back
                    model.drop_gradients()
                step_before = session.global_step
                step.report(loss=model.add_gradient(batch))
                if not step.skipped:
                    model.update()

    def train_cut(
        self, site: Site, folder: Path, batches: Iterable[int], number: int
    ) -> tuple[int, dict[str, bytes]]:
        """Train in processes that get a signal while they compute on these batches.

        Returns:
            How many sessions a hook has cut short, and the bits at the end.
        """
        cuts = 0
        for at in batches:
            while not self._gets_signal(site, folder, at, number):
                cuts += 1
        while True:
            outcome, values = self.train(site, folder)
            if outcome.kind != "preempted":
                return cuts, values
            cuts += 1

    def _gets_signal(self, site: Site, folder: Path, at: int, number: int) -> bool:
        """Train in a child; return whether a signal ended it, and not a hook."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                send = functools.partial(_send, at, number)
                outcome, _ = self.train(site, folder, send)
                if outcome.kind == "preempted":
                    code = 3 if outcome.who == signal.Signals(number).name else 4
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended = -number if number == signal.SIGKILL else 3
        assert code in (ended, 4), f"the child that gets {number} at {at} ended: {code}"
        return code == ended


@attrs.define(eq=False)
class KeepsWeights(SessionRunHook):
    """Keeps the arrays of a run as they are at its end."""

    weights: dict[str, Any] = attrs.field(factory=dict)

    def end(self, session: Any) -> None:
        self.weights = weights_in(session)


def weights_in(session: Any) -> dict[str, Any]:
    """Return the variables that are arrays, as a hook sees them."""
    values = session.variables()
    return {name: value for name, value in values.items() if getattr(value, "shape", ())}


def bits(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the bytes of each value, to compare them."""
    return {name: np.asarray(value).tobytes() for name, value in values.items()}


def _send(at: int, signal_number: int, batch: int) -> None:
    if batch == at:
        os.kill(os.getpid(), signal_number)


def _slope(w: Any, x: Any) -> Any:
    """Return the loss of a linear regression, and its gradient."""
    error = x @ w - x.sum(axis=1)
    return (error**2).mean(), x.T @ error / np.float32(len(x))


def _momentum(w: Any, m: Any, lr: float, gradient: Any) -> Any:
    """Return the weights and their momentum after a step."""
    m = m * np.float32(0.9) + gradient
    return w - np.float32(lr) * m, m


class NumpyModel:
    """A linear regression."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        zeros = functools.partial(np.zeros, 4, np.float32)
        self.state = {"w": zeros(), "m": zeros(), "lr": 0.05}
        self.objects = {"model": self.state}
        self.gradients: list[Any] = []

    @property
    def lr(self) -> float:
        return self.state["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self.state["lr"] = value

    def add_gradient(self, batch: Batch) -> Any:
        number, x = batch
        self.watch(number)
        loss, gradient = _slope(self.state["w"], x)
        self.gradients.append(gradient)
        return loss

    def update(self) -> None:
        total = functools.reduce(operator.add, self.gradients)
        mean = (total / len(self.gradients)).astype(np.float32)
        self.drop_gradients()
        self.state["w"][...], self.state["m"][...] = _momentum(**self.state, gradient=mean)

    def drop_gradients(self) -> None:
        self.gradients.clear()

    def weights(self) -> dict[str, Any]:
        return {f"model.{name}": self.state[name].copy() for name in "wm"}


def numpy_graph(batches: Sequence[Batch], watch: Watch) -> Graph:
    """Return the same model as a graph."""
    graph = Graph()
    graph.input("batch", lambda: iter(batches))
    for name, value in NumpyModel(watch).state.items():
        graph.variable(f"model.{name}", value)
    reads = {name: f"model.{name}" for name in ("w", "m", "lr")}

    @graph.op(reads={"w": "model.w"})
    def gradient(w: Any, batch: Batch) -> Any:
        number, x = batch
        watch(number)
        return _slope(w, x)[1]

    graph.op(lambda w, batch: _slope(w, batch[1])[0], name="loss", reads={"w": "model.w"})
    updates = ["model.w", "model.m"]
    graph.train_op(_momentum, name="train", updates=updates, reads=reads)
    return graph


NUMPY = Library("numpy", np.asarray, NumpyModel, numpy_graph, "model.lr")
