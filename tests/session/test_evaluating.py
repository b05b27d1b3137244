"""Tests the event around evaluations: every evaluator emits it, with the right session."""

from __future__ import annotations

import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook

from hookbus import (
    Config,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    RunConfig,
    SessionRunHook,
    TrainSpec,
    hookimpl,
    train_and_evaluate,
)

OFF = Config(autoload=False)


class Mirror(SessionRunHook):
    """Negates a variable while it is evaluated."""

    def __init__(self, variable="w"):
        self.variable, self.seen = variable, []

    @hookimpl(wrapper=True)
    def evaluating(self, session, name):
        before = session.variables()[self.variable]
        session.write({self.variable: -before})
        session.version -= 1
        self.seen.append((session.global_step, name))
        yield
        session.write({self.variable: before})
        session.version -= 1


class Metrics(SessionRunHook):
    """Keeps the metrics of evaluations."""

    def __init__(self):
        self.seen = {}

    @hookimpl
    def evaluated(self, metrics, global_step):
        self.seen[global_step] = dict(metrics)


def graph_of() -> Graph:
    graph = Graph()
    graph.variable("w", 1.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return graph


def test_the_in_memory_evaluator_evaluates_inside_it():
    """Its function sees what the wrapper has prepared; the training does not."""
    mirror, metrics = Mirror(), Metrics()
    evaluator = InMemoryEvaluatorHook(lambda s: {"w": s.run("w")}, 2, name="val")
    hooks = [mirror, metrics, evaluator]
    with MonitoredSession(graph_of(), hooks=hooks, config=OFF) as session:
        for _ in range(3):
            assert session.run(["w", "train"])[0] == 1 + session.global_step - 1
    assert mirror.seen == [(0, "val"), (2, "val"), (3, "val")]
    assert metrics.seen == {0: {"w": -1.0}, 2: {"w": -3.0}, 3: {"w": -4.0}}


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_of_a_custom_loop_is_inside_it(fails):
    """The wrapper undoes what it did even if the block fails."""
    mirror, model = Mirror("m.w"), {"w": 1.0}
    with MonitoredSession(hooks=[mirror], config=OFF) as session:
        session.track(m=model)
        with session.step():
            model["w"] += 1
        if fails:
            mirror_error = ArithmeticError("no data")
            with pytest.raises(ArithmeticError), session.evaluation("val"):
                raise mirror_error
        else:
            with session.evaluation("val") as evaluation:
                evaluation.report(w=model["w"])
            assert evaluation.metrics == {"w": -2.0}
            assert model == {"w": 2.0}
    assert mirror.seen == [(1, "val")]


def cut_after(passes, mirror, directory):
    """Train and evaluate pass by pass; fail after so many."""
    model = {"w": 1.0}
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=[mirror],
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        config=OFF,
    ) as session:
        session.track(m=model)
        for _ in range(passes):
            for _ in session.iterate([1]):
                with session.step():
                    model["w"] += 1
            with session.evaluation() as evaluation:
                evaluation.report(w=model["w"])
        raise ArithmeticError("cut")


def test_a_loop_that_resumes_does_not_repeat_it(tmp_path):
    """Its model is a later one than that which was evaluated."""
    seen = []
    for passes in (2, 4):
        mirror = Mirror("m.w")
        with pytest.raises(ArithmeticError):
            cut_after(passes, mirror, tmp_path)
        seen += mirror.seen
    assert [step for step, _ in seen] == [1, 2, 2, 3, 4]


def test_train_and_evaluate_gives_the_training_s_hooks_the_session_of_the_evaluation(
    tmp_path,
):
    """Values that they write into it are evaluated; the training continues with its own."""

    def model_fn(features, mode):
        graph = features.graph
        graph.variable("w", 1.0)
        graph.op(lambda w, x: w + 0 * x.sum(), name="loss", reads={"x": features})
        graph.train_op(lambda w, loss: w + 1, name="train", updates="w")
        return EstimatorSpec(mode, loss="loss", train_op="train")

    def input_fn():
        return [np.zeros(1)] * 4

    mirror, metrics = Mirror(), Metrics()
    estimator = Estimator(
        model_fn, tmp_path, RunConfig(save_checkpoints_steps=2, save_summary_steps=None)
    )
    spec = EvalSpec(input_fn, steps=1, throttle_secs=0, name="val")
    train = TrainSpec(input_fn, max_steps=4, hooks=[mirror, metrics])
    result, _ = train_and_evaluate(estimator, train, spec)
    assert result["loss"] == -5.0
    assert metrics.seen == {2: {"loss": -3.0}, 4: {"loss": -5.0}}
    assert mirror.seen == [(2, "val"), (4, "val")]
    assert estimator.get_variable_value("w") == 5.0
