"""Tests prediction-writer: what its files hold, in each place that evaluates."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_prediction_writer import PredictionWriterHook

from hookbus import (
    Config,
    Estimator,
    EvalSpec,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    RunConfig,
    SingularMonitoredSession,
    TrainSpec,
    UsageError,
    train_and_evaluate,
)
from hookbus.evaluating import evaluation_run
from tests.support.estimating import numbers, scaled_fn

OFF = Config(autoload=False, header=False)
QUIET = RunConfig(save_checkpoints_steps=2, save_summary_steps=None)


def files(folder="."):
    return sorted(path.name for path in Path(folder, "predictions").glob("*"))


def read(name, folder="."):
    with np.load(Path(folder, "predictions", name), allow_pickle=False) as found:
        return {key: found[key].tolist() for key in found}


def saving(*hooks, directory="run", **options):
    return MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, config=OFF, exit_on_signal=False, **options
    )


def train(session):
    with session.step() as step:
        step.report(loss=1.0)


def evaluate(session, *batches, name="val"):
    with session.evaluation(name) as evaluation:
        for batch in batches:
            with evaluation.step() as step:
                step.report(**batch)


def test_a_file_has_the_batches_of_an_evaluation_one_behind_the_other():
    """It is beside the checkpoints, under the name of the evaluation and the step."""
    shared = np.zeros(2)
    with saving(PredictionWriterHook(["p", "y", "size"])) as session:
        train(session)
        with session.evaluation("val") as evaluation:
            for size in (2, 1):
                with evaluation.step() as step:
                    shared[:] = size  # a loop may use its arrays again
                    step.report(p=shared[:size], y=["cat", "lion"][:size], size=size)
        train(session)
        evaluate(session, {"p": np.eye(2), "y": [True, False], "size": 0}, name=None)
    assert files("run") == ["eval-2.npz", "val-1.npz"]
    assert read("val-1.npz", "run") == {
        "p": [2.0, 2.0, 1.0],
        "y": ["cat", "lion", "cat"],
        "size": [2, 1],
    }
    assert read("eval-2.npz", "run")["p"] == [[1.0, 0.0], [0.0, 1.0]]


def test_a_resumed_training_writes_the_same_files():
    """Bit for bit: a file holds no times."""
    for directory, cuts in (("whole", ()), ("cut", (3, 5))):
        for cut in (*cuts, None):
            writer = PredictionWriterHook(["p"])
            try:
                with saving(
                    writer, directory=directory, save_checkpoint_steps=2
                ) as session:
                    for epoch in session.epochs(3):
                        for _ in session.iterate(range(2)):
                            train(session)
                            if session.global_step == cut:
                                raise ArithmeticError
                        evaluate(session, {"p": np.arange(epoch + 2)})
            except ArithmeticError:
                pass
    names = files("whole")
    assert names == files("cut") == ["val-2.npz", "val-4.npz", "val-6.npz"]
    for name in names:
        whole, cut = (Path(each, "predictions", name) for each in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes()


def evaluate_and_fail(session):
    with session.evaluation() as evaluation:
        with evaluation.step() as step:
            step.report(p=[1])
        raise ArithmeticError


def test_an_evaluation_that_is_cut_short_writes_nothing():
    """Neither one that fails nor one that a signal leaves; no file is left behind."""
    with saving(PredictionWriterHook(["p"])) as session:
        train(session)
        with pytest.raises(ArithmeticError):
            evaluate_and_fail(session)
        with session.evaluation() as evaluation:
            with evaluation.step() as step:
                step.report(p=[1])
            os.kill(os.getpid(), signal.SIGTERM)
            with evaluation.step():
                pass
    assert files("run") == []


def test_training_and_other_evaluations_are_not_written():
    """Training steps do not need to have the values."""
    with MonitoredSession(hooks=[PredictionWriterHook(["p"])], config=OFF) as session:
        train(session)
        with session.step(kind="eval") as step:
            step.report(loss=1.0)
        with session.evaluation() as evaluation:
            evaluation.report(loss=1.0)
    assert files() == []


def graph_of() -> Graph:
    graph = Graph()
    graph.variable("w", 1.0)
    graph.input("x", lambda: [np.full(2, float(number)) for number in range(3)])
    graph.op(lambda w, x: w * x, name="p")
    graph.train_op(lambda w, p: w + 1, name="train", updates="w")
    return graph


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_a_session_that_evaluates_or_predicts_writes_one_file(kind):
    """In a graph, and in a loop of NumPy."""
    with MonitoredTrainingSession(graph_of(), checkpoint_dir="g", config=OFF) as session:
        session.run("train")
    hook = PredictionWriterHook(["p"], output_dir="out")
    with SingularMonitoredSession(
        graph_of(), hooks=[hook], checkpoint_dir="g", kind=kind, config=OFF
    ) as session:
        while not session.should_stop():
            session.run("p")
    assert read(f"{kind}-1.npz", "out") == {"p": [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]}

    with saving() as session:
        session.track(w=np.ones(1))
        train(session)
    hook = PredictionWriterHook(["p"])
    with SingularMonitoredSession(
        hooks=[hook], checkpoint_dir="run", kind=kind, config=OFF
    ) as session:
        w = session.track(w=np.zeros(1))
        for number in session.iterate(range(2)):
            with session.step() as step:
                step.report(p=w * number)
    assert read(f"{kind}-1.npz", "run") == {"p": [0.0, 1.0]}


def test_an_estimator_writes_into_the_directory_of_its_model():
    """Whatever evaluates or predicts with it."""
    estimator = Estimator(scaled_fn, "model", QUIET)
    hooks = [PredictionWriterHook(["p"])]
    spec = EvalSpec(numbers(3, 0), steps=2, throttle_secs=0, name="val", hooks=hooks)
    train_and_evaluate(estimator, TrainSpec(numbers(3, 0), max_steps=3), spec)
    estimator.evaluate(numbers(3, 0), hooks=hooks)
    predictions = [*estimator.predict(numbers(3, 0), hooks=hooks)]
    assert files("model") == ["eval-3.npz", "predict-3.npz", "val-2.npz", "val-3.npz"]
    assert read("val-2.npz", "model") == {"p": [0.0, 0.0, 3.0, 3.0]}
    assert read("predict-3.npz", "model") == {"p": predictions}


def test_the_in_memory_evaluator_writes_what_its_function_shows():
    """The runs that its function does with evaluation_run() are steps of the evaluation."""

    def seen(session):
        found = [evaluation_run(session, "p", {"x": np.full(1, x)}) for x in (1.0, 2.0)]
        return {"p": float(np.concatenate(found).mean())}

    hooks = [PredictionWriterHook(["p"]), InMemoryEvaluatorHook(seen, name="a/b")]
    with MonitoredSession(graph_of(), hooks=hooks, config=OFF) as session:
        session.run("train")
    assert files() == ["a_b-0.npz", "a_b-1.npz"]
    assert read("a_b-1.npz") == {"p": [2.0, 4.0]}


FAULTS = {
    "ragged": [[1, 2], [[1], [1, 2]]],
    "shapes": [np.zeros((2, 3)), np.zeros((2, 4))],
    "object": [{"a": 1}],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_makes_no_array_is_an_error(fault):
    """The error names the value; nothing of the evaluation is written."""
    with MonitoredSession(hooks=[PredictionWriterHook(["p"])], config=OFF) as session:
        with pytest.raises(UsageError) as caught:
            evaluate(session, *({"p": batch} for batch in FAULTS[fault]))
        assert str(caught.value).startswith(
            "prediction-writer: the batches of 'p' make no array; report arrays of numbers "
            "or texts that differ in their first axis only"
        )
    assert files() == []


def test_a_folder_that_cannot_be_written_is_an_error():
    """The error says which, and what to do."""
    Path("predictions").write_text("a file")
    with (
        MonitoredSession(hooks=[PredictionWriterHook(["p"])], config=OFF) as session,
        pytest.raises(UsageError, match=r"cannot write .*val-0.npz: File exists; give ano"),
    ):
        evaluate(session, {"p": [1]})


@pytest.mark.parametrize("values", [[], "p"])
def test_it_needs_a_list_of_values(values):
    """A text would be a list of letters."""
    with pytest.raises(UsageError, match="expected a list of values to write"):
        PredictionWriterHook(values)
