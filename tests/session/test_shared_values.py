"""A hook that computes in place changes nothing that others see, or that is trained."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hookbus import (
    Config,
    DrivenSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from hookbus.checkpoint.reader import read_newest

ALONE = Config(autoload=False, header=False)
FETCHES = {"grad": "grad", "pair": "pair", "w": "w"}


class Getting(SessionRunHook):
    """Gets results and the dicts of events."""

    def before_run(self):
        return SessionRunArgs(FETCHES)

    def after_run(self, run_values):
        self.take(run_values.results)

    @hookimpl
    def evaluated(self, metrics):
        self.take(metrics)

    @hookimpl
    def measured(self, values):
        self.take(values)

    @hookimpl
    def params_recorded(self, params):
        self.take(params)


class Computing(Getting):
    """Computes in place with all that it gets, as far as it can."""

    def __init__(self):
        self.refused = 0

    def after_run(self, run_context, run_values):
        self.take(run_values.results)
        self.take(run_context.session.run(["pair", "w"]))
        self.take(run_context.session.variables())

    @hookimpl
    def veto_save(self, values):
        self.take(values)

    def take(self, values):
        """Change values in place, and those inside."""
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            if isinstance(value, dict | list):
                self.take(value)
            elif isinstance(value, np.ndarray):
                self.tried(value.__imul__, 0)
            elif not isinstance(values, list):
                self.tried(values.__setitem__, key, -1)

    def tried(self, change, *arguments):
        try:
            change(*arguments)
        except (TypeError, ValueError):
            self.refused += 1


class Seeing(Getting):
    """Keeps what it gets, as text."""

    def __init__(self):
        self.seen = []

    def take(self, values):
        self.seen.append(json.dumps(values, default=np.ndarray.tolist))


class Measuring(SessionRunHook):
    """Tells all hooks what it measures."""

    def after_run(self, run_context):
        run_context.emit("measured", values={"rate": 0.5}, global_step=1)


def in_a_graph(hooks, directory):
    """Train a graph; return the array that the program feeds."""
    graph, x = Graph(), np.ones(2)
    graph.variable("w", np.ones(2))
    graph.placeholder("x")
    graph.op(lambda x: x + 1, name="grad")
    graph.op(lambda w: {"a": w * 2, "b": [w * 3]}, name="pair")
    graph.train_op(lambda w, grad: w + grad, name="train", updates="w")
    with opened(hooks, directory, graph) as session:
        for step in range(4):
            _, grad = session.run(["train", "grad"], feed_dict={"x": x})
            assert grad.tolist() == [2.0, 2.0], step
    return x


def in_a_loop(hooks, directory):
    """Train a custom loop; return the array that the program reports."""
    w, grad = np.ones(2), np.full(2, 2.0)
    with opened(hooks, directory) as session:
        session.track(w=w)
        for _ in session.iterate(range(4)):
            with session.step() as step:
                w += grad
                step.report(grad=grad, pair={"a": w * 2, "b": [w * 3]})
            with session.evaluation() as evaluation:
                evaluation.report(loss=w[0])
            assert evaluation.metrics == {"loss": w[0]}
    return grad


def driven(hooks, directory):
    """Have another loop compute the steps; return the array that it gives."""
    w, grad = np.ones(2), np.full(2, 2.0)
    with DrivenSession(checkpoint_dir=directory, hooks=hooks, config=ALONE) as session:
        session.begin()
        session.created()
        session.record({"rate": 1.0, "layers": {"size": 2}})
        session.track(w=w)
        for _ in range(4):
            session.before_step()
            w += grad
            session.after_step(values={"grad": grad, "pair": {"a": w * 2, "b": [w * 3]}})
    return grad


def opened(hooks, directory, *graph):
    """Return a session that has recorded hyperparameters."""
    session = MonitoredTrainingSession(
        *graph, checkpoint_dir=directory, hooks=hooks, config=ALONE
    )
    session.record({"rate": 1.0, "layers": {"size": 2}})
    return session


@pytest.mark.parametrize("train", [in_a_graph, in_a_loop, driven])
def test_a_hook_that_computes_in_place_changes_nothing(train, tmp_path):
    """The next hook, the program and the checkpoint see what they see without it."""
    spoils = Computing()
    seen = []
    for name, hooks in (("without", []), ("with", [spoils])):
        seeing, place = Seeing(), tmp_path / name
        given = train([*hooks, Measuring(), seeing], place)
        restored = read_newest(place)
        saved = {part: restored.state[part] for part in ("variables", "tracked")}
        seen.append(
            (given.tolist(), seeing.seen, json.dumps(saved, default=np.ndarray.tolist))
        )
    assert seen[0] == seen[1]
    assert spoils.refused > 10


def test_a_refused_change_says_what_to_do(tmp_path):
    """The metrics of an evaluation are a dict that all hooks share."""

    class Changing(SessionRunHook):
        @hookimpl
        def evaluated(self, metrics):
            metrics["loss"] = 0.0

    with (
        pytest.raises(TypeError, match=r"all hooks get this dict: make a copy, like dict"),
        MonitoredSession(hooks=[Changing()], config=ALONE) as session,
        session.evaluation() as evaluation,
    ):
        evaluation.report(loss=1.0)
