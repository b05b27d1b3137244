"""A scaffold inside a session: unknown names, failures, recovery, what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    Scaffold,
    SessionRunHook,
)

OFF = hookbus.Config(autoload=False)


def small_graph() -> Graph:
    """Return a graph with v, w, and train ops that raise w, set it, and are preempted."""
    graph = Graph()
    graph.variable("v", 1.0)
    graph.variable("w", 2.0)
    graph.placeholder("start")
    graph.op(lambda v: v, name="reads")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    graph.train_op(lambda start: start, name="set_w", updates="w", increment=0)
    return graph


def opened(graph: Graph, scaffold: Scaffold, *hooks: Any, **more: Any) -> Any:
    creator = hookbus.ChiefSessionCreator(graph, scaffold)
    return MonitoredSession(session_creator=creator, hooks=hooks, config=OFF, **more)


def trains(graph: Graph, scaffold: Scaffold | None = None, **more: Any) -> Any:
    return MonitoredTrainingSession(
        graph, scaffold=scaffold, checkpoint_dir="c", config=OFF, **more
    )


class Told(SessionRunHook):
    """Knows how the session ended, and what w was when it was created."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: list[float] = []

    def after_create_session(self, session):
        self.seen.append(session.run("w"))

    def end(self):
        self.events.append("end")

    def on_exception(self):
        self.events.append("on_exception")


class Preempts(SessionRunHook):
    """Is preempted before the run of one step, once."""

    def __init__(self, at: int) -> None:
        self.at: int | None = at

    def before_run(self, run_context):
        if run_context.global_step == self.at:
            self.at = None
            raise hookbus.UnavailableError("gone")


@pytest.mark.parametrize(
    ("piece", "value"),
    [
        ("init_op", "nothing"),
        ("init_op", {"a": ["set_w", "nothing"]}),
        ("init_feed_dict", {"nothing": 1}),
        ("local_init_op", "nothing"),
        ("local_init_feed_dict", {"nothing": 1}),
        ("ready_op", "nothing"),
        ("ready_for_local_init_op", "nothing"),
        ("saver", ["w", "nothing"]),
    ],
)
def test_a_name_that_no_node_has_is_an_error_of_its_piece(piece, value):
    """The piece is named when the scaffold is finalized, before anything is run."""
    scaffold = Scaffold(small_graph(), **{piece: value})
    with pytest.raises(
        hookbus.errors.UnknownNodeError, match=f"'nothing'.*{piece} of the scaffold"
    ):
        scaffold.finalize()


def test_a_node_of_another_graph_is_an_error_of_its_piece():
    """A node is good for its own graph only."""
    scaffold = Scaffold(small_graph(), init_op=small_graph().nodes["set_w"])
    with pytest.raises(hookbus.GraphError, match=r"another graph.*init_op of the scaffold"):
        scaffold.finalize()


@pytest.mark.parametrize("node", ["reads", "start", "global_step"])
def test_only_variables_can_be_saved(node):
    """The global step is always saved, and is not to be named."""
    with pytest.raises(hookbus.GraphError, match=f"saver of the scaffold.*'{node}'"):
        Scaffold(small_graph(), saver=["w", node]).finalize()


def test_one_name_is_no_saver():
    """A bare name would be read letter by letter."""
    with pytest.raises(hookbus.UsageError, match=r"the scaffold's saver is 'w'.*list"):
        Scaffold(small_graph(), saver="w").finalize()


def test_a_name_may_be_given_before_its_node_is_there():
    """Names are looked up after ``begin``, in which a hook may still add what they mean."""
    graph = small_graph()

    class Adds(SessionRunHook):
        def begin(self, graph):
            graph.train_op(lambda: 9.0, name="late", updates="w", increment=0)

    with opened(graph, Scaffold(graph, init_op="late"), Adds()) as session:
        assert session.run("w") == 9.0


def test_pieces_may_be_nodes():
    """Wherever a name is taken, its node is."""
    graph = small_graph()
    nodes = graph.nodes
    graph.op(lambda: None, name="ready")
    scaffold = Scaffold(
        graph,
        init_op=[nodes["set_w"]],
        init_feed_dict={nodes["start"]: 7.0},
        ready_op=graph.nodes["ready"],
        saver=[nodes["w"]],
    )
    with opened(graph, scaffold) as session:
        assert session.run("w") == 7.0
    assert scaffold.saved_names == {"w"}


def test_hooks_find_a_session_that_is_prepared():
    """``after_create_session`` comes after every piece of the scaffold."""
    graph, hook = small_graph(), Told()
    scaffold = Scaffold(graph, init_op="set_w", init_feed_dict={"start": 7.0})
    opened(graph, scaffold, hook).close()
    assert hook.seen == [7.0]


@pytest.mark.parametrize("piece", ["init_op", "init_fn", "local_init_op", "ready_op"])
def test_a_piece_that_fails_ends_the_session_before_its_first_step(piece):
    """The error leaves as itself, and every hook that began is told."""
    graph, hook = small_graph(), Told()

    def fails(*args: Any) -> None:
        raise OSError("no data")

    graph.op(lambda: fails(), name="fails")
    scaffold = Scaffold(graph, **{piece: fails if piece == "init_fn" else "fails"})
    with pytest.raises(OSError, match="no data"):
        opened(graph, scaffold, hook)
    assert hook.events == ["on_exception"]
    assert not graph.finalized


def test_the_first_checkpoint_holds_what_the_session_was_initialized_with():
    """A session that restores it is not initialized again."""
    for expected in (7.0, 8.0):
        graph = small_graph()
        scaffold = Scaffold(graph, init_op="set_w", init_feed_dict={"start": 7.0})
        with trains(graph, scaffold) as session:
            assert session.run(["w", "train"])[0] == expected


@pytest.mark.parametrize("where", [None, "c"])
def test_a_recovery_initializes_again_only_where_nothing_can_be_restored(where):
    """Local state is prepared in every new backend session."""
    graph, runs = small_graph(), []
    graph.op(lambda: runs.append("init_op"), name="init")
    graph.op(lambda: runs.append("local_init_op"), name="local")
    scaffold = Scaffold(
        graph,
        init_op="init",
        init_fn=lambda *args: runs.append("init_fn"),
        local_init_op="local",
    )
    with MonitoredTrainingSession(
        graph,
        scaffold=scaffold,
        checkpoint_dir=where,
        save_checkpoint_steps=1,
        hooks=[Preempts(at=2)],
        recovery=Recovery(5, 0.0),
        config=OFF,
    ) as session:
        for _ in range(3):
            session.run("train")
        assert session.run(["global_step", "w"]) == ([3, 5.0] if where else [1, 3.0])
    fresh = ["init_op", "init_fn", "local_init_op"]
    assert runs == fresh + (fresh[2:] if where else fresh)


def test_variables_that_are_not_saved_are_initialized_by_a_recovery():
    """They start anew, as in a session of its own."""
    graph = small_graph()
    scaffold = Scaffold(graph, saver=["v"])
    with trains(
        graph,
        scaffold,
        save_checkpoint_steps=1,
        hooks=[Preempts(at=2)],
        recovery=Recovery(5, 0.0),
    ) as session:
        for _ in range(3):
            session.run("train")
        assert session.run(["global_step", "w"]) == [3, 3.0]


def test_a_smaller_saver_restores_what_it_names_from_a_bigger_checkpoint():
    """Other variables of the checkpoint are left where they are."""
    with trains(small_graph()) as session:
        session.run("set_w", {"start": 9.0})
        session.run("train")
    graph = small_graph()
    graph.variable("added", 4.0)
    with trains(graph, Scaffold(graph, saver=["v"])) as session:
        assert session.run(["v", "w", "added", "global_step"]) == [1.0, 2.0, 4.0, 1]


def test_the_global_step_is_saved_whatever_the_saver_names():
    """Even where it names nothing at all."""
    for steps in (0, 2):
        graph = small_graph()
        with trains(graph, Scaffold(graph, saver=[])) as session:
            assert session.run(["global_step", "w"]) == [steps, 2.0]
            session.run("train")
            session.run("train")
    assert Path("c/ckpt-4").is_dir()


def test_an_evaluation_has_a_scaffold_too():
    """The kind of a session does not matter for it."""
    graph = small_graph()
    scaffold = Scaffold(graph, init_op="set_w", init_feed_dict={"start": 7.0})
    with opened(graph, scaffold, kind="eval") as session:
        assert session.run("w") == 7.0


def test_what_an_init_fn_writes_must_fit():
    """A value of another shape is refused, and so is a name that is no variable."""
    graph = small_graph()
    for wrong in ({"w": [1, 2]}, {"reads": 1.0}):
        scaffold = Scaffold(
            graph, init_fn=lambda _, session, wrong=wrong: session.write(wrong)
        )
        with pytest.raises(hookbus.GraphError, match=f"{next(iter(wrong))}"):
            opened(graph, scaffold)
