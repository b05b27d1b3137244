"""Trains one model in each kind of session, so that a test of a hook runs in all of them.

In each step the model adds its input, which is 1, 2, 3 and so on, to ``w``. If something is
fed as ``bias``, it adds that, too. The losses are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from hookbus import Config, Graph, MonitoredTrainingSession, Outcome, Recovery

STEPS = 6
QUIET = Config(autoload=False, header=False)


class Cut(Exception):
    """What cuts a training short, so that it is resumed."""


@attrs.frozen
class Model:
    """What a training is to do.

    Attributes:
        losses: the loss of each step; the last one stays.
        fed: whether hooks feed ``bias``.
        cut: the step after which the training fails, or None.
        steps: the global step at which the caller leaves the loop.
    """

    losses: Sequence[float] = (0.5,)
    fed: bool = False
    cut: int | None = None
    steps: int = STEPS

    def loss(self, step: int) -> float:
        """Return the loss of the step that begins at a global step."""
        return self.losses[min(step, len(self.losses) - 1)]


@attrs.frozen
class Trained:
    """What came of a training.

    Attributes:
        outcome: how the session ended.
        w: the value of ``w`` afterwards.
    """

    outcome: Outcome
    w: float


class Kind(Protocol):
    """A kind of session: opens one with some arguments, trains in it, and returns ``w``."""

    def __call__(self, model: Model, **session: Any) -> tuple[Outcome, float]: ...


def train(
    kind: Kind, *hooks: Any, directory: str | Path | None = None, **model: Any
) -> Trained:
    """Train in a kind of session with some hooks and no plugin that is found."""
    outcome, w = kind(
        Model(**model),
        hooks=hooks,
        checkpoint_dir=directory,
        config=attrs.evolve(QUIET, records=[]),
        recovery=Recovery(first_wait=0.0),
        save_summaries_steps=None,
        save_checkpoint_secs=None,
        log_step_count_steps=None,
    )
    return Trained(outcome, w)


def graph_of(model: Model, make: Callable[[], Graph]) -> Graph:
    """Return the model as a graph of functions."""
    graph = make()
    graph.variable("w", np.zeros(()))
    graph.input("x", lambda: count(1.0))

    @graph.op
    def loss(global_step):
        return model.loss(global_step)

    if model.fed:
        graph.placeholder("bias")

        @graph.train_op(updates="w")
        def train(w, x, bias):
            return w + x + bias

    else:

        @graph.train_op(updates="w")
        def train(w, x):
            return w + x

    return graph


def run_graph(graph: Graph, model: Model, session: dict[str, Any]) -> Outcome:
    """Train a graph."""
    with MonitoredTrainingSession(graph, **session) as opened:
        while not opened.should_stop() and opened.global_step < model.steps:
            opened.run("train")
            if opened.global_step == model.cut:
                raise Cut
    return opened.outcome


def of_graphs(make: Callable[[], Graph]) -> Kind:
    """Return the kind of session that runs graphs of a class."""

    def kind(model: Model, **session: Any) -> tuple[Outcome, float]:
        graph, last = graph_of(model, make), []

        class Last:
            def end(self, session):
                last.append(float(session.run("w")))

        session["hooks"] = [*session["hooks"], Last()]
        return run_graph(graph, model, session), last[0] if last else float("nan")

    return kind


def custom_loop(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train in a custom loop with NumPy."""
    w = np.zeros(())

    def batches() -> Iterator[float]:
        yield from count(1.0)

    with MonitoredTrainingSession(**session) as opened:
        opened.track(w=w)
        for x in opened.iterate(batches()):
            with opened.step() as step:
                w += x + step.feeds.get("bias", 0.0)
                step.report(loss=model.loss(opened.global_step), w=w.copy())
            if opened.global_step == model.cut:
                raise Cut
            if opened.global_step >= model.steps:
                break
    return opened.outcome, float(w)
