"""Tests how a session closes: who is told, what is stopped and joined, what leaves."""

from __future__ import annotations

import contextlib
import threading

import pytest

import hookbus
from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    EmbeddedSession,
    MonitoredSession,
    OutOfRangeError,
    SessionRunHook,
    SingularMonitoredSession,
    UnavailableError,
)

SESSIONS = [MonitoredSession, SingularMonitoredSession]


class Reports(SessionRunHook):
    """Has a thread report an error to the coordinator, at once or at the end."""

    def __init__(self, error: BaseException, when: str = "create") -> None:
        self.error, self.when = error, when

    def report(self) -> None:
        def work() -> None:
            with self.coord.stop_on_exception():
                raise self.error

        thread = threading.Thread(target=work)
        self.coord.register_thread(thread)
        thread.start()
        thread.join()

    def after_create_session(self, coord):
        self.coord = coord
        if self.when == "create":
            self.report()

    def end(self):
        if self.when == "end":
            self.report()


class Waits(SessionRunHook):
    """Starts threads that live until the coordinator tells them to stop."""

    def __init__(self, number: int = 1) -> None:
        self.number = number

    def after_create_session(self, coord):
        self.coord = coord
        self.threads = [
            threading.Thread(target=coord.wait_for_stop) for _ in range(self.number)
        ]
        for thread in self.threads:
            coord.register_thread(thread)
            thread.start()

    def alive(self) -> list[bool]:
        return [thread.is_alive() for thread in self.threads]


def train(session: MonitoredSession) -> None:
    """Run until the session wants to stop."""
    while not session.should_stop():
        session.run("train")


@pytest.fixture
def closes(calls: list[str]) -> type[EmbeddedSession]:
    """A backend that notes its close."""

    class Closes(EmbeddedSession):
        def close(self) -> None:
            calls.append("CLOSE")
            super().close()

    return Closes


def test_close_is_a_clean_exit(calls, hook, open_session):
    """``close`` calls each hook's ``end``, like leaving the block."""
    session = open_session(hook("a"), hook("b"))
    session.run("train")
    session.close()
    assert calls[-2:] == ["a.end", "b.end"]
    assert (session.outcome.kind, session.outcome.step) == ("completed", 1)


@pytest.mark.parametrize("error", [OutOfRangeError("done"), StopIteration("done")])
def test_leaving_the_block_at_the_end_of_input_is_a_clean_exit(
    error, calls, hook, open_session
):
    """The exception goes no further, and hooks are told by ``end``."""
    with open_session(hook("a")) as session:
        raise error
    assert calls[-1] == "a.end"
    assert session.outcome.kind == "end_of_input"


def test_while_end_is_called_threads_go_on_and_the_session_can_be_used(open_session):
    """The coordinator is told to stop only after the last ``end``."""
    seen = []

    class Looks(Waits):
        def end(self, session):
            seen.append((self.coord.should_stop(), self.alive(), session.run("n")))

    with open_session(Looks(), Looks()) as session:
        session.run("train")
    assert seen == [(False, [True], 1), (False, [True], 1)]


def test_after_end_threads_are_stopped_and_joined_and_then_the_backend_closes(
    calls, hook, graph, closes, open_session
):
    """``end``, then the coordinator's stop and join, then the backend's close."""

    class Notes(SessionRunHook):
        def after_create_session(self, coord):
            def work() -> None:
                coord.wait_for_stop()
                calls.append("THREAD")

            thread = threading.Thread(target=work)
            coord.register_thread(thread)
            thread.start()

    creator = ChiefSessionCreator(graph, backend=closes)
    with open_session(Notes(), hook("a"), session_creator=creator):
        calls.clear()
    assert calls == ["a.end", "THREAD", "CLOSE"]


def test_an_exception_in_the_body_stops_and_joins_the_threads_too(
    calls, hook, graph, closes, open_session
):
    """However the block is left, no thread and no backend session is left over."""
    waits = Waits()
    creator = ChiefSessionCreator(graph, backend=closes)
    session = open_session(waits, hook("a"), session_creator=creator)
    with pytest.raises(ValueError, match="broken"), session:
        raise ValueError("broken")
    assert waits.alive() == [False]
    assert calls[-2:] == ["a.failed", "CLOSE"]


def test_a_closed_session_lets_go_of_graph_and_backend(open_session):
    """``graph`` and ``raw_session()`` are None; outcome and step can still be read."""
    with open_session(cls=SingularMonitoredSession) as session:
        session.run("train")
        assert isinstance(session.raw_session(), EmbeddedSession)
    assert (session.graph, session.raw_session()) == (None, None)
    assert (session.global_step, session.outcome.step) == (1, 1)


@pytest.mark.parametrize("cls", SESSIONS)
def test_a_thread_that_outlives_the_grace_period_is_no_error(cls, open_session, capsys):
    """The session closes without it; a warning names it."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="reader-9")

    class Starts(SessionRunHook):
        def after_create_session(self, coord):
            coord.register_thread(thread)
            thread.start()

    with open_session(Starts(), cls=cls, stop_grace_period_secs=0.0) as session:
        session.run("train")
    still_alive = thread.is_alive()
    release.set()
    thread.join()
    assert still_alive
    assert session.outcome.kind == "completed"
    assert "reader-9" in capsys.readouterr().err


@pytest.mark.parametrize("cls", SESSIONS)
def test_what_a_thread_failed_with_leaves_the_block(cls, calls, hook, open_session):
    """Even after a clean body; hooks are told of the failure, and the outcome names it."""
    error = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone") as caught:  # noqa: SIM117
        with open_session(Reports(error), hook("a"), cls=cls) as session:
            session.run("train")
    assert caught.value is error
    assert calls[-1] == "a.failed"
    assert session.outcome.kind == "failed"
    assert "the disk is gone" in session.outcome.why


def test_what_a_thread_failed_with_leaves_close(open_session):
    """``close`` raises it as the block's exit does, and the session is closed."""
    session = open_session(Reports(OSError("the disk is gone")))
    with pytest.raises(OSError, match="the disk is gone"):
        session.close()
    assert session.should_stop()
    with pytest.raises(hookbus.errors.SessionClosedError):
        session.run("n")


def test_what_a_thread_failed_with_replaces_the_bodys_exception(open_session):
    """The thread's error leaves, and has the body's as its context."""
    body, thread = ValueError("body"), OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone") as caught:  # noqa: SIM117
        with open_session(Reports(thread)):
            raise body
    assert caught.value is thread
    assert caught.value.__context__ is body


def test_what_a_thread_failed_with_replaces_an_exception_from_end(
    calls, hook, open_session
):
    """All ``end``s are called; the thread's error leaves with the hook's as context."""
    own, thread = ValueError("own"), OSError("the disk is gone")
    hooks = hook("a"), Reports(thread, "end"), hook("b", end=[own]), hook("c")
    with pytest.raises(OSError, match="the disk is gone") as caught, open_session(*hooks):
        pass
    assert caught.value is thread
    assert caught.value.__context__ is own
    assert calls[-3:] == ["a.end", "b.end", "c.end"]


@pytest.mark.parametrize("failing", range(3))
def test_a_thread_that_fails_ends_the_others(failing, open_session):
    """Of three registered threads one fails: its exception leaves, and none lives on."""
    threads = []

    class Readers(SessionRunHook):
        def after_create_session(self, coord):
            def work(number: int) -> None:
                with coord.stop_on_exception():
                    if number == failing:
                        raise OSError(f"reader {number}")
                    coord.wait_for_stop()

            for number in range(3):
                threads.append(threading.Thread(target=work, args=(number,)))
                coord.register_thread(threads[-1])
                threads[-1].start()

    with (
        pytest.raises(OSError, match=f"reader {failing}"),
        open_session(Readers()) as session,
    ):
        train(session)
    assert [thread.is_alive() for thread in threads] == [False] * 3


@pytest.mark.parametrize(
    "error", [AbortedError("gone"), UnavailableError("gone")], ids=repr
)
@pytest.mark.parametrize("when", ["create", "end"])
def test_a_preemption_that_a_thread_met_is_logged_at_the_end(
    when, error, calls, hook, open_session, capsys
):
    """It is too late to recover and no matter: an error is logged, and nothing leaves."""
    with open_session(Reports(error, when), hook("a")) as session:
        pass
    assert calls[-1] == "a.end"
    assert session.outcome.kind == "completed"
    assert "[error" in (log := capsys.readouterr().err)
    assert repr(error) in log


def test_a_singular_session_raises_a_preemption_that_a_thread_met(open_session):
    """Without recovery it is an error like any other."""
    error = AbortedError("gone")
    with pytest.raises(AbortedError) as caught:  # noqa: SIM117
        with open_session(Reports(error), cls=SingularMonitoredSession):
            pass
    assert caught.value is error


def test_an_exception_of_the_backends_close_is_suppressed(
    calls, hook, graph, open_session, capsys
):
    """The session closes anyway, the graph is open; a warning says what was wrong."""

    class Backend(EmbeddedSession):
        def close(self) -> None:
            super().close()
            raise OSError("the machine is gone")

    creator = ChiefSessionCreator(graph, backend=Backend)
    with open_session(hook("a"), session_creator=creator) as session:
        session.run("train")
    assert calls[-1] == "a.end"
    assert session.outcome.kind == "completed"
    assert not graph.finalized
    assert "the machine is gone" in capsys.readouterr().err


def test_closing_twice_is_an_error_and_tells_nobody_again(calls, hook, open_session):
    """The second ``close`` raises; each hook has had its one ``end``."""
    session = open_session(hook("a"))
    session.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"Session is already closed\."):
            session.close()
    assert calls.count("a.end") == 1


def test_close_inside_the_block_is_told_at_its_exit(calls, hook, open_session):
    """The block closes its session itself: it raises that this was done already."""
    with pytest.raises(RuntimeError, match="Session is already closed"):  # noqa: SIM117
        with open_session(hook("a")) as session:
            session.close()
    assert calls.count("a.end") == 1


def test_an_exception_after_close_inside_the_block_leaves_as_itself(
    calls, hook, open_session
):
    """It is not hidden behind the message that the session is closed."""
    session = open_session(hook("a"))
    with pytest.raises(ValueError, match="late"), session, contextlib.closing(session):
        raise ValueError("late")
    assert calls.count("a.end") == 1


def test_a_closed_session_wants_to_stop_and_refuses_to_run(open_session):
    """``should_stop`` is true, and every way to run says that the session is closed."""
    session = open_session()
    session.close()
    assert session.should_stop()
    for run in (
        lambda: session.run("n"),
        lambda: session.run("n", kind="aux"),
        lambda: session.run_step_fn(lambda step_context: None),
    ):
        with pytest.raises(hookbus.errors.SessionClosedError, match="closed"):
            run()
