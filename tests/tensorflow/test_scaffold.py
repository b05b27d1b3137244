"""Scaffold: what a session is initialized with, piece by piece."""

from __future__ import annotations

from typing import Any

import pytest

import hookbus
from hookbus import Graph, MonitoredTrainingSession, Scaffold, SingularMonitoredSession
from hookbus.errors import GraphFinalizedError

OFF = hookbus.Config(autoload=False)
PIECES = (
    "init_op",
    "init_feed_dict",
    "init_fn",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
    "saver",
    "local_init_feed_dict",
)


def small_graph() -> Graph:
    """Return a graph with v, w, a train op on w, and one that sets w to what is fed."""
    graph = Graph()
    graph.variable("v", 1.0)
    graph.variable("w", 2.0)
    graph.placeholder("start")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    graph.train_op(lambda start: start, name="set_w", updates="w", increment=0)
    return graph


def opened(graph: Graph, scaffold: Scaffold | None) -> SingularMonitoredSession:
    return SingularMonitoredSession(graph, scaffold=scaffold, config=OFF)


def test_pieces_are_kept_as_they_are_given():
    """Until it is finalized a scaffold does nothing with them, whatever they are."""
    given = {name: object() for name in PIECES}
    scaffold = Scaffold(small_graph(), **given)
    assert {name: getattr(scaffold, name) for name in PIECES} == given


def test_every_piece_may_be_left_out():
    """Variables have initial values, nothing is missing, and everything is saved."""
    scaffold = Scaffold(small_graph())
    assert [getattr(scaffold, name) for name in PIECES] == [None] * len(PIECES)
    with opened(scaffold.graph, scaffold) as session:
        assert session.run(["v", "w"]) == [1.0, 2.0]


def test_init_fn_gets_the_scaffold_and_the_backend_session():
    """It can read and write what the session starts with."""
    graph, seen = small_graph(), []

    def init_fn(scaffold, session):
        seen.append((scaffold, session))
        session.write({"v": session.run("w") * 10})

    scaffold = Scaffold(graph, init_fn=init_fn)
    with opened(graph, scaffold) as session:
        assert seen == [(scaffold, session.raw_session())]
        assert session.run("v") == 20.0


def test_init_op_is_run_with_its_feeds():
    """It sets variables and counts no step."""
    graph = small_graph()
    scaffold = Scaffold(graph, init_op="set_w", init_feed_dict={"start": 7.0})
    with opened(graph, scaffold) as session:
        assert session.run(["w", "global_step"]) == [7.0, 0]


def test_local_init_op_is_run_with_its_feeds():
    """It has feeds of its own."""
    graph = small_graph()
    scaffold = Scaffold(graph, local_init_op="set_w", local_init_feed_dict={"start": 8.0})
    with opened(graph, scaffold) as session:
        assert session.run("w") == 8.0


def test_finalize_finalizes_the_graph():
    """No node can be added after it, and the scaffold itself is returned."""
    scaffold = Scaffold(small_graph())
    assert scaffold.finalize() is scaffold
    with pytest.raises(GraphFinalizedError):
        scaffold.graph.placeholder("late")


def test_a_scaffold_may_be_finalized_again():
    """The second time finds everything in place."""
    scaffold = Scaffold(small_graph(), saver=["w"])
    scaffold.finalize()
    assert scaffold.finalize() is scaffold
    assert scaffold.saver == ["w"]


def test_finalize_needs_no_variables():
    """A graph of nothing but the global step also has a scaffold."""
    graph = Graph()
    Scaffold(graph).finalize()
    assert graph.finalized


def test_two_scaffolds_can_serve_one_graph():
    """One after the other, each with pieces of its own."""
    graph = small_graph()
    for start in (7.0, 8.0):
        scaffold = Scaffold(graph, init_op="set_w", init_feed_dict={"start": start})
        with opened(graph, scaffold) as session:
            assert session.run("w") == start


def test_one_scaffold_can_serve_several_sessions():
    """It holds no state of a session."""
    graph, made = small_graph(), []
    scaffold = Scaffold(graph, init_fn=lambda _, session: made.append(session))
    for _ in range(2):
        opened(graph, scaffold).close()
    assert made[0] is not made[1]


def saving(graph: Graph, scaffold: Scaffold | None = None, **more: Any) -> Any:
    return MonitoredTrainingSession(
        graph, scaffold=scaffold, checkpoint_dir="c", config=OFF, **more
    )


def test_by_default_all_variables_are_saved():
    """A scaffold without a saver has checkpoints hold the whole graph."""
    with saving(graph := small_graph(), Scaffold(graph)) as session:
        session.run("train")
        session.run("set_w", {"start": 5.0})
    with saving(small_graph()) as session:
        assert session.run(["v", "w", "global_step"]) == [1.0, 5.0, 1]


def test_the_saver_names_what_is_saved():
    """Other variables are neither saved nor restored, and start as they always do."""
    for expected in ([1.0, 2.0], [1.0, 3.0]):
        graph = small_graph()
        with saving(graph, Scaffold(graph, saver=["w"])) as session:
            assert session.run(["v", "w"]) == expected
            session.run("train")
    with pytest.raises(
        hookbus.errors.CheckpointMismatchError, match="'v' is only in the graph"
    ):
        saving(small_graph())


def test_the_summary_op_is_what_the_automatic_hook_writes():
    """The summary saver of a training session takes its tensors from the scaffold."""
    graph = small_graph()
    with saving(graph, Scaffold(graph, summary_op=["v", "w"])) as session:
        assert session._state.bus.members["summary-saver"].plugin.tensors == ("v", "w")


@pytest.mark.parametrize("wrong", ["scaffold", 3, {"init_op": "set_w"}], ids=repr)
def test_copy_from_scaffold_must_be_a_scaffold(wrong):
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="copy_from_scaffold is not a Scaffold instance"):
        Scaffold(small_graph(), copy_from_scaffold=wrong)


def test_pieces_are_copied_from_another_scaffold():
    """All those that are not given anew."""
    given = {name: object() for name in PIECES}
    source = Scaffold(small_graph(), **given)
    copy = Scaffold(small_graph(), copy_from_scaffold=source)
    assert {name: getattr(copy, name) for name in PIECES} == given


@pytest.mark.parametrize("name", PIECES)
def test_own_pieces_win_over_copied_ones(name):
    """A given argument stands, though the other scaffold also has it."""
    source = Scaffold(small_graph(), **{piece: object() for piece in PIECES})
    mine = object()
    copy = Scaffold(small_graph(), copy_from_scaffold=source, **{name: mine})
    assert getattr(copy, name) is mine
    others = [piece for piece in PIECES if piece != name]
    assert all(getattr(copy, piece) is getattr(source, piece) for piece in others)


def test_a_copied_init_fn_gets_the_new_scaffold():
    """The function is copied, not the scaffold that it was given to."""
    graph, seen = small_graph(), []
    source = Scaffold(graph, init_fn=lambda scaffold, _: seen.append(scaffold))
    copy = Scaffold(graph, copy_from_scaffold=source)
    opened(graph, copy).close()
    assert seen == [copy]
