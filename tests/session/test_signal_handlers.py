"""Handlers from before a session: called, put back, and told of what came too late."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hookbus
from hookbus import Config, Graph, MonitoredSession
from tests.support.handlers import SIGNALS, exits_by, handlers

OFF = Config(autoload=False)
EACH = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that the handlers from before a session hear."""
    numbers: list[int] = []
    with handlers(lambda number, frame: numbers.append(number)):
        yield numbers


def in_place() -> list[Any]:
    """Return the handlers of the moment."""
    return [signal.getsignal(number) for number in SIGNALS]


class Sends:
    """Sends this process a signal the first time that an event comes."""

    def __init__(self, event: str = "", *numbers: int) -> None:
        self.event, self.numbers = event, list(numbers)
        self.told: list[str] = []

    def at(self, event: str) -> None:
        while event == self.event and self.numbers:
            signal.raise_signal(self.numbers.pop(0))

    def end(self, outcome):
        self.told.append(f"end {outcome.kind}")
        self.at("end")

    @hookbus.hookimpl
    def finished(self):
        self.at("finished")

    def on_exception(self, exception, outcome):
        self.told.append(f"{type(exception).__name__} {outcome.kind}")


def session_of(*hooks: Any, step: Callable[[], None] = lambda: None) -> MonitoredSession:
    """Make a session that calls a function in each step."""
    graph = Graph()

    @graph.train_op
    def train():
        step()
        return ()

    return MonitoredSession(graph, hooks=hooks, config=OFF)


@EACH
@pytest.mark.parametrize("fails", ["nothing", "the step", "after_create_session"])
def test_handlers_from_before_are_back_however_it_ends(fails, number, heard):
    """While the session is open its own are in place, and afterwards the old ones."""
    seen: list[Any] = []

    def step() -> None:
        seen.append(in_place())
        if fails == "the step":
            raise ValueError

    class Fails:
        def after_create_session(self):
            seen.append(in_place())
            if fails == "after_create_session":
                raise ValueError

    before = in_place()
    with contextlib.suppress(ValueError), session_of(Fails(), step=step) as session:
        session.run("train")
    assert seen
    assert all(here not in before for handlers in seen for here in handlers)
    assert in_place() == before
    signal.raise_signal(number)
    assert heard == [number]


@EACH
def test_a_handler_from_before_hears_what_the_session_hears(number, heard):
    """It is called when the signal comes, and the session ends in good order as well."""
    hook = Sends()
    with session_of(hook, step=lambda: signal.raise_signal(number)) as session:
        session.run("train")
        assert heard == [number]
    assert hook.told[0].startswith("end ")
    assert heard == [number]


def test_an_error_of_a_handler_from_before_leaves_where_the_signal_came():
    """An error of such a handler is raised, and told to hooks like any error."""

    def handler(number: int, frame: Any) -> None:
        raise TimeoutError("walltime")

    hook = Sends()
    with (
        handlers(handler),
        pytest.raises(TimeoutError),
        session_of(hook, step=lambda: signal.raise_signal(signal.SIGTERM)) as session,
    ):
        session.run("train")
    assert hook.told == ["TimeoutError failed"]


def test_a_signal_that_is_ignored_stays_ignored():
    """A program under nohup, say, is not ended by what it was told not to hear."""

    def step() -> None:
        assert in_place() == [signal.SIG_IGN] * 3
        for number in SIGNALS:
            signal.raise_signal(number)

    with handlers(signal.SIG_IGN), session_of(step=step) as session:
        session.run("train")
        assert not session.should_stop()
    assert session.outcome.kind == "completed"


def test_a_handler_that_came_later_is_left_in_place(heard):
    """A handler that the script installed on top is not removed by the session."""

    def handler(number: int, frame: Any) -> None:
        raise AssertionError

    with session_of():
        signal.signal(signal.SIGTERM, handler)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_session_under_a_handler_that_came_later_hears_signals(heard):
    """It is a handler from before for the inner session: called, and put back."""
    later: list[int] = []

    def handler(number: int, frame: Any) -> None:
        later.append(number)

    with session_of() as outer:
        signal.signal(signal.SIGTERM, handler)
        with session_of(step=lambda: signal.raise_signal(signal.SIGTERM)) as inner:
            inner.run("train")
        assert signal.getsignal(signal.SIGTERM) is handler
    assert (inner.outcome.kind, outer.outcome.kind) == ("preempted", "completed")
    assert (later, heard) == ([signal.SIGTERM], [])


@pytest.mark.parametrize("event", ["end", "finished"])
def test_a_signal_that_comes_too_late_is_raised_after_the_session(event, ctrl_c):
    """The session ends as it was about to; the program then hears what it would have."""
    hook, other = Sends(event, signal.SIGINT), Sends()
    with pytest.raises(KeyboardInterrupt), session_of(hook, other) as session:
        session.run("train")
    assert hook.told == other.told == ["end completed"]
    assert session.outcome.kind == "completed"


def test_a_handler_from_before_hears_a_late_signal_once(heard):
    """It was called when the signal came; one signal is not two."""
    with session_of(Sends("end", signal.SIGTERM)) as session:
        session.run("train")
    assert session.outcome.kind == "completed"
    assert heard == [signal.SIGTERM]


@EACH
def test_an_error_in_the_run_of_the_signal_takes_precedence(number, ctrl_c):
    """The session has failed; its error leaves the block, and no exit hides it."""
    hook = Sends()

    def fail() -> None:
        signal.raise_signal(number)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), session_of(hook, step=fail) as session:
        session.run("train")
    assert hook.told == ["ValueError failed"]


def test_outside_the_main_thread_no_handler_is_installed(heard):
    """A session in a thread leaves the process's handlers alone, and works without."""
    seen: list[Any] = []

    def work() -> None:
        with session_of(step=lambda: seen.append(in_place())) as session:
            session.run("train")
        seen.append(session.outcome.kind)

    before = in_place()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, "completed"]


def test_a_session_can_be_closed_in_another_thread(heard):
    """Only the main thread can put handlers back; elsewhere the session still ends."""
    hook, errors = Sends(), []
    session = session_of(hook)

    def close() -> None:
        try:
            session.close()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)
    assert errors == []
    assert hook.told == ["end completed"]
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_sessions_that_overlap_leave_no_handler_behind(first_to_end, heard):
    """Whichever ends first, the handlers from before the first are back at the end."""
    before = in_place()
    sessions = [session_of(), session_of()]
    sessions.pop(first_to_end).close()
    sessions.pop().close()
    assert in_place() == before


@pytest.mark.parametrize("late", [False, True])
def test_one_sigint_ends_a_session_and_the_one_inside_it(late, ctrl_c):
    """It counts once for each, also when it comes too late for the inner one."""
    inner_hook = Sends("end" if late else "step", signal.SIGINT)

    class Evaluates:
        """Opens a session of its own after each step."""

        def after_run(self):
            with session_of(inner_hook, step=lambda: inner_hook.at("step")) as inner:
                inner.run("train")

    outer_hook = Sends()
    with exits_by(signal.SIGINT), session_of(Evaluates(), outer_hook) as session:
        while not session.should_stop():
            session.run("train")
    assert inner_hook.told == ["end completed" if late else "end interrupted"]
    assert outer_hook.told == ["end interrupted"]
    assert session.global_step == 1
