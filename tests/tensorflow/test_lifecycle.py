"""The five methods of a hook: when each is called, with what, and in which order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    Config,
    Coordinator,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

OFF = Config(autoload=False)
METHODS = ("begin", "after_create_session", "before_run", "after_run", "end")


class Sees(SessionRunHook):
    """Keeps what each of its methods was called with."""

    def __init__(self) -> None:
        self.creations: list[tuple[Any, Any]] = []
        self.contexts: list[SessionRunContext] = []
        self.runs: list[tuple[SessionRunContext, SessionRunValues]] = []
        self.ends: list[Any] = []

    def after_create_session(self, session, coord):
        self.creations.append((session, coord))

    def before_run(self, run_context):
        self.contexts.append(run_context)

    def after_run(self, run_context, run_values):
        self.runs.append((run_context, run_values))

    def end(self, session):
        self.ends.append(session)


def doing(method: str, do: Any) -> Any:
    """Return a hook, no SessionRunHook, one method of which is *do* without arguments."""
    return type("Doing", (), {method: lambda self: do()})()


def test_begin_comes_once_for_each_session_object(calls, hook, open_session):
    """``begin`` is called once, though the backend session is created three times."""
    broken = [None, AbortedError("gone"), AbortedError("gone")]
    with open_session(hook("a", after=broken)) as session:
        session.run("train")
        session.run("train")
    assert (calls.count("a.begin"), calls.count("a.create")) == (1, 3)


def test_begin_comes_before_the_graph_is_finalized_and_takes_new_nodes(open_session):
    """In ``begin`` the graph is open, and a node added there can be fetched."""
    seen = []

    class Adds(SessionRunHook):
        def begin(self, graph):
            seen.append(graph.finalized)
            graph.op(lambda n: n + 100, name="more")

    with open_session(Adds()) as session:
        assert session.run("more") == 100
    assert seen == [False]


def test_begin_comes_before_any_backend_session_exists(graph, open_session):
    """The session creator is asked for a session only after all ``begin``s."""
    order = []

    class Creator(hookbus.ChiefSessionCreator):
        def create_session(self):
            order.append("create_session")
            return super().create_session()

    begins = [doing("begin", lambda: order.append("begin")) for _ in range(2)]
    with open_session(*begins, session_creator=Creator(graph)):
        pass
    assert order == ["begin", "begin", "create_session"]


def test_after_create_session_comes_after_each_creation_with_a_new_coordinator(
    hook, open_session
):
    """It gets the backend session of the moment and that session's own coordinator."""
    sees = Sees()
    with open_session(sees, hook("b", before=[AbortedError("gone")])) as session:
        session.run("train")
    (first, first_coord), (second, second_coord) = sees.creations
    assert isinstance(first_coord, Coordinator)
    assert first is not second
    assert first_coord is not second_coord


def test_before_run_comes_before_each_run_with_its_context(open_session):
    """Each run has a context, made anew, which names the caller's own request."""
    sees = Sees()
    with open_session(sees) as session:
        session.run("train")
        session.run(["n"], feed_dict={"n": 5})
    first, second = sees.contexts
    assert isinstance(first, SessionRunContext)
    assert first is not second
    assert (first.original_args.fetches, first.original_args.feed_dict) == ("train", None)
    assert second.original_args.fetches == ["n"]
    assert second.original_args.feed_dict == {"n": 5}


def test_after_run_gets_the_same_context_and_the_values(open_session):
    """``after_run`` is handed the context of its ``before_run``, and what came out."""
    sees = Sees()
    with open_session(sees) as session:
        session.run("train")
    ((context, values),) = sees.runs
    assert context is sees.contexts[0]
    assert isinstance(values, SessionRunValues)


def test_end_gets_the_backend_session_still_open(open_session):
    """In ``end`` the backend session still runs ops and takes writes."""
    seen = []

    class Reads(SessionRunHook):
        def end(self, session):
            session.write({"n": 40})
            session.run("train")
            seen.append(session.run("n"))

    with open_session(Reads()) as session:
        session.run("train")
    assert seen == [41]


@pytest.mark.parametrize("method", ["after_create_session", "after_run", "end"])
@pytest.mark.parametrize("value", [False, 7, "stop"], ids=repr)
def test_what_the_other_methods_return_is_ignored(method, value, open_session):
    """Only what ``before_run`` returns has a meaning."""
    with open_session(doing(method, lambda: value)) as session:
        assert session.run(["n", "train"]) == [0, None]
        assert not session.should_stop()
    assert session.outcome.kind == "completed"


@pytest.mark.parametrize("method", ["begin", "after_create_session", "after_run", "end"])
def test_fetches_that_another_method_returns_are_an_error(method, open_session):
    """No run would serve them, so they are not ignored like any other value."""
    hook = doing(method, lambda: SessionRunArgs("n"))
    with (
        pytest.raises(hookbus.PluginError, match=rf"{method}\(\) returned SessionRunArgs"),
        open_session(hook) as session,
    ):
        session.run("train")


def test_all_five_methods_have_defaults_that_do_nothing(open_session):
    """A SessionRunHook that overrides nothing takes part and changes nothing."""
    with open_session(SessionRunHook()) as session:
        assert session.run(["n", "train"]) == [0, None]
    for method in METHODS:
        assert getattr(SessionRunHook(), method)() is None


def test_a_hook_need_not_be_a_session_run_hook(open_session):
    """Any object with the five methods works."""
    called = []
    duck = type("Duck", (), {})()
    for method in METHODS:
        setattr(duck, method, lambda method=method: called.append(method))
    with open_session(duck) as session:
        session.run("train")
    assert called == list(METHODS)


@pytest.mark.parametrize("method", METHODS[1:])
def test_only_begin_may_change_the_graph(method, graph, open_session):
    """In every other method, ``end`` too, the graph is finalized."""
    late = doing(method, lambda: graph.variable("late", 1))
    with pytest.raises(hookbus.errors.GraphFinalizedError, match="late"):  # noqa: SIM117
        with open_session(late) as session:
            session.run("train")
    assert "late" not in graph.nodes


def test_after_create_session_may_run_ops_and_write_variables(open_session):
    """Its changes to the backend session are there for the first run."""

    class Initializes(SessionRunHook):
        def after_create_session(self, session):
            session.run("train")
            session.write({"n": session.run("n") + 10})

    with open_session(Initializes()) as session:
        assert session.run("n") == 11


def test_after_create_session_may_start_threads_which_the_end_waits_for(open_session):
    """A thread registered with the coordinator is told to stop, and joined."""
    threads = []

    class Reader(SessionRunHook):
        def after_create_session(self, coord):
            threads.append(threading.Thread(target=coord.wait_for_stop))
            coord.register_thread(threads[-1])
            threads[-1].start()

    with open_session(Reader()):
        assert threads[0].is_alive()
    assert not threads[0].is_alive()


def test_after_create_session_may_ask_for_a_checkpoint(open_session):
    """It is written before the first run."""
    saved = []

    class Saves(SessionRunHook):
        def begin(self, checkpoints):
            checkpoints.enable("runs")
            self.checkpoints = checkpoints

        def after_create_session(self):
            self.checkpoints.request_save("because")

        def before_run(self):
            saved.append([path.name for path in Path("runs").glob("ckpt-*")])

    with open_session(Saves()) as session:
        session.run("train")
    assert saved == [["ckpt-0"]]


def test_after_create_session_must_not_expect_that_later_hooks_were_called(open_session):
    """List order decides: what an earlier hook did is there, a later one's is not."""
    seen = []

    class Adds(SessionRunHook):
        def after_create_session(self, session):
            seen.append(session.run("n"))
            session.run("train")

    with open_session(Adds(), Adds()):
        pass
    assert seen == [0, 1]


@pytest.mark.parametrize("method", ["before_run", "after_run"])
def test_runs_through_the_context_reach_no_hook(method, calls, hook, open_session):
    """A hook may run ops on ``run_context.session`` around a run, unseen by hooks."""

    def act(self: Any, run_context: SessionRunContext) -> None:
        run_context.session.run("train")

    acts = type("Acts", (), {method: act})()
    with open_session(acts, hook("b")) as session:
        session.run("train")
        assert session.run("n", kind="aux") == 2
    assert (calls.count("RUN"), calls.count("b.before"), calls.count("b.after")) == (
        2,
        1,
        1,
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.run("train"),
        lambda session: session.run("n", kind="aux"),
        lambda session: next(session.loop()),
    ],
    ids=["run", "aux run", "loop"],
)
@pytest.mark.parametrize("method", ["before_run", "after_run"])
def test_a_hook_cannot_run_the_session_that_it_is_called_by(
    method, use, hook, open_session
):
    """It is refused, whatever the kind, and the message says what to use instead."""
    acts = doing(method, lambda: use(session))
    session = open_session(acts)
    text = r"'doing' cannot run the session that calls it; use run_context\.session\.run"
    with pytest.raises(hookbus.UsageError, match=text), session:
        session.run("train")
    assert session.outcome.who == "doing"


def test_every_phase_goes_through_the_hooks_in_list_order(calls, hook, open_session):
    """First in the list is first in each phase, in ``after_run`` and ``end`` too."""
    with open_session(hook("b"), hook("a"), hook("c")) as session:
        session.run("train")
    for event in ("begin", "create", "before", "after", "end"):
        order = [call for call in calls if call.endswith(f".{event}")]
        assert order == [f"b.{event}", f"a.{event}", f"c.{event}"]


def test_each_phase_ends_for_all_hooks_before_the_next_begins(calls, hook, open_session):
    """All ``begin``, all ``after_create_session``; per run all before, RUN, all after."""
    with open_session(hook("a"), hook("b")) as session:
        session.run("train")
        session.run("train")
    run = "a.before b.before RUN a.after b.after"
    start = "a.begin b.begin a.create b.create"
    assert " ".join(calls) == f"{start} {run} {run} a.end b.end"


def test_a_hook_listed_twice_is_refused(calls, hook, open_session):
    """The second mention of one object is an error before anything is called."""
    twice = hook("a")
    with pytest.raises(hookbus.UsageError, match=r"'recorder'.*given twice"):
        open_session(twice, twice)
    assert calls == []


def test_two_hooks_of_one_class_each_get_their_own_results(open_session):
    """Hooks are compared by identity, not by class."""

    class Asks(SessionRunHook):
        def __init__(self, fetches: Any) -> None:
            self.fetches = fetches

        def before_run(self):
            return SessionRunArgs(self.fetches)

        def after_run(self, run_values):
            self.results = run_values.results

    one, two = Asks("n"), Asks({"again": "n"})
    with open_session(one, two) as session:
        session.run("train")
    assert (one.results, two.results) == (0, {"again": 0})


@pytest.mark.parametrize("hashable", [True, False])
def test_a_hook_that_compares_by_value_is_refused(hashable, open_session):
    """Equal or unhashable hooks are an error at the start that says what to write."""

    class Equal(SessionRunHook):
        def __eq__(self, other):
            return isinstance(other, Equal)

        __hash__ = (lambda self: 1) if hashable else None

    with pytest.raises(hookbus.PluginError, match=r"'equal'.*compares by value"):
        open_session(Equal(), Equal())


@pytest.mark.parametrize("cls", [MonitoredSession, MonitoredTrainingSession])
def test_hooks_may_be_a_one_shot_iterator(cls, calls, hook, open_session):
    """It is read once, and all of its hooks take part to the end."""
    with open_session(cls=cls, hooks=(hook(name) for name in "ab")) as session:
        session.run("train")
    assert calls[-2:] == ["a.end", "b.end"]


@pytest.mark.parametrize("cls", [MonitoredSession, MonitoredTrainingSession])
def test_the_list_of_hooks_is_copied(cls, calls, hook, open_session):
    """Changing the list after the session was made changes nothing."""
    hooks = [hook("a")]
    with open_session(cls=cls, hooks=hooks) as session:
        hooks[:] = [hook("b")]
        session.run("train")
    assert [call for call in calls if call.startswith("b.")] == []
    assert calls[-1] == "a.end"
