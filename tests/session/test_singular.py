"""A session without recovery: how errors reach its caller, and what it shares."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    Graph,
    MonitoredSession,
    Scaffold,
    SessionRunHook,
    SingularMonitoredSession,
    UnavailableError,
)

OFF = hookbus.Config(autoload=False)


class Told(SessionRunHook):
    """Knows how often a session was created and how it ended."""

    def __init__(self) -> None:
        self.created = 0
        self.events: list[str] = []

    def after_create_session(self):
        self.created += 1

    def end(self):
        self.events.append("end")

    def on_exception(self, exception):
        self.events.append(str(exception))


class Fails(SessionRunHook):
    """Raises one error in one event, once."""

    def __init__(self, event: str, error: Exception) -> None:
        self.event = event
        self.error: Exception | None = error

    def meet(self, event: str) -> None:
        if event == self.event and self.error is not None:
            error, self.error = self.error, None
            raise error

    def begin(self):
        self.meet("begin")

    def after_create_session(self):
        self.meet("after_create_session")

    def before_run(self):
        self.meet("before_run")

    def after_run(self):
        self.meet("after_run")


def counting() -> Graph:
    """Return a graph whose train op counts in n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.input("batch", lambda: range(3))
    graph.train_op(lambda n, batch: n + 1, name="train", updates="n")
    return graph


def opened(*hooks: Any, **more: Any) -> SingularMonitoredSession:
    return SingularMonitoredSession(counting(), hooks, config=OFF, **more)


EVENTS = ["begin", "after_create_session", "before_run", "after_run"]


@pytest.mark.parametrize("error", [AbortedError, UnavailableError])
@pytest.mark.parametrize("event", EVENTS)
def test_a_preemption_of_a_hook_leaves_as_itself(event, error):
    """Nothing is tried again, wherever it comes from; every hook is told."""
    hook, raised = Told(), error("gone")
    with pytest.raises(error) as caught, opened(hook, Fails(event, raised)) as session:
        session.run("train")
    assert caught.value is raised
    assert hook.created == (0 if event == "begin" else 1)
    assert hook.events == ["gone"]


@pytest.mark.parametrize("piece", ["init_fn", "init_op"])
def test_a_preemption_while_it_is_prepared_leaves_as_itself(piece):
    """A session that recovers would try again."""
    graph, turns = counting(), []

    def fails(*args: Any) -> None:
        turns.append(len(turns))
        raise AbortedError("gone")

    graph.op(lambda: fails(), name="fails")
    scaffold = Scaffold(graph, **{piece: fails if piece == "init_fn" else "fails"})
    with pytest.raises(AbortedError):
        SingularMonitoredSession(graph, scaffold=scaffold, config=OFF)
    assert turns == [0]


def test_a_caught_preemption_leaves_the_session_usable():
    """The caller may go on with the same backend session."""
    hook = Told()
    with opened(hook, Fails("before_run", AbortedError("gone"))) as session:
        raw = session.raw_session()
        with pytest.raises(AbortedError):
            session.run("train")
        session.run("train")
        assert session.raw_session() is raw
        assert session.global_step == 1
    assert (hook.created, hook.events) == (1, ["end"])


def test_the_backend_session_has_the_state_of_the_session():
    """The next run reads the values that are written through it."""
    with opened() as session:
        raw = session.raw_session()
        raw.write({"n": 5})
        assert session.run("n") == 5
        raw.run("train")
        assert session.global_step == raw.global_step == 1


def test_the_backend_session_is_closed_with_the_session():
    """A program that kept it cannot run it any more."""
    with opened() as session:
        raw = session.raw_session()
    with pytest.raises(hookbus.errors.SessionClosedError):
        raw.run("n")


def test_it_ends_like_any_other_session():
    """The end of input, taken in by the block, is no error."""
    hook = Told()
    with opened(hook) as session:
        while not session.should_stop():
            session.run("train")
    assert hook.events == ["end"]
    assert (session.outcome.kind, session.outcome.step) == ("end_of_input", 3)


def test_it_is_a_monitored_session_of_any_kind():
    """It takes part in everything but recovery."""
    with opened(kind="eval") as session:
        assert isinstance(session, MonitoredSession)
        assert session.kind == "eval"
        assert list(session.loop("n")) == [0, 1, 2]


def test_it_takes_a_custom_loop():
    """Without a graph it has steps."""
    with SingularMonitoredSession(config=OFF) as session:
        for _ in session.iterate(range(2)):
            with session.step() as step:
                step.report(loss=0.5)
        assert session.run("loss") == 0.5
    assert session.global_step == 2


class Thread(SessionRunHook):
    """Has a thread fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def after_create_session(self, coord):
        def work() -> None:
            with coord.stop_on_exception():
                raise self.error

        thread = threading.Thread(target=work)
        coord.register_thread(thread)
        thread.start()
        thread.join()


@pytest.mark.parametrize("error", [OSError("no disk"), AbortedError("gone")], ids=repr)
def test_what_a_thread_met_comes_out_of_should_stop_and_of_the_block(error):
    """A preemption, too, as there is nobody who recovers from it."""
    with pytest.raises(type(error)) as caught, opened(Thread(error)) as session:
        session.should_stop()
    assert caught.value is error


@pytest.mark.parametrize("error", [OSError("no disk"), AbortedError("gone")], ids=repr)
def test_what_a_thread_met_comes_out_of_close(error):
    """Even if the loop never asked ``should_stop``."""
    session = opened(Thread(error))
    session.run("train")
    with pytest.raises(type(error)) as caught:
        session.close()
    assert caught.value is error
