"""Tests what summary-saver records at which steps, as TensorBoard's own reader sees it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hookbus_step_counter import StepCounterHook
from hookbus_summary_saver import SummarySaverHook
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import Graph, MonitoredSession, UsageError

QUIET = hookbus.Config(autoload=False)


def train(graph: Graph, runs: int, *hooks) -> None:
    """Run so often."""
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("train")


@pytest.mark.parametrize(
    ("periods", "message"),
    [
        ({}, "Either every_secs or every_steps should be provided."),
        ({"save_steps": 1, "save_secs": 1}, "Can not provide both every_secs and"),
    ],
)
def test_exactly_one_period_is_given(periods, message):
    """Steps or seconds, and not both."""
    with pytest.raises(UsageError, match=message):
        SummarySaverHook(output_dir="out", **periods)


@pytest.mark.parametrize("name", ["save_steps", "save_secs"])
@pytest.mark.parametrize("period", [0, -1])
def test_a_period_is_above_zero(name, period):
    """To write nothing, the hook is left out."""
    with pytest.raises(UsageError, match=rf"^invalid {name}={period}\. "):
        SummarySaverHook(**{name: period}, output_dir="out")


def test_there_must_be_a_directory():
    """Event files have to go somewhere."""
    with pytest.raises(
        UsageError, match="output_dir, the directory of the event files, must be given"
    ):
        SummarySaverHook(save_steps=1)


@pytest.mark.parametrize(
    ("period", "increment", "runs", "expected"),
    [
        (8, 1, 30, [1, 9, 17, 25]),
        (3, 1, 9, [1, 4, 7]),
        (3, 2, 5, [2, 6, 10]),
        (3, 5, 4, [5, 10, 15, 20]),
        (8, 5, 5, [5, 15, 25]),
    ],
)
def test_it_records_at_the_first_run_and_then_periodically(
    model, steps_in, period, increment, runs, expected
):
    """The true global step after the run counts, whatever a run adds to it."""
    hook = SummarySaverHook(save_steps=period, output_dir="out")
    train(model(increment), runs, hook)
    assert steps_in("out") == expected


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(1, 9), st.sampled_from([1, 2, 5]), st.integers(1, 20))
def test_the_schedule_is_that_of_the_true_step(
    model, steps_in, tmp_path_factory, period, increment, runs
):
    """Each record comes at the first step at least a period after the one before."""
    expected = [increment]
    for step in range(increment, runs * increment + 1, increment):
        if step >= expected[-1] + period:
            expected.append(step)
    out = tmp_path_factory.mktemp("out")
    train(model(increment), runs, SummarySaverHook(save_steps=period, output_dir=str(out)))
    assert steps_in(out) == expected


def test_a_period_in_seconds(model, steps_in, monkeypatch):
    """A record comes at the first run that begins when the period is over."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    hook = SummarySaverHook(save_secs=9, output_dir="out")
    with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
        for _ in range(8):
            session.run("train")
            now[0] += 3.1
    assert steps_in("out") == [1, 4, 7]


def test_values_are_those_of_the_run(model, read_back):
    """A record has the value of its own run, read before the updates."""
    train(model(), 3, SummarySaverHook(save_steps=1, output_dir="out"))
    assert read_back("out") == {"loss": [(1, 0.0), (2, 1.0), (3, 2.0)]}


def test_a_run_that_does_not_train_records_nothing(model, read_back):
    """A step is recorded once, by the run that led to it, though others come between."""
    hook = SummarySaverHook(save_steps=1, output_dir="out")
    with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
        for _ in range(4):
            session.run("train")
            session.run("loss")
    assert read_back("out")["loss"] == [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]


def test_nothing_is_computed_in_a_run_that_is_not_due(model):
    """Only the runs with a record evaluate the nodes."""
    computed = []
    graph = model()
    graph.op(lambda: computed.append(1) or 1.0, name="costly")
    hook = SummarySaverHook(save_steps=4, output_dir="out", tensors=["costly"])
    train(graph, 9, hook)
    assert len(computed) == 3


def test_nothing_is_recorded_at_the_end(model, steps_in):
    """The last step is recorded only if it was due."""
    train(model(), 6, SummarySaverHook(save_steps=4, output_dir="out"))
    assert steps_in("out") == [1, 5]


def test_loss_and_accuracy_are_recorded_when_nothing_is_named(model, read_back):
    """Without names: those of the two that the graph has."""
    graph = model()
    graph.op(lambda: np.float32(0.5), name="accuracy")
    train(graph, 1, SummarySaverHook(save_steps=1, output_dir="out"))
    assert read_back("out") == {"loss": [(1, 0.0)], "accuracy": [(1, 0.5)]}


def test_named_nodes_are_recorded_instead(model, read_back):
    """Nodes are given by name or as Node objects."""
    graph = model()
    graph.op(lambda: np.array(3), name="three")
    hook = SummarySaverHook(
        save_steps=1, output_dir="out", tensors=[graph.nodes["three"], "w"]
    )
    train(graph, 1, hook)
    assert read_back("out") == {"three": [(1, 3.0)], "w": [(1, 0.0)]}


@pytest.mark.parametrize("as_node", [False, True])
def test_one_node_may_stand_for_a_sequence(model, read_back, as_node):
    """As a name or as a Node object."""
    graph = model()
    tensors = graph.nodes["w"] if as_node else "w"
    train(graph, 1, SummarySaverHook(save_steps=1, output_dir="out", tensors=tensors))
    assert read_back("out") == {"w": [(1, 0.0)]}


def test_an_unknown_name_lists_close_matches(model):
    """A misspelled node is an error before the first step, with a suggestion."""
    hook = SummarySaverHook(save_steps=1, output_dir="out", tensors=["lost"])
    with pytest.raises(
        hookbus.errors.UnknownNodeError, match=r"summary-saver.*mean 'loss'"
    ):
        MonitoredSession(model(), hooks=[hook], config=QUIET)


@pytest.mark.parametrize(
    ("value", "told"),
    [(np.zeros(3), r"shape \(3,\)"), (None, "NoneType"), ("text", "str")],
    ids=["array", "none", "text"],
)
def test_a_value_that_is_no_scalar_is_a_clear_error(model, value, told):
    """The error names the node, what it is instead, and the flag."""
    graph = model()
    graph.op(lambda: value, name="odd")
    hook = SummarySaverHook(save_steps=1, output_dir="out", tensors=["odd"])
    with pytest.raises(UsageError, match=f"'odd' is not a valid scalar.*{told}") as caught:
        train(graph, 1, hook)
    assert "--summary-saver-tensors" in str(caught.value)


def test_what_is_measured_goes_into_the_same_file(model, read_back, tmp_path):
    """The rate that step-counter measures stands beside the loss, at its own steps."""
    out = tmp_path / "out"
    counter = StepCounterHook(every_n_steps=2)
    train(model(), 5, counter, SummarySaverHook(save_steps=4, output_dir=str(out)))
    recorded = read_back(out)
    assert [step for step, _ in recorded["loss"]] == [1, 5]
    assert [step for step, _ in recorded["global_step/sec"]] == [3, 5]
    assert len(list(out.iterdir())) == 1


def test_measurements_are_recorded_where_there_is_nothing_else(read_back):
    """A graph without loss and accuracy is no error: others may still measure."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w, name="train", updates="w")
    saver = SummarySaverHook(save_steps=1, output_dir="out")
    train(graph, 3, StepCounterHook(every_n_steps=2), saver)
    assert [step for step, _ in read_back("out")["global_step/sec"]] == [3]


def test_two_sessions_within_one_second_keep_both_files(model, read_back):
    """Each session has a file of its own, however quickly it follows."""
    for tensor in ("loss", "w"):
        hook = SummarySaverHook(save_steps=1, output_dir="out", tensors=[tensor])
        with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
            session.run("train")
    assert "w" in read_back("out")
    assert len(list(Path("out").iterdir())) == 2


def test_the_file_can_be_read_after_a_failure(model, steps_in):
    """Records from before an error are in the file."""

    class Fail(hookbus.SessionRunHook):
        def after_run(self):
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        train(model(), 1, SummarySaverHook(save_steps=1, output_dir="out"), Fail())
    assert steps_in("out") == [1]


def test_a_failure_before_the_file_is_open_stays_the_only_error(model):
    """on_exception comes also to a session that never got ready."""

    class Fail(hookbus.SessionRunHook):
        def begin(self):
            raise RuntimeError("on purpose")

    hooks = [SummarySaverHook(save_steps=1, output_dir="out"), Fail()]
    with pytest.raises(RuntimeError, match="on purpose") as caught:
        MonitoredSession(model(), hooks=hooks, config=QUIET)
    assert not any("on_exception" in note for note in caught.value.__notes__)


def test_the_end_says_where_the_summaries_are(model, capsys):
    """The last line tells the directory and the command to look at it."""
    train(model(), 1, SummarySaverHook(save_steps=1, output_dir="out"))
    assert "tensorboard --logdir out" in capsys.readouterr().err
