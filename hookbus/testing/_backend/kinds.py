"""Trains one model in each kind of session, so that a test of a hook runs in all of them.

In each step the model adds its input, which is 1, 2, 3 and so on, to ``w``. A value that is
fed as ``bias`` is added as well. The losses are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import attrs

from hookbus.config.config import Config
from hookbus.graph.graph import Graph
from hookbus.hooks.outcome import Outcome
from hookbus.lifecycle.recovery import Recovery
from hookbus.session.training import MonitoredTrainingSession
from hookbus.testing.backend_model import BackendModel

STEPS = 6


def quiet() -> Config:
    """Return a new Config, without any plugin that is found."""
    return Config(autoload=False, header=False)


class Cut(Exception):
    """The error that cuts a training run short, so that it is resumed."""


@attrs.frozen
class Training:
    """The script of one training run.

    Attributes:
        losses: the loss of each step; the last one stays.
        fed: whether hooks feed ``bias``.
        cut: the step after which the run fails, or None.
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
    """The result of one training run.

    Attributes:
        outcome: how the session ended.
        w: the value of ``w`` afterwards.
    """

    outcome: Outcome
    w: float


class Kind(Protocol):
    """A kind of session: opens one with some arguments, trains in it, and returns ``w``."""

    def __call__(self, training: Training, **session: Any) -> tuple[Outcome, float]: ...


def session_arguments(directory: str | Path | None) -> dict[str, Any]:
    """Return the arguments of a session without any plugin that is found."""
    return {
        "checkpoint_dir": directory,
        "config": quiet(),
        "recovery": Recovery(first_wait=0.0),
        "save_summaries_steps": None,
        "save_checkpoint_secs": None,
        "log_step_count_steps": None,
    }


def train(
    kind: Kind, *hooks: Any, directory: str | Path | None = None, **training: Any
) -> Trained:
    """Train in a kind of session with some hooks and no plugin that is found."""
    arguments = session_arguments(directory)
    outcome, w = kind(Training(**training), hooks=hooks, **arguments)
    return Trained(outcome, w)


def graph_of(model: BackendModel, training: Training) -> Graph:
    """Return the graph of a training run."""
    graph = model.graph()
    model.variable(graph, "w", 0.0)
    model.input(graph, "x", lambda: count(1.0))
    model.table(graph, "loss", training.losses)
    if training.fed:
        model.placeholder(graph, "bias")
    model.train_op(graph, "train", {"w": ["w", "x", "bias"][: 2 + training.fed]})
    return graph


def of_graphs(model: BackendModel) -> Kind:
    """Return the kind of session that trains graphs of a backend."""

    def kind(training: Training, **session: Any) -> tuple[Outcome, float]:
        last = _Last()
        session["hooks"] = [*session["hooks"], last]
        graph = graph_of(model, training)
        with MonitoredTrainingSession(graph, **session) as opened:
            while not opened.should_stop() and opened.global_step < training.steps:
                opened.run("train")
                if opened.global_step == training.cut:
                    raise Cut
        assert opened.outcome is not None
        return opened.outcome, last.w

    return kind


class _Last:
    """Reads ``w`` at the end."""

    w = float("nan")

    def end(self, session: Any) -> None:
        self.w = float(session.run("w"))
