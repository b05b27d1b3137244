"""Tests recovery from an error that a thread reports to the coordinator."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hookbus import (
    AbortedError,
    OutOfRangeError,
    SessionRunHook,
    SingularMonitoredSession,
)


class Thread(SessionRunHook):
    """Has a thread report its errors to the coordinator, one in each run."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.coords: list[Any] = []

    def after_create_session(self, coord):
        self.coords.append(coord)

    def before_run(self):
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            thread = threading.Thread(target=self.coords[-1].request_stop, args=(error,))
            self.coords[-1].register_thread(thread)
            thread.start()
            thread.join()


def test_a_preemption_that_a_thread_met_is_recovered_from_by_should_stop(
    calls, hook, open_session
):
    """The session is made anew inside ``should_stop``, which then says to go on."""
    thread = Thread(AbortedError("gone"))
    with open_session(hook("a"), thread) as session:
        assert session.run(["n", "train"]) == [0, None]
        calls.clear()
        assert not session.should_stop()
        assert calls == ["a.create"]
        assert session.run(["n", "train"]) == [0, None]
        assert not session.should_stop()
    assert len(thread.coords) == 2
    assert session.outcome.kind == "completed"


def test_another_error_that_a_thread_met_makes_should_stop_true(calls, hook, open_session):
    """Nothing is made anew, ``run`` goes on to work, and the error leaves at the end."""
    error = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):  # noqa: SIM117, PT012
        with open_session(hook("a"), Thread(error)) as session:
            session.run("train")
            assert session.should_stop()
            session.run("train")
            assert session.global_step == 2
    assert calls.count("a.create") == 1


@pytest.mark.parametrize("error", [AbortedError("gone"), OSError("broken")], ids=repr)
def test_should_stop_of_a_singular_session_raises_what_a_thread_met(error, open_session):
    """Without recovery the caller has to deal with it."""
    session = open_session(Thread(error), cls=SingularMonitoredSession)
    session.run("train")
    for use in (session.should_stop, session.close):
        with pytest.raises(type(error)) as caught:
            use()
        assert caught.value is error


def test_an_error_caused_by_a_preemption_that_a_thread_met_is_one(
    calls, hook, open_session
):
    """A run that fails while the coordinator holds a preemption is repeated."""
    failing = hook("b", before=[ValueError("the queue is gone")])
    with open_session(Thread(AbortedError("gone")), failing) as session:
        assert session.run(["n", "train"]) == [0, None]
    assert calls.count("b.create") == 2


def test_a_singular_session_raises_the_preemption_that_a_thread_met(hook, open_session):
    """There ``run`` raises the cause instead of what came of it."""
    cause = AbortedError("gone")
    failing = hook("b", before=[ValueError("the queue is gone")])
    session = open_session(Thread(cause), failing, cls=SingularMonitoredSession)
    with pytest.raises(AbortedError) as caught:
        session.run("train")
    assert caught.value is cause
    with pytest.raises(AbortedError):
        session.close()


@pytest.mark.parametrize("error", [ValueError("main"), OutOfRangeError("done")], ids=repr)
def test_an_ordinary_error_of_a_thread_leaves_the_runs_own_error_alone(
    error, hook, open_session
):
    """``run`` raises what happened in it; the thread's error leaves at the end."""
    session = open_session(Thread(OSError("thread")), hook("b", before=[error]))
    with pytest.raises(type(error)) as caught:
        session.run("train")
    assert caught.value is error
    assert caught.value.__cause__ is None
    with pytest.raises(OSError, match="thread"):
        session.close()


def test_an_ordinary_error_of_a_thread_wins_over_a_preemption(calls, hook, open_session):
    """Closing the preempted session finds it; ``run`` raises it and repeats nothing."""
    error = OSError("the disk is gone")
    gone = hook("b", before=[AbortedError("gone")])
    with pytest.raises(OSError, match="the disk is gone") as caught:  # noqa: SIM117
        with open_session(Thread(error), gone) as session:
            session.run("train")
    assert caught.value is error
    assert calls == ["b.begin", "b.create", "b.before", "b.failed"]
