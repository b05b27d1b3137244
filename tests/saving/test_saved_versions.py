"""A checkpoint names what has written it: hookbus, the backend, and the plugins."""

from __future__ import annotations

from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import Config, DrivenSession, Graph, MonitoredTrainingSession, SessionRunHook
from tests.support.naive_backend import NaiveGraph, NaiveSession
from tests.support.versions import versions_in

QUIET = Config(autoload=False, header=False)


class Labels(SessionRunHook):
    """Keeps the name of the backend session."""

    def after_create_session(self, session: Any) -> None:
        self.label = session.label


def filled(graph: Graph) -> Graph:
    """Return a graph with a variable and a train op."""
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return graph


@pytest.mark.parametrize(("kind", "label"), [(Graph, "embedded"), (NaiveGraph, "naive")])
def test_the_backend_is_that_of_the_session(kind, label, tmp_path):
    """Also in the checkpoint that a session writes before its first run."""
    labels = Labels()
    with MonitoredTrainingSession(
        filled(kind()), checkpoint_dir=tmp_path, hooks=[labels], config=QUIET
    ) as session:
        assert versions_in(tmp_path)["backend"] == label
        session.run("train")
    assert versions_in(tmp_path)["backend"] == labels.label == label


def test_the_backend_of_a_driven_session_is_the_one_that_the_loop_gives(tmp_path):
    """Whatever its graph names."""
    saver = CheckpointSaverHook(tmp_path, save_steps=1)
    driven = DrivenSession(filled(Graph()), [saver], config=QUIET)
    driven.begin()
    driven.created(NaiveSession(driven.graph))
    driven.end()
    assert versions_in(tmp_path)["backend"] == "naive"


def test_a_custom_loop_names_what_serves_its_reports(tmp_path):
    """Beside the versions of hookbus and of each plugin that takes part."""
    session = MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET)
    with session, session.step():
        pass
    found = versions_in(tmp_path)
    assert found["backend"] == "embedded"
    assert found["hookbus"] == found["hookbus-checkpoint-saver"]
