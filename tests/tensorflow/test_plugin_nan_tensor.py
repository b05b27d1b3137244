"""TensorFlow's rules for NanTensorHook: what counts as NaN, and what happens then."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook

from hookbus import Graph, SessionRunHook
from hookbus.testing import run_steps

NAN, INFINITY = float("nan"), float("inf")


def graph_of(value) -> Graph:
    """Return a graph whose loss is a value from step 2 on, and whose n counts."""
    graph = Graph()
    graph.variable("n", 0)
    graph.op(lambda n: value if n else 0.5, name="loss")
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def saved() -> list[int]:
    """Return the steps of the checkpoints in the directory saved."""
    paths = Path("saved").glob("ckpt-*")
    return sorted(int(path.name.removeprefix("ckpt-")) for path in paths)


def test_the_arguments_are_those_of_tensorflow():
    """Failing is the default."""
    parameters = list(inspect.signature(NanTensorHook).parameters.values())[:2]
    assert [parameter.name for parameter in parameters] == [
        "loss_tensor",
        "fail_on_nan_loss",
    ]
    assert parameters[1].default is True


def test_fail_mode_raises_in_the_run_with_the_nan(open_session):
    """Not in the one before it."""
    with open_session(NanTensorHook("loss"), graph=graph_of(NAN)) as session:
        session.run("train")
        with pytest.raises(NanLossDuringTrainingError):
            session.run("train")


def test_the_error_is_a_runtime_error_that_tells_what_is_nan(open_session):
    """TensorFlow's says that the loss is; this one names the node and the step."""
    with open_session(NanTensorHook("loss"), graph=graph_of(NAN)) as session:
        session.run("train")
        with pytest.raises(RuntimeError, match="loss is NaN at step 2"):
            session.run("train")


def test_the_session_ends_with_the_error(hook, calls):
    """It leaves the block, and hooks hear of it."""
    steps = run_steps(
        NanTensorHook("loss"), hook("h"), values={"loss": [0.5, NAN]}, reraise=False
    )
    assert isinstance(steps.error, NanLossDuringTrainingError)
    assert (steps.outcome.kind, steps.global_step, calls[-1]) == ("failed", 2, "h.failed")


def test_stop_mode_warns_and_stops(open_session, lines):
    """The run with the NaN returns, and is the last."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    with open_session(hook, graph=graph_of(NAN)) as session:
        session.run("train")
        assert not session.should_stop()
        assert np.isnan(session.run(["loss", "train"])[0])
        assert session.should_stop()
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    assert "loss is NaN at step 2" in warning["why"]


@pytest.mark.parametrize("value", [INFINITY, -INFINITY])
def test_infinity_is_not_nan(value, open_session):
    """It passes."""
    with open_session(NanTensorHook("loss"), graph=graph_of(value)) as session:
        for _ in range(3):
            session.run("train")
    assert session.outcome.kind == "completed"


@pytest.mark.parametrize(
    ("value", "is_nan"),
    [
        (np.array([NAN]), True),
        (np.array([[0.5]]), False),
        (np.float32(NAN), True),
        (3, False),
        (np.int64(3), False),
    ],
)
def test_arrays_of_one_element_and_integers_are_looked_at(value, is_nan, open_session):
    """As numbers are."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    with open_session(hook, graph=graph_of(value)) as session:
        session.run("train")
        session.run("train")
        assert session.should_stop() is is_nan


@pytest.mark.parametrize(
    ("value", "is_nan"),
    [(np.array([0.5, NAN]), True), (np.array([[NAN] * 2] * 2), True), (np.ones(2), False)],
)
def test_of_larger_arrays_each_element_counts(value, is_nan, open_session):
    """TensorFlow fails with NumPy's ambiguous truth, NaN or not."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    with open_session(hook, graph=graph_of(value)) as session:
        session.run("train")
        session.run("train")
        assert session.should_stop() is is_nan


def test_the_loss_is_fetched_in_each_run(open_session):
    """Whatever the caller fetches."""
    computed, graph = [], Graph()
    graph.op(lambda: computed.append(1) or 0.5, name="loss")
    graph.op(lambda: 1.0, name="other")
    with open_session(NanTensorHook("loss"), graph=graph) as session:
        for _ in range(4):
            session.run("other")
    assert len(computed) == 4


@pytest.mark.parametrize("fails", [True, False])
def test_what_the_run_updated_stays_updated(fails, open_session):
    """The NaN is seen after the run."""
    hook = NanTensorHook("loss", fail_on_nan_loss=fails)
    with open_session(hook, graph=graph_of(NAN)) as session:
        session.run("train")
        try:
            session.run("train")
        except NanLossDuringTrainingError:
            assert fails
        assert session.global_step == 2
        assert session.run("n", kind="aux") == 2


@pytest.mark.parametrize(("fails", "after"), [(True, ["a"]), (False, ["a", "b"])])
def test_hooks_before_it_have_seen_the_run(fails, after, open_session):
    """Those behind it only if it stops, and does not fail."""
    seen = []

    class Sees(SessionRunHook):
        def __init__(self, name):
            self.name = name

        def after_run(self, run_values):
            if run_values.global_step == 2:
                seen.append(self.name)

    nan_hook = NanTensorHook("loss", fail_on_nan_loss=fails)
    with open_session(Sees("a"), nan_hook, Sees("b"), graph=graph_of(NAN)) as session:
        session.run("train")
        try:
            session.run("train")
        except NanLossDuringTrainingError:
            assert fails
    assert seen == after


def test_the_step_with_the_nan_is_not_saved():
    """In TensorFlow a saver that stands before the hook has saved it by then."""
    run_steps(
        NanTensorHook("loss"),
        values={"loss": [0.5, 0.5, NAN, NAN]},
        reraise=False,
        directory="saved",
        save_checkpoint_steps=1,
    )
    assert saved() == [0, 1, 2]


def test_a_variable_that_is_nan_is_never_saved():
    """Where the hook only stops, the first and the last checkpoint are refused as well."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    run_steps(hook, variables={"bad": NAN}, directory="saved", save_checkpoint_steps=1)
    assert saved() == []
