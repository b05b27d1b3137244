"""A model that an Estimator trains, whose state, loss and predictions tell what it saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np

from hookbus import (
    Bus,
    Estimator,
    EstimatorSpec,
    Graph,
    HookOptions,
    RunConfig,
    SessionRunHook,
    hookimpl,
)

RUN = Path("run")


def numbers(count: int, first: int = 1) -> Callable[[], list[Any]]:
    """Return an input_fn: batches of two examples, all of value 1, 2, 3 and so on."""
    return lambda: [np.full(2, float(n)) for n in range(first, first + count)]


def build(graph: Graph) -> None:
    """Add the model: ``done`` counts steps, ``seen`` adds up losses, values of batches."""
    graph.variable("done", 0.0)
    graph.variable("seen", 0.0)
    graph.op(lambda features: float(features.mean()), name="loss")
    graph.op(lambda features: features * 10, name="tenfold")

    @graph.train_op(updates=("done", "seen"))
    def train(done, seen, loss):
        return done + 1, seen + loss


def scaled_fn(features: Any, mode: str) -> EstimatorSpec:
    """Scale features by w, as the prediction p; each step of a run adds 1 to w."""
    graph = features.graph
    graph.variable("w", 1.0)
    graph.op(lambda w, x: w * x, name="p", reads={"x": features})
    graph.op(lambda p: float(p.mean()), name="loss")
    graph.train_op(lambda w, loss: w + 1, name="train", updates="w")
    return EstimatorSpec(mode, predictions="p", loss="loss", train_op="train")


def model(**fields: Any) -> Callable[..., EstimatorSpec]:
    """Return a model_fn.

    Args:
        fields: of its EstimatorSpec, in the place of those of the model or beside them;
            a function among them is given the graph.
    """

    def model_fn(features: Any, mode: str) -> EstimatorSpec:
        graph = features.graph
        build(graph)
        usual = {"loss": "loss", "train_op": "train", "predictions": {"tenfold": "tenfold"}}
        more = {k: v(graph) if callable(v) else v for k, v in fields.items()}
        return EstimatorSpec(**{"mode": mode, **usual, **more})

    return model_fn


def estimator(directory: Path = RUN, config: Any = None, **fields: Any) -> Estimator:
    """Return an Estimator of the model, with :class:`RunConfig` settings in a dict."""
    settings = {"save_checkpoints_steps": 100, **(config or {})}
    return Estimator(model(**fields), directory, RunConfig(**settings))


def state(trained: Estimator) -> tuple[float, float]:
    """Return how many steps were done, and the sum of the batches that were seen."""
    done, seen = map(trained.get_variable_value, ("done", "seen"))
    return float(done), float(seen)


def saved(directory: Path = RUN) -> list[int]:
    """Return the steps of the checkpoints in a directory."""
    paths = directory.glob("ckpt-*")
    return sorted(int(path.name.removeprefix("ckpt-")) for path in paths)


@attrs.define(eq=False)
class WatchHook(SessionRunHook):
    """Notes each event, with the step where it has one; serves sessions of each kind.

    Attributes:
        made: all hooks of this class, for those that somebody else makes.
        events: the events.
        bus: all that take part.
        members: their names, in order.
    """

    options = HookOptions(kinds=("train", "eval", "predict"))
    made: ClassVar[list[WatchHook]] = []

    events: list[str] = attrs.field(factory=list, init=False)
    members: list[str] = attrs.field(factory=list, init=False)
    bus: Bus = attrs.field(factory=Bus, init=False)

    def __attrs_post_init__(self) -> None:
        self.made.append(self)

    @hookimpl
    def addhooks(self, bus):
        self.bus = bus

    def begin(self):
        self.members = list(self.bus.members)
        self.events.append("begin")

    def after_create_session(self, session):
        self.events.append(f"created {session.global_step}")

    def before_run(self, run_context):
        self.events.append("before")

    def after_run(self, run_values):
        self.events.append(f"after {run_values.global_step}")

    @hookimpl
    def after_save(self, global_step):
        self.events.append(f"saved {global_step}")

    def end(self, session):
        self.events.append("end")

    @hookimpl
    def finished(self, session):
        self.events.append("finished")

    def on_exception(self, exception):
        self.events.append(f"failed: {exception}")


@attrs.define(eq=False)
class StopsHook(SessionRunHook):
    """Asks for a stop after some runs."""

    runs: int

    def after_run(self, run_context):
        self.runs -= 1
        if not self.runs:
            run_context.request_stop("enough")
