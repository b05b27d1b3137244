"""The rules that TensorFlow's tests of Scaffold and MonitoredTrainingSession pin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookbus import Config, Graph, MonitoredTrainingSession, Scaffold
from hookbus.errors import GraphFinalizedError

OFF = Config(autoload=False)
PIECES = {
    "init_op": 1,
    "init_feed_dict": 2,
    "init_fn": 3,
    "ready_op": 4,
    "ready_for_local_init_op": 5,
    "local_init_op": 6,
    "summary_op": 7,
    "saver": 8,
    "local_init_feed_dict": 9,
}


def pieces_of(scaffold: Scaffold) -> dict[str, Any]:
    return {name: getattr(scaffold, name) for name in PIECES}


def test_a_scaffold_is_empty_before_finalize():
    """A piece that is not given is None."""
    assert set(pieces_of(Scaffold(Graph())).values()) == {None}


def test_a_scaffold_needs_no_pieces():
    """The defaults fit every graph: they are nothing, as variables have values."""
    graph = Graph()
    graph.variable("w", 1.0)
    scaffold = Scaffold(graph).finalize()
    assert set(pieces_of(scaffold).values()) == {None}


def test_a_graph_without_variables_can_be_finalized():
    """There need be nothing to initialize or to save."""
    graph = Graph()
    Scaffold(graph).finalize()
    assert graph.finalized


def test_a_scaffold_keeps_the_very_values_that_it_is_given():
    """Whatever they are: they are looked at when the session is made."""
    assert pieces_of(Scaffold(Graph(), **PIECES)) == PIECES


def test_finalize_finalizes_the_graph():
    """A node that is added afterwards is an error."""
    graph = Graph()
    Scaffold(graph).finalize()
    with pytest.raises(GraphFinalizedError):
        graph.variable("late", 1)


def test_pieces_given_to_a_copy_of_an_empty_scaffold_are_its_own():
    """Nothing in the old one stands against them."""
    old = Scaffold(Graph())
    new = Scaffold(old.graph, copy_from_scaffold=old, **PIECES)
    assert pieces_of(new) == PIECES


@pytest.mark.parametrize("own", [*PIECES])
def test_own_pieces_override_copied_ones(own):
    """One is given anew, the others come from the existing scaffold."""
    old = Scaffold(Graph(), **PIECES)
    new = Scaffold(old.graph, copy_from_scaffold=old, **{own: 10})
    assert pieces_of(new) == {**PIECES, own: 10}


def test_only_a_scaffold_can_be_copied_from():
    """Anything else is a TypeError with TensorFlow's words."""
    with pytest.raises(TypeError, match="copy_from_scaffold is not a Scaffold instance"):
        Scaffold(Graph(), copy_from_scaffold=1)  # type: ignore[arg-type]


def model() -> Graph:
    """Return a graph with a loss that falls."""
    graph = Graph()
    graph.variable("w", 8.0)
    graph.op(lambda w: w, name="loss")
    graph.train_op(lambda w: w / 2, name="train", updates="w")
    return graph


def train(steps: int, **arguments: Any) -> MonitoredTrainingSession:
    """Train so many steps into ``runs``."""
    arguments = {"save_summaries_steps": None, "log_step_count_steps": None} | arguments
    with MonitoredTrainingSession(
        model(), checkpoint_dir="runs", config=OFF, **arguments
    ) as session:
        session.first = session.global_step
        for _ in range(steps):
            session.run("train")
    return session


def saved() -> list[int]:
    """Return the steps of the checkpoints."""
    paths = Path("runs").glob("ckpt-*")
    return sorted(int(path.name.removeprefix("ckpt-")) for path in paths)


def recorded() -> dict[str, list[int]]:
    """Return the steps at which each tag was recorded."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator("runs").Reload()
    return {
        tag: [event.step for event in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_the_end_saves_and_the_next_session_resumes():
    """A second session on the directory begins where the first one ended."""
    train(2)
    assert train(3).first == 2
    assert saved()[-1] == 5


def test_checkpoints_come_every_so_many_steps():
    """The period chosen is kept, and the last step is restored."""
    train(7, save_checkpoint_steps=3)
    assert saved() == [0, 3, 6, 7]
    assert train(0).first == 7


@pytest.mark.parametrize(("secs", "expected"), [(1e-6, [0, 1, 2, 3]), (1e6, [0, 3])])
def test_checkpoints_come_every_so_many_seconds(secs, expected):
    """A run after which the period has passed is saved, and the last step is restored."""
    train(3, save_checkpoint_secs=secs)
    assert saved() == expected
    assert train(0).first == 3


def test_summaries_and_speed_are_written_every_so_many_steps():
    """Both come without a hook in the code."""
    train(9, save_summaries_steps=4, log_step_count_steps=3)
    assert recorded() == {"loss": [1, 5, 9], "global_step/sec": [4, 7]}


@pytest.mark.parametrize(("secs", "expected"), [(1e-6, [1, 2, 3, 4]), (1e6, [1])])
def test_summaries_and_speed_are_written_every_so_many_seconds(secs, expected):
    """The first run is recorded, and each one after which the period has passed."""
    train(4, save_summaries_steps=None, save_summaries_secs=secs, log_step_count_steps=2)
    assert recorded() == {"loss": expected, "global_step/sec": [3]}


def test_zero_seconds_between_checkpoints_save_none():
    """The directory is only read; chief-only hooks take part, as they would."""

    class Began:
        times = 0

        def begin(self):
            self.times += 1

    hook = Began()
    train(5, save_checkpoint_secs=0, chief_only_hooks=[hook])
    assert saved() == []
    assert hook.times == 1
