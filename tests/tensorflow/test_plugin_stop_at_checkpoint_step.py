"""TensorFlow's rules for a worker's StopAtCheckpointStepHook, kept by its plugin."""

from __future__ import annotations

import time

import pytest
from hookbus_stop_at_checkpoint_step import StopAtCheckpointStepHook

from hookbus import Graph, UsageError
from hookbus.testing import run_steps


def test_it_needs_a_last_step():
    """A step that is None is a ValueError."""
    with pytest.raises(UsageError, match=r"^last_step must be specified\.$") as caught:
        StopAtCheckpointStepHook("runs", None)
    assert isinstance(caught.value, ValueError)


def test_it_needs_a_directory():
    """A directory that is None is a ValueError."""
    with pytest.raises(UsageError, match=r"^model_dir must be specified\.$"):
        StopAtCheckpointStepHook(None, 10)


def test_the_pause_is_30_seconds_by_default():
    """The third argument may be left out."""
    assert StopAtCheckpointStepHook("runs", 10).wait_after_file_check_secs == 30


def test_it_goes_on_where_there_is_no_checkpoint():
    """At the last step it pauses after each run, and does not stop."""
    began = time.monotonic()
    steps = run_steps(StopAtCheckpointStepHook("chief", 3, 0.1), steps=5)
    assert (steps.outcome.kind, steps.global_step) == ("completed", 5)
    assert time.monotonic() - began >= 0.3


def test_it_goes_on_where_the_checkpoint_is_of_an_earlier_step():
    """A checkpoint before the last step does not count."""
    run_steps(steps=2, directory="chief")
    steps = run_steps(StopAtCheckpointStepHook("chief", 3, 0), steps=5)
    assert steps.outcome.kind == "completed"


@pytest.mark.parametrize("saved", [3, 4])
def test_it_stops_where_the_checkpoint_of_the_last_step_is_there(saved):
    """The checkpoint of the last step or of a later one; without a pause."""
    run_steps(steps=saved, directory="chief")
    began = time.monotonic()
    steps = run_steps(StopAtCheckpointStepHook("chief", 3, 60), steps=5)
    assert (steps.outcome.kind, steps.global_step) == ("stopped", 3)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("increment", "stops_at"), [(1, 7), (2, 8), (5, 10)])
def test_it_looks_from_the_last_step_on(increment, stops_at, open_session):
    """Its schedule is that of the true step, whatever a run adds to it."""
    run_steps(steps=7, directory="chief")
    graph = Graph()
    graph.train_op(lambda: {"x": 1}, outputs="x", name="train", increment=increment)
    with open_session(StopAtCheckpointStepHook("chief", 7, 60), graph=graph) as session:
        while not session.should_stop():
            session.run("train")
    assert session.global_step == stops_at


def test_a_session_beyond_the_last_step_does_no_run():
    """In TensorFlow it does one; a job that is started again would drift."""
    run_steps(steps=9, directory="chief")
    steps = run_steps(StopAtCheckpointStepHook("chief", 3), steps=5, directory="chief")
    outcome = steps.outcome
    assert (outcome.kind, outcome.who) == ("stopped", "stop-at-checkpoint-step")
    assert (outcome.why, outcome.step) == ("the checkpoint of step 9 is on disk", 9)


def test_a_session_beyond_the_last_step_still_waits_for_the_checkpoint():
    """Reaching the step alone is no reason to leave before the first run."""
    run_steps(steps=9, directory="mine")
    run_steps(steps=2, directory="chief")
    steps = run_steps(StopAtCheckpointStepHook("chief", 3, 0), steps=5, directory="mine")
    assert (steps.outcome.kind, steps.global_step) == ("completed", 14)


@pytest.mark.parametrize("last_step", [0, -1])
def test_a_last_step_is_above_0(last_step):
    """A target that is reached before any step is a mistake."""
    with pytest.raises(UsageError, match=f"invalid last_step={last_step}"):
        StopAtCheckpointStepHook("chief", last_step)


def test_a_checkpoint_that_cannot_be_read_counts_as_none(tmp_path):
    """Its step is taken for 0."""
    (tmp_path / "ckpt-9").mkdir()
    steps = run_steps(StopAtCheckpointStepHook(tmp_path, 3, 0), steps=5)
    assert steps.outcome.kind == "completed"
