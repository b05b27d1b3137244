"""A session that evaluates or predicts around a custom loop only restores."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    ChiefSessionCreator,
    Config,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    SingularMonitoredSession,
)
from hookbus.errors import CheckpointMismatchError
from hookbus.graph.report_graph import ReportGraph

QUIET = Config(autoload=False, header=False)
RUNS = Path("runs")
KINDS = pytest.mark.parametrize("kind", ["eval", "predict"])


@pytest.fixture
def trained():
    """Train four steps, to the middle of a pass, and save three objects."""
    w, state, draw = np.zeros(2), {"steps": 0}, np.random.default_rng(1)
    with MonitoredTrainingSession(
        checkpoint_dir=RUNS,
        hooks=[StopAtStepHook(last_step=4)],
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        session.track(w=w, state=state, draw=draw)
        for x in session.iterate([1, 2, 3, 4, 5, 6]):
            with session.step():
                w += x
                state["steps"] += 1
                draw.random()
                random.random()


def opened(kind, *hooks):
    """Open a session that restores from the directory."""
    return MonitoredSession(checkpoint_dir=RUNS, hooks=hooks, kind=kind, config=QUIET)


def content():
    """Return every file of the directory, with what it holds."""
    return {p: p.read_bytes() for p in RUNS.rglob("*") if p.is_file()}


@KINDS
def test_it_restores_what_both_have(kind, trained):
    """Names that only the checkpoint or only the program has are no error."""
    w, extra = np.zeros(2), np.ones(1)
    with opened(kind) as session:
        assert session.track(w=w, extra=extra)["w"] is w
        with session.step():
            pass
        assert session.global_step == 4
    assert (w.tolist(), extra.tolist()) == ([10, 10], [1])


@KINDS
def test_a_singular_session_restores_as_well(kind, trained):
    """It takes the same argument."""
    w = np.zeros(2)
    with SingularMonitoredSession(checkpoint_dir=RUNS, kind=kind, config=QUIET) as session:
        session.track(w=w)
    assert w.tolist() == [10, 10]


@KINDS
def test_a_creator_restores_as_well(kind, trained):
    """A session takes the directory from its session_creator."""
    creator, w = ChiefSessionCreator(ReportGraph(), checkpoint_dir=RUNS), np.zeros(2)
    with MonitoredSession(session_creator=creator, kind=kind, config=QUIET) as session:
        session.track(w=w)
    assert w.tolist() == [10, 10]


def test_a_log_line_names_what_is_not_restored(trained, lines):
    """A misspelled name leaves a model untrained, so somebody has to see it."""
    with opened("eval") as session:
        session.track(W=np.zeros(2), w=np.zeros(2))
    (line,) = [each for each in lines if "has no state for these" in each["event"]]
    assert line["objects"] == ["W"]


def test_what_does_not_fit_is_an_error(trained):
    """An array of another shape is another model."""
    told = "'w' is an array of shape \\(3,\\) and dtype float64 here"
    with pytest.raises(CheckpointMismatchError, match=told), opened("eval") as session:
        session.track(w=np.zeros(3))


@KINDS
def test_the_generators_of_the_process_stay(kind, trained):
    """Python's and NumPy's are not those of the checkpoint; a tracked one is."""
    random.seed(7)
    np.random.seed(7)
    draw = np.random.default_rng(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    with opened(kind) as session:
        session.track(draw=draw)
        with session.step():
            pass
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    expected = np.random.default_rng(1)
    expected.random(4)
    assert draw.random() == expected.random()


@KINDS
def test_it_resumes_no_position(kind, trained):
    """It gets all values of its input, and runs each step."""
    with opened(kind) as session:
        seen = []
        for x in session.iterate([1, 2, 3, 4, 5]):
            with session.step():
                seen.append(x)
    assert seen == [1, 2, 3, 4, 5]


@KINDS
@pytest.mark.parametrize("failing", [True, False])
def test_it_saves_nothing(kind, failing, trained):
    """Whatever hooks ask for: its checkpoint would lack what only the training tracks."""

    class AsksHook(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_save("each step")

    before = content()
    hooks = [AsksHook(), CheckpointSaverHook(RUNS, save_steps=1, save_on_failure=True)]

    def evaluate():
        with opened(kind, *hooks) as session:
            session.track(w=np.zeros(2))
            for _ in range(3):
                with session.step():
                    pass
            if failing:
                raise OSError("broken")

    if failing:
        with pytest.raises(OSError, match="broken"):
            evaluate()
    else:
        evaluate()
    assert content() == before


def test_the_training_goes_on_afterwards(trained):
    """From the checkpoint that it has saved, with all of its objects."""
    with opened("eval", CheckpointSaverHook(RUNS, save_steps=1)) as session:
        session.track(w=np.zeros(2))
        with session.step():
            pass
    w, state, draw = np.zeros(2), {"steps": 0}, np.random.default_rng(1)
    with MonitoredTrainingSession(checkpoint_dir=RUNS, config=QUIET) as session:
        session.track(w=w, state=state, draw=draw)
        with session.step():
            pass
    assert (w.tolist(), state["steps"]) == ([10, 10], 4)


def test_a_log_line_says_that_a_saver_has_no_effect(trained, lines):
    """Once, with the name of the hook."""
    with opened("predict", CheckpointSaverHook(RUNS, save_steps=1)):
        pass
    (line,) = [each for each in lines if "saves no checkpoint" in each["event"]]
    assert line["hook"] == "checkpoint-saver"


@KINDS
def test_it_needs_no_lock(kind, trained):
    """The training may hold it."""
    with MonitoredTrainingSession(checkpoint_dir=RUNS, config=QUIET) as training:
        training.track(w=np.zeros(2), state={"steps": 0}, draw=np.random.default_rng(1))
        with opened(kind, CheckpointSaverHook(RUNS, save_steps=1)) as session:
            session.track(w=np.zeros(2))
        with training.step():
            pass


def test_a_graph_of_one_train_op_is_no_custom_loop():
    """An op of the program makes it a graph like any other, even if it reads nothing."""
    graph = ReportGraph()
    assert graph.takes_reports
    graph.train_op(lambda: None, name="train")

    assert not graph.takes_reports
