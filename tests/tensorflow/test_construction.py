"""Tests how a session is made, step by step, and what errors on the way there do."""

from __future__ import annotations

from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    OutOfRangeError,
    Recovery,
    Scaffold,
    SessionRunHook,
    SingularMonitoredSession,
    UnavailableError,
)

OFF = Config(autoload=False)
PREEMPTIONS = [AbortedError("gone"), UnavailableError("gone")]


def staged(calls: list[str], graph: Graph, **errors: Any) -> ChiefSessionCreator:
    """Return a creator that notes each stage, and raises there what is left for it."""

    def note(stage: str) -> None:
        calls.append(stage)
        error = errors[stage].pop(0) if errors.get(stage) else None
        if error is not None:
            raise error

    graph.op(lambda: note("init_op"), name="init")
    graph.op(lambda: note("local_init_op"), name="local_init")
    graph.op(lambda: note("ready_op"), name="ready")
    scaffold = Scaffold(
        graph,
        init_op="init",
        init_fn=lambda scaffold, session: note("init_fn"),
        local_init_op="local_init",
        ready_op="ready",
    )

    class Backend(EmbeddedSession):
        def __init__(self, graph: Graph) -> None:
            note("finalized" if graph.finalized else "open")
            note("session")
            super().__init__(graph)

    return ChiefSessionCreator(graph, scaffold, backend=Backend)


class AddsNode(SessionRunHook):
    """Adds a node in ``begin``."""

    def begin(self, graph):
        graph.op(lambda n: n * 10, name="tenfold")


def test_the_stages_of_construction(calls, hook, graph, open_session):
    """``begin``, finalize, session, init, local init, ready, ``after_create_session``."""
    creator = staged(calls, graph)
    with open_session(hook("a"), hook("b"), session_creator=creator):
        stages = "finalized session init_op init_fn local_init_op ready_op"
        assert " ".join(calls) == f"a.begin b.begin {stages} a.create b.create"


def test_a_checkpoint_stands_in_for_the_initialization(calls, hook, make_graph):
    """Where one is restored neither init_op nor init_fn runs; local init does."""
    for _ in range(2):
        calls.clear()
        graph = make_graph()
        saver = hookbus.MonitoredTrainingSession(
            graph,
            scaffold=staged(calls, graph).scaffold,
            checkpoint_dir="runs",
            hooks=[hook("a")],
            config=OFF,
        )
        with saver as session:
            session.run("train")
    stages = "local_init_op ready_op"
    assert " ".join(calls) == f"a.begin {stages} a.create a.before RUN a.after a.end"


@pytest.mark.parametrize("error", [OutOfRangeError("done"), StopIteration("done")])
def test_no_exception_is_a_clean_stop_for_the_sessions_coordinator(error, open_session):
    """Even an end of input that a thread reports is raised at the session's end."""

    class Reports(SessionRunHook):
        def after_create_session(self, coord):
            coord.request_stop(error)

    with pytest.raises(type(error)) as caught, open_session(Reports()):
        pass
    assert caught.value is error


@pytest.mark.parametrize("error", [ValueError("broken"), *PREEMPTIONS], ids=repr)
def test_an_error_in_begin_leaves_the_constructor(error, calls, hook, graph, open_session):
    """Later hooks do not begin, nothing is created, and a preemption is not retried."""
    creator = staged(calls, graph)
    hooks = hook("a"), hook("b", begin=[error]), hook("c")
    with pytest.raises(type(error)) as caught:
        open_session(*hooks, session_creator=creator)
    assert caught.value is error
    assert calls == ["a.begin", "b.begin", "a.failed", "b.failed"]


def test_an_error_in_begin_leaves_the_graph_open(graph, hook, open_session):
    """The graph is not finalized then, and nodes of other hooks' ``begin`` are gone."""
    before = set(graph.nodes)
    with pytest.raises(ValueError, match="broken"):
        open_session(AddsNode(), hook("b", begin=[ValueError("broken")]))
    assert not graph.finalized
    assert set(graph.nodes) == before


def test_an_error_in_after_create_session_leaves_the_constructor(calls, hook, open_session):
    """Later hooks' are not called; every hook has begun, so every hook is told."""
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken") as caught:
        open_session(hook("a"), hook("b", create=[error]), hook("c"))
    assert caught.value is error
    begun = "a.begin b.begin c.begin"
    assert " ".join(calls) == f"{begun} a.create b.create a.failed b.failed c.failed"


def test_an_error_in_after_create_session_leaves_nothing_behind(hook, graph, open_session):
    """The backend session is closed, and the graph is open again (TF leaked both)."""
    created = []

    class Backend(EmbeddedSession):
        def __init__(self, graph: Graph) -> None:
            super().__init__(graph)
            created.append(self)

    creator = ChiefSessionCreator(graph, backend=Backend)
    with pytest.raises(ValueError, match="broken"):
        open_session(hook("a", create=[ValueError("broken")]), session_creator=creator)
    with pytest.raises(hookbus.errors.SessionClosedError):
        created[0].run("n")
    assert not graph.finalized


@pytest.mark.parametrize("error", PREEMPTIONS, ids=repr)
def test_a_preemption_in_after_create_session_starts_the_creation_anew(
    error, calls, hook, open_session
):
    """``after_create_session`` begins again with the first hook; ``begin`` does not."""
    with open_session(hook("a"), hook("b", create=[error]), hook("c")):
        begun = "a.begin b.begin c.begin"
        assert " ".join(calls) == f"{begun} a.create b.create a.create b.create c.create"


@pytest.mark.parametrize(
    "stage", ["session", "init_op", "init_fn", "local_init_op", "ready_op"]
)
def test_a_preemption_in_any_stage_starts_the_creation_anew(
    stage, calls, hook, graph, open_session
):
    """Whatever the stage, all of them follow once more, and then the hooks."""
    creator = staged(calls, graph, **{stage: [AbortedError("gone")]})
    with open_session(hook("a"), session_creator=creator):
        stages = ["finalized", "session", "init_op", "init_fn", "local_init_op", "ready_op"]
        cut = stages[: stages.index(stage) + 1]
        assert calls == ["a.begin", *cut, *stages, "a.create"]


def test_a_preemption_in_the_first_restore_starts_the_creation_anew(
    hook, make_graph, open_session
):
    """A backend that is preempted while it takes the checkpoint in gets another try."""
    with hookbus.MonitoredTrainingSession(
        make_graph(), checkpoint_dir="runs", config=OFF
    ) as session:
        session.run("train")
    errors = [AbortedError("gone")]

    class Backend(EmbeddedSession):
        def write(self, values: Any) -> None:
            if errors:
                raise errors.pop()
            super().write(values)

    creator = ChiefSessionCreator(make_graph(), checkpoint_dir="runs", backend=Backend)
    with open_session(session_creator=creator) as session:
        assert session.run(["n", "global_step"]) == [1, 1]
    assert errors == []


def test_a_preemption_that_a_backend_declares_counts_while_it_is_opened(
    graph, hook, open_session
):
    """An error that is a preemption to the backend also is one in after_create_session."""

    class MachineGoneError(Exception):
        pass

    class Backend(EmbeddedSession):
        def __init__(self, graph: Graph) -> None:
            super().__init__(graph)
            self.preemption_errors = (MachineGoneError,)

    creator = ChiefSessionCreator(graph, backend=Backend)
    gone = hook("a", create=[MachineGoneError()])
    with open_session(gone, session_creator=creator) as session:
        assert session.run(["n", "train"]) == [0, None]


def test_a_creation_that_is_always_preempted_is_given_up(calls, hook, graph):
    """Retries are bounded, where TensorFlow tried forever; the last error leaves."""
    errors = [AbortedError(f"{number}") for number in range(9)]
    creator = staged(calls, graph, session=errors.copy())
    with pytest.raises(AbortedError) as caught:
        MonitoredSession(
            session_creator=creator,
            hooks=[hook("a")],
            recovery=Recovery(most=3, first_wait=0),
            config=OFF,
        )
    assert caught.value is errors[3]
    assert (calls.count("session"), calls[-1]) == (4, "a.failed")


@pytest.mark.parametrize("stage", ["init_fn", "create"])
def test_a_singular_session_does_not_retry_its_creation(
    stage, calls, hook, graph, open_session
):
    """There a preemption leaves the constructor as any error does."""
    error = AbortedError("gone")
    errors = {stage: [error]}
    failing = hook("a", **errors)
    scaffold = staged(calls, graph, **errors).scaffold
    with pytest.raises(AbortedError) as caught:
        open_session(failing, cls=SingularMonitoredSession, scaffold=scaffold)
    assert caught.value is error
    assert (calls.count("init_fn"), calls[-1]) == (1, "a.failed")


def test_an_ordinary_error_of_the_session_creator_leaves(calls, hook, graph, open_session):
    """Only preemptions are worth another try."""
    creator = staged(calls, graph, session=[OSError("no such machine")])
    with pytest.raises(OSError, match="no such machine"):
        open_session(hook("a"), session_creator=creator)
    assert calls == ["a.begin", "finalized", "session", "a.failed"]


def test_an_ordinary_error_of_the_session_creator_leaves_a_recovery(
    calls, hook, graph, open_session
):
    """It comes out of the ``run`` that was to be repeated."""
    errors = [None, OSError("no such machine")]
    creator = staged(calls, graph, session=errors)
    gone = hook("a", before=[AbortedError("gone")])
    session = open_session(gone, session_creator=creator)
    with pytest.raises(OSError, match="no such machine"), session:
        session.run("train")
    assert calls[-3:] == ["finalized", "session", "a.failed"]


def test_begin_cannot_change_a_graph_that_was_finalized_before(graph, open_session):
    """A hook that adds nodes then fails, and the constructor with it."""
    graph.finalize()
    with pytest.raises(hookbus.errors.GraphFinalizedError, match="tenfold"):
        open_session(AddsNode())


@pytest.mark.parametrize("before", [True, False])
def test_the_end_leaves_the_graph_finalized_only_if_it_was(before, graph, open_session):
    """A session undoes its own finalization and nobody else's."""
    if before:
        graph.finalize()
    with open_session() as session:
        session.run("train")
        assert graph.finalized
    assert graph.finalized is before


def test_sessions_in_sequence_on_one_graph(graph, open_session):
    """``begin`` runs again for each session, and the graph does not grow."""
    before = set(graph.nodes)
    for _ in range(3):
        with open_session(AddsNode()) as session:
            assert session.run(["tenfold", "train"]) == [0, None]
            assert session.run("tenfold") == 10
        assert set(graph.nodes) == before
