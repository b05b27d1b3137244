"""A session that evaluates or predicts restores from the directory that it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hookbus_prediction_writer import PredictionWriterHook

from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.errors import (
    ArgumentTypeError,
    CheckpointError,
    NoGoodCheckpointError,
)
from hookbus.testing import run_steps
from tests.support.saving import counting

QUIET = Config(autoload=False, header=False)
RUNS = Path("runs")
KINDS = pytest.mark.parametrize("kind", ["eval", "predict"])


class PlacesHook(SessionRunHook):
    """Keeps which directories a session has."""

    @hookimpl
    def begin(self, checkpoints):
        self.places = checkpoints.directory, checkpoints.restores_from


@pytest.fixture
def trained() -> dict[Path, bytes]:
    """Train three steps; return the files that this left."""
    graph = counting()
    with MonitoredTrainingSession(graph, checkpoint_dir=RUNS, config=QUIET) as session:
        for _ in range(3):
            session.run("train")
    return files()


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in RUNS.rglob("*") if path.is_file()}


def opened(kind, *hooks, graph=None, **options):
    graph = graph or counting()
    options = {"checkpoint_dir": RUNS, "config": QUIET, "kind": kind, **options}
    return MonitoredSession(graph, hooks=hooks, **options)


@KINDS
def test_it_has_the_variables_and_the_step_of_the_newest_checkpoint(kind, trained):
    """And leaves the directory as it is: no checkpoint, no outcome, no lock."""
    with opened(kind) as session:
        assert session.global_step == 3
        assert session.run("n") == 3
    assert files() == trained


@KINDS
def test_hooks_find_the_directory(kind, trained):
    """It is where the session restores from; the session saves nowhere."""
    hook = PlacesHook()
    with opened(kind, hook):
        pass
    assert hook.places == (None, RUNS.absolute())


@KINDS
def test_predictions_are_written_beside_the_checkpoints(kind, trained):
    """By prediction-writer, without settings."""
    with opened(kind, PredictionWriterHook(["n"])) as session:
        session.run("n")
        session.run("n")
    with np.load(RUNS / "predictions" / f"{kind}-3.npz") as found:
        assert found["n"].tolist() == [3, 3]


@KINDS
def test_a_checkpoint_that_comes_in_a_preemption_is_restored(kind, trained):
    """The newest one is chosen each time that the session is opened."""
    graph, calls = counting(), []

    @graph.op
    def shaky(n):
        calls.append(n)
        if len(calls) == 1:
            with MonitoredTrainingSession(
                counting(), checkpoint_dir=RUNS, config=QUIET
            ) as session:
                session.run("train")
            raise AbortedError("the machine is gone")
        return n

    with opened(kind, graph=graph, recovery=Recovery(first_wait=0.0)) as session:
        assert session.run("shaky") == 4


@KINDS
@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "empty"])
def test_a_directory_without_a_checkpoint_is_an_error(kind, is_there):
    """An evaluation of initial values would look like one of a bad model."""
    if is_there:
        RUNS.mkdir()
    with pytest.raises(CheckpointError, match="there is no checkpoint in 'runs'"):
        opened(kind)
    assert list(Path().rglob("*")) == [RUNS] * is_there


def test_a_directory_without_a_good_checkpoint_is_an_error(trained):
    """The bad ones stay where they are."""
    for path in RUNS.glob("ckpt-*/manifest.json"):
        path.write_text("{}", "utf-8")
    before = files()
    with pytest.raises(NoGoodCheckpointError, match="none of them is good"):
        opened("eval")
    assert files() == before


def test_a_training_has_a_session_of_its_own():
    """The error names it, and nothing is made."""
    with pytest.raises(UsageError, match="use MonitoredTrainingSession") as raised:
        MonitoredSession(counting(), checkpoint_dir=RUNS, config=QUIET)
    assert "only restores, for the kinds eval and predict" in str(raised.value)
    assert not RUNS.exists()


def test_the_directory_is_given_in_one_place(trained):
    """Either to the session or to its session_creator."""
    creator = ChiefSessionCreator(counting(), checkpoint_dir=RUNS)
    with pytest.raises(UsageError, match="checkpoint_dir and session_creator exclude"):
        opened("eval", graph=creator.graph, session_creator=creator)


def test_a_directory_is_a_path(trained):
    """A number is not a directory."""
    with pytest.raises(ArgumentTypeError, match="checkpoint_dir must be a path, given: 3"):
        opened("eval", checkpoint_dir=3)


@KINDS
def test_run_steps_restores_from_its_directory(kind, tmp_path):
    """A test can train first, and then evaluate."""
    run_steps(steps=2, directory=tmp_path)
    steps = run_steps(steps=1, directory=tmp_path, kind=kind)
    assert (steps.global_step, steps.variables["w"]) == (2, 3.0)
