"""A session from its first event to its last: order, stop, loop, saves, the graph."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    ChiefSessionCreator,
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
)

OFF = Config(autoload=False)


class Trace(SessionRunHook):
    """Writes each of its calls into a list that several share."""

    def __init__(self, name: str, trace: list[str]) -> None:
        self.name, self.trace = name, trace

    def begin(self):
        self.trace.append(f"{self.name}.begin")

    def after_create_session(self, session, coord):
        self.trace.append(f"{self.name}.create")

    def before_run(self, run_context):
        self.trace.append(f"{self.name}.before")

    def after_run(self, run_context, run_values):
        self.trace.append(f"{self.name}.after")

    def end(self, session):
        self.trace.append(f"{self.name}.end")


class StopHook(SessionRunHook):
    """Asks to stop in one phase of the run that starts at a step."""

    def __init__(self, at: int = 0, phase: str = "after", why: str = "enough") -> None:
        self.at, self.phase, self.why = at, phase, why

    def before_run(self, run_context):
        if self.phase == "before" and run_context.global_step == self.at:
            run_context.request_stop(self.why)

    def after_run(self, run_context):
        if self.phase == "after" and run_context.global_step == self.at:
            run_context.request_stop(self.why)


def counting_graph(values: int | None = None) -> Graph:
    """Return a graph whose train op counts in n; with *values*, as many as it has."""
    graph = Graph()
    graph.variable("n", 0)
    if values is not None:
        graph.input("batch", lambda: range(values))

    @graph.train_op(updates="n")
    def train(n, batch=None):
        return n + 1

    return graph


def session_of(*hooks: Any, graph: Graph | None = None) -> MonitoredSession:
    return MonitoredSession(graph or counting_graph(), hooks=hooks, config=OFF)


def test_each_phase_ends_for_all_hooks_before_the_next_begins():
    """All events go through the hooks in list order, ``after_run`` and ``end`` too."""
    trace: list[str] = []
    graph = counting_graph()

    @graph.op
    def run():
        trace.append("RUN")

    with session_of(Trace("a", trace), Trace("b", trace), graph=graph) as session:
        session.run("run")
        session.run("run")
    step = "a.before b.before RUN a.after b.after"
    start = "a.begin b.begin a.create b.create"
    assert " ".join(trace) == f"{start} {step} {step} a.end b.end"


def test_hooks_may_come_from_a_generator():
    """Any iterable of hooks is read once and all of them take part to the end."""
    trace: list[str] = []
    hooks = (Trace(name, trace) for name in "ab")
    with MonitoredSession(counting_graph(), hooks=hooks, config=OFF) as session:
        session.run("train")
    assert trace[-2:] == ["a.end", "b.end"]


def test_an_object_with_some_of_the_methods_is_a_hook():
    """A hook need be no SessionRunHook, and takes only the arguments it names."""

    class Duck:
        steps: tuple[int, ...] = ()

        def after_run(self, run_values):
            self.steps = (*self.steps, run_values.global_step)

    duck = Duck()
    with session_of(duck) as session:
        session.run("train")
        session.run("train")
    assert duck.steps == (1, 2)


def test_nodes_added_in_begin_vanish_with_the_session():
    """``begin`` may add derived nodes; after close the graph is as it was, and open."""

    class Derives(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda n: n * 10, name="tenfold")

        def before_run(self):
            return hookbus.SessionRunArgs("tenfold")

        def after_run(self, run_values):
            self.last = run_values.results

    graph, hook = counting_graph(), Derives()
    before = list(graph.nodes)
    with session_of(hook, graph=graph) as session:
        session.run("train")
        session.run("train")
        with pytest.raises(hookbus.errors.GraphFinalizedError):
            graph.variable("late", 1)
    assert hook.last == 10
    assert list(graph.nodes) == before
    graph.variable("late", 1)


def test_begin_is_the_last_moment_for_new_nodes():
    """In ``after_create_session`` the graph is finalized; the note names the hook."""

    class Late(SessionRunHook):
        graph: Any = None

        def begin(self, graph):
            self.graph = graph

        def after_create_session(self):
            self.graph.variable("late", 1)

    with pytest.raises(hookbus.errors.GraphFinalizedError, match="late") as caught:
        session_of(Late())
    assert "plugin 'late'" in caught.value.__notes__[0]


def test_a_graph_that_was_finalized_stays_so():
    """A session opens only a graph again that it closed itself."""
    graph = counting_graph()
    graph.finalize()
    with session_of(graph=graph):
        pass
    assert graph.finalized


def test_two_sessions_one_after_the_other_on_one_graph():
    """Each session starts with the initial values, whatever the one before did."""
    graph = counting_graph()
    for _ in range(2):
        with session_of(graph=graph) as session:
            assert session.run(["n", "global_step", "train"]) == [0, 0, None]
        assert session.global_step == 1


@pytest.mark.parametrize("phase", ["before", "after"])
def test_all_hooks_still_see_the_run_in_which_one_asks_to_stop(phase):
    """The run happens, later hooks know of the wish, the loop's condition turns."""
    trace: list[str] = []
    seen = []

    class Looks(SessionRunHook):
        def after_run(self, run_context):
            seen.append(run_context.stop_requested)

    with session_of(StopHook(1, phase), Looks(), Trace("z", trace)) as session:
        turns = 0
        while not session.should_stop():
            session.run("train")
            turns += 1
        assert session.run("n", kind="aux") == 2
    assert turns == 2
    assert seen == [False, True]
    assert trace.count("z.after") == 2
    outcome = session.outcome
    assert (outcome.kind, outcome.who, outcome.why) == ("stopped", "stop", "enough")
    assert outcome.step == 2


def test_the_first_to_ask_for_a_stop_is_named():
    """Of several wishes in one run, who came first, and why, is kept."""
    with session_of(StopHook(why="one"), StopHook(phase="before", why="two")) as session:
        session.run("train")
    assert (session.outcome.who, session.outcome.why) == ("stop-2", "two")


def test_run_after_a_stop_names_who_stopped():
    """A loop that does not look at ``should_stop`` is told so."""
    with session_of(StopHook()) as session:
        session.run("train")
        with pytest.raises(hookbus.RunAfterStopError, match=r"stop stopped .*enough"):
            session.run("train")
    assert session.outcome.kind == "stopped"


def test_an_aux_run_is_allowed_after_a_stop_and_reaches_no_train_hook():
    """A last look at values is no training step."""
    trace: list[str] = []
    with session_of(StopHook(), Trace("a", trace)) as session:
        session.run("train")
        del trace[:]
        assert session.run({"n": "n"}, kind="aux") == {"n": 1}
        assert trace == []
        assert session.should_stop()
    assert trace == ["a.end"]


def test_a_stop_asked_for_in_a_run_that_fails_is_lost():
    """Requests of hooks in a run that the caller saw fail have no effect later."""

    class FailsOnce(SessionRunHook):
        def after_run(self, run_context):
            if run_context.global_step == 0:
                raise ArithmeticError("once")

    with session_of(StopHook(), FailsOnce()) as session:
        with pytest.raises(ArithmeticError):
            session.run("train")
        assert not session.should_stop()
        session.run("train")
        assert not session.should_stop()
    assert session.outcome.kind == "completed"


def test_a_stop_of_the_coordinator_ends_the_loop_but_blocks_no_run():
    """Threads stop the loop through the coordinator; runs stay possible."""

    class Thread(SessionRunHook):
        def after_create_session(self, coord):
            coord.request_stop()

    with session_of(Thread()) as session:
        assert session.should_stop()
        session.run("train")
    assert session.global_step == 1


def test_an_error_in_a_thread_comes_out_of_close():
    """The error of a thread is raised at the end, and ends the session as failed."""
    trace: list[str] = []

    class Reader(SessionRunHook):
        def after_create_session(self, coord):
            def work() -> None:
                with coord.stop_on_exception():
                    raise OSError("the disk is gone")

            thread = threading.Thread(target=work)
            coord.register_thread(thread)
            thread.start()
            thread.join()  # what is reported later leaves close() too, but after ``end``

    session = session_of(Reader(), Trace("a", trace))
    with pytest.raises(OSError, match="the disk is gone"):
        session.close()
    assert "a.end" not in trace
    assert session.outcome.kind == "failed"


def test_a_closed_session_says_so():
    """Close works once; afterwards run is refused, and no hook ends twice."""
    trace: list[str] = []
    session = session_of(Trace("a", trace))
    session.run("train")
    session.close()
    assert session.should_stop()
    assert (session.graph, session.global_step) == (None, 1)
    for use in (
        session.close,
        lambda: session.run("n"),
        lambda: session.run("n", kind="aux"),
    ):
        with pytest.raises(hookbus.errors.SessionClosedError, match="closed"):
            use()
    assert list(session.loop()) == []
    assert trace.count("a.end") == 1


def test_close_inside_the_block_is_told_at_its_exit():
    """The block closes its session itself; a second close is an error, as in TF."""
    with pytest.raises(RuntimeError, match="already closed"), session_of() as session:
        session.close()


def test_loop_runs_all_train_ops_until_a_hook_stops():
    """Each turn is one run of everything that trains, with the values asked for."""
    graph = counting_graph()

    @graph.train_op(increment=2)
    def other():
        return ()

    with session_of(StopHook(at=6), graph=graph) as session:
        assert [values["n"] for values in session.loop({"n": "n"})] == [0, 1, 2]
        assert session.global_step == 9
        assert session.run("n", kind="aux") == 3


def test_loop_ends_with_the_input_and_stays_in_the_block():
    """The end of input is no error there; code after the loop goes on."""
    with session_of(graph=counting_graph(3)) as session:
        assert list(session.loop()) == [None] * 3
        assert session.should_stop()
        assert session.run("n", kind="aux") == 3
    assert (session.outcome.kind, session.outcome.who) == ("end_of_input", "input")
    assert session.outcome.step == 3


def test_loop_can_be_left_early():
    """A caller that breaks out of the loop has completed the session."""
    with session_of(graph=counting_graph(9)) as session:
        for n in session.loop("n", {"batch": 0}):
            if n == 4:
                break
    assert (session.outcome.kind, session.outcome.step) == ("completed", 5)


def test_a_hook_that_asks_for_a_save_gets_one_after_the_last_after_run():
    """However many ask, one checkpoint of the step is written, with all state in it."""
    found = []

    class Asks(SessionRunHook):
        def after_run(self, run_context):
            found.append([path.name for path in Path("runs").glob("ckpt-*")])
            run_context.request_save("because")

    hooks = [Asks(), Asks()]
    with MonitoredTrainingSession(
        counting_graph(), checkpoint_dir="runs", hooks=hooks, config=OFF
    ) as session:
        session.run("train")
        assert sorted(p.name for p in Path("runs").glob("ckpt-*")) == ["ckpt-0", "ckpt-1"]
    assert found == [["ckpt-0"], ["ckpt-0"]]


def test_the_session_creator_says_which_graph():
    """A ChiefSessionCreator names the graph, and where to restore from."""
    graph = counting_graph()
    creator = ChiefSessionCreator(graph)
    with MonitoredSession(session_creator=creator, config=OFF) as session:
        assert session.graph is graph
        assert session.kind == "train"
        session.run("train")
    assert session.global_step == 1


def test_a_session_without_a_graph_is_for_a_custom_loop():
    """Its graph has the global step, and what steps report, and nothing else."""
    with MonitoredSession(config=OFF) as session:
        assert list(session.graph.nodes) == ["global_step"]
        assert session.run("global_step") == 0
        with session.step() as step:
            step.report(loss=0.5)
        assert session.run(["global_step", "loss"]) == [1, 0.5]
