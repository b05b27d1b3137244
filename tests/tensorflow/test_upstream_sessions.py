"""The rules that TensorFlow's tests pin for what a session wraps: coordination,
recovery, hooked runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    Graph,
    MonitoredSession,
    Recovery,
    RunOptions,
    SessionRunArgs,
    UnavailableError,
)
from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.protocol import RunMetadata

OFF = Config(autoload=False)


def counting(fail: Callable[[], None] = lambda: None) -> Graph:
    """Return a graph that counts in n, with placeholders x and y, and their sum."""
    graph = Graph()
    graph.variable("n", 0)
    graph.placeholder("x")
    graph.placeholder("y")
    graph.op(lambda x, y: x + y, name="total")

    @graph.train_op(updates="n")
    def train(n):
        fail()
        return n + 1

    return graph


class Creator(ChiefSessionCreator):
    """Counts the backend sessions that it makes; may refuse to make a further one."""

    made = 0
    error: BaseException | None = None

    def create_session(self):
        if self.made and self.error is not None:
            raise self.error
        self.made += 1
        return super().create_session()


def session_of(*hooks: Any, creator: Any = None, graph: Any = None) -> MonitoredSession:
    return MonitoredSession(
        graph or (None if creator else counting()),
        session_creator=creator,
        hooks=hooks,
        config=OFF,
        recovery=Recovery(first_wait=0.0),
    )


class Threads:
    """Hands the coordinator on."""

    coord: Any = None

    def after_create_session(self, coord):
        self.coord = coord


class Raises:
    """Raises some errors, one a time."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)

    def __call__(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


# Wrapped sessions


def test_run_goes_through_to_the_backend():
    """Fetches and feeds arrive, the values come back."""
    with session_of() as session:
        assert session.run("total", feed_dict={"x": 1, "y": 2}) == 3


def test_the_graph_is_that_of_the_backend():
    """It can be had from the session while it is open."""
    graph = counting()
    with session_of(graph=graph) as session:
        assert session.graph is graph


def test_a_closed_session_should_stop():
    """Whatever else there is to say."""
    session = session_of()
    assert not session.should_stop()
    session.close()
    assert session.should_stop()


@pytest.mark.parametrize("who", ["hook", "coordinator", "input"])
def test_any_reason_to_stop_suffices(who):
    """Whichever part of the session has one."""
    threads, graph = Threads(), counting()
    graph.input("batch", lambda: [1])

    class Stops:
        def after_run(self, run_context):
            if who == "hook":
                run_context.request_stop()

    with session_of(threads, Stops(), graph=graph) as session:
        if who == "input":
            assert list(session.loop("batch")) == [1]
        else:
            session.run("train")
        if who == "coordinator":
            threads.coord.request_stop()
        assert session.should_stop()


# Coordinated sessions


def test_a_stop_of_the_coordinator_makes_should_stop_true():
    """A thread can end the loop."""
    threads = Threads()
    with session_of(threads) as session:
        assert not session.should_stop()
        threads.coord.request_stop()
        assert session.should_stop()


def test_an_error_in_the_main_thread_does_not_stop_the_coordinator():
    """Neither threads nor the loop are told to stop by a run that failed."""
    threads = Threads()
    with session_of(threads) as session:
        with pytest.raises(hookbus.errors.UnfedPlaceholderError):
            session.run("total")
        assert not threads.coord.should_stop()
        assert not session.should_stop()


@pytest.mark.parametrize("fails", [False, True])
def test_closing_stops_and_joins_registered_threads(fails):
    """After a run that failed as well as after one that did not."""
    threads = Threads()
    session = session_of(threads, graph=counting(Raises(*[ValueError()] * fails)))
    workers = [threading.Thread(target=threads.coord.wait_for_stop) for _ in range(3)]
    for worker in workers:
        threads.coord.register_thread(worker)
        worker.start()
    if fails:
        with pytest.raises(ValueError):  # noqa: PT011 (any)
            session.run("train")
    assert all(worker.is_alive() for worker in workers)
    session.close()
    assert not any(worker.is_alive() for worker in workers)


def test_the_traceback_of_an_error_leads_to_its_cause():
    """The frame that raised is still there when the error leaves ``run``."""

    def broken() -> None:
        raise ValueError("broken")

    with session_of(graph=counting(broken)) as session:
        with pytest.raises(ValueError, match="broken") as caught:
            session.run("train")
        assert caught.traceback[-1].name == "broken"


# Recoverable sessions


WAYS = {
    "run": lambda session: session.run("train"),
    "step_fn with hooks": lambda session: session.run_step_fn(
        lambda step_context: step_context.run_with_hooks("train")
    ),
    "step_fn with raw runs": lambda session: session.run_step_fn(
        lambda step_context: step_context.session.run("train")
    ),
}
EACH_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@EACH_WAY
@pytest.mark.parametrize("error", [AbortedError("gone"), UnavailableError("gone")])
def test_each_abort_takes_the_next_session_from_the_creator(error, way):
    """And the same run is repeated on it, whose result is returned."""
    creator = Creator(counting(Raises(error, error)))
    with session_of(creator=creator) as session:
        assert way(session) is None
        assert creator.made == 3
        assert session.run("n") == 1


@EACH_WAY
def test_an_error_of_the_creator_leaves_the_run(way):
    """An ordinary error while a new session is made is not recovered from."""
    creator = Creator(counting(Raises(AbortedError("gone"))))
    creator.error = PermissionError("no more sessions")
    with pytest.raises(PermissionError), session_of(creator=creator) as session:
        way(session)


@EACH_WAY
def test_a_preemption_in_the_coordinator_is_recovered_from_by_should_stop(way):
    """The run returns, ``should_stop`` says no, and there is a second session."""
    threads = Threads()
    creator = Creator(counting(lambda: threads.coord.request_stop(AbortedError("gone"))))
    with session_of(threads, creator=creator) as session:
        way(session)
        assert creator.made == 1
        assert not session.should_stop()
        assert creator.made == 2


@EACH_WAY
def test_another_error_in_the_coordinator_ends_the_session(way):
    """``should_stop`` says yes, there is no second session, and closing raises it."""
    threads = Threads()
    creator = Creator(counting(lambda: threads.coord.request_stop(OSError("disk"))))
    session = session_of(threads, creator=creator)
    way(session)
    assert session.should_stop()
    assert creator.made == 1
    with pytest.raises(OSError, match="disk"):
        session.close()


@EACH_WAY
def test_an_error_caused_by_a_preemption_in_a_thread_counts_as_one(way):
    """A run that gets stuck because a thread was preempted is repeated."""
    threads, errors = Threads(), [AbortedError("the thread is gone")]

    def stuck() -> None:
        if errors:
            threads.coord.request_stop(errors.pop())
            raise TimeoutError("no more data")

    creator = Creator(counting(stuck))
    with session_of(threads, creator=creator) as session:
        way(session)
        assert creator.made == 2
        assert session.global_step == 1


# Hooked runs


class Sees:
    """Notes what it is handed, and asks for what it is told."""

    def __init__(self, wants: SessionRunArgs | None = None) -> None:
        self.wants, self.calls = wants, []
        self.context: Any = None
        self.values: Any = None

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session):
        self.calls.append("after_create_session")
        self.session = session

    def before_run(self, run_context):
        self.calls.append("before_run")
        self.context = run_context
        return self.wants

    def after_run(self, run_context, run_values):
        self.calls.append("after_run")
        assert run_context is self.context
        self.values = run_values

    def end(self):
        self.calls.append("end")


def test_a_run_passes_on_what_the_caller_gives():
    """Options and metadata are the caller's own objects, and so is its feed_dict."""
    hook, options, metadata = Sees(), RunOptions(trace_level=1), RunMetadata()
    feeds = {"x": 1, "y": 2}
    with session_of(hook) as session:
        session.run("total", feeds, options, metadata)
    assert hook.values.options is options
    assert hook.values.run_metadata is metadata
    assert hook.context.original_args.feed_dict is feeds
    assert [op.name for op in metadata.ops] == ["total"]


def test_a_run_calls_before_run_and_after_run_and_nothing_else():
    """A hook that asks for nothing gets None, default options and empty metadata."""
    hook = Sees()
    with session_of(hook) as session:
        hook.calls.clear()
        session.run("n")
        assert hook.calls == ["before_run", "after_run"]
    assert hook.values.results is None
    assert hook.values.options == RunOptions()
    assert list(hook.values.run_metadata.ops) == []
    assert hook.context.original_args.fetches == "n"
    assert hook.context.session is hook.session
    assert isinstance(hook.session, EmbeddedSession)


def test_one_hook_is_enough_to_stop():
    """It does not take the others."""

    class Stops:
        def before_run(self, run_context):
            run_context.request_stop()

    with session_of(Sees(), Stops(), Sees()) as session:
        session.run("train")
        assert session.should_stop()


def test_each_hook_gets_exactly_its_own_fetches():
    """And the caller gets only what it asked for."""
    first, second, third = (
        Sees(SessionRunArgs(["n"])),
        Sees(),
        Sees(SessionRunArgs("total")),
    )
    with session_of(first, second, third) as session:
        assert session.run("x", {"x": 1, "y": 2}) == 1
    assert (first.values.results, second.values.results) == ([0], None)
    assert third.values.results == 3


def test_feeds_of_hooks_are_united():
    """The caller need feed nothing."""
    hooks = [Sees(SessionRunArgs(feed_dict={name: 5})) for name in "xy"]
    with session_of(*hooks) as session:
        assert session.run("total") == 10


def test_feeds_of_hooks_and_of_the_caller_are_united():
    """The caller's dict is not changed by it."""
    feeds = {"x": 1}
    with session_of(Sees(SessionRunArgs(feed_dict={"y": 5}))) as session:
        assert session.run("total", feed_dict=feeds) == 6
    assert feeds == {"x": 1}


def test_two_hooks_cannot_feed_one_node():
    """It is a RuntimeError, with equal values too."""
    first, second = (Sees(SessionRunArgs(feed_dict={"x": 1})) for _ in range(2))
    conflict = pytest.raises(RuntimeError, match=r"Same tensor is fed.* sees and sees-2")
    with session_of(first, second) as session, conflict:
        session.run("x")


def test_a_hook_and_the_caller_cannot_feed_one_node():
    """It is a RuntimeError that names the hook."""
    hook = Sees(SessionRunArgs(feed_dict={"x": 1}))
    conflict = pytest.raises(
        RuntimeError, match=r"Same tensor is fed.* the caller and sees"
    )
    with session_of(hook) as session, conflict:
        session.run("x", feed_dict={"x": 1})
