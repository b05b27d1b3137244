"""TensorFlow's rules of the Coordinator, and of how a session uses one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hookbus import (
    AbortedError,
    Config,
    Coordinator,
    Graph,
    MonitoredSession,
    OutOfRangeError,
    Recovery,
)
from tests.support.running import started

OFF = Config(autoload=False)


def counting() -> Graph:
    """Return a graph with one train op."""
    graph = Graph()
    graph.train_op(lambda: (), name="train")
    return graph


class Notes:
    """Keeps each coordinator that it is handed, and whether it had stopped at ``end``."""

    def __init__(self, first: Callable[[Coordinator], object] = lambda coord: None) -> None:
        self.coords: list[Coordinator] = []
        self.stopped: list[bool] = []
        self.first = first

    def after_create_session(self, coord):
        self.coords.append(coord)
        if len(self.coords) == 1:
            self.first(coord)

    def end(self):
        self.stopped.append(self.coords[-1].should_stop())


def session_of(hook: Any, **arguments: Any) -> MonitoredSession:
    return MonitoredSession(counting(), hooks=[hook], config=OFF, **arguments)


def test_request_stop_with_an_error_records_it_and_stops():
    """The error is kept, and everybody is told to stop."""
    coord, error = Coordinator(), ValueError("broken")
    coord.request_stop(error)
    assert coord.should_stop()
    with pytest.raises(ValueError, match="broken") as caught:
        coord.join()
    assert caught.value is error


def test_request_stop_takes_what_sys_exc_info_returns():
    """Code written for TensorFlow may pass the triple instead of the exception."""
    coord = Coordinator()
    try:
        raise ValueError("broken")
    except ValueError:
        coord.request_stop(sys.exc_info())
    with pytest.raises(ValueError, match="broken"):
        coord.join()


def test_request_stop_logs_the_error(capsys):
    """A thread's error is seen when it comes, and not only at the join."""
    Coordinator().request_stop(ValueError("broken sensor"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "broken sensor" in line


def test_a_plain_stop_is_not_logged(capsys):
    """Only errors are worth a line."""
    coord = Coordinator()
    coord.request_stop()
    coord.request_stop(OutOfRangeError("the end"))
    assert capsys.readouterr().err == ""


def test_an_error_that_was_never_raised_can_be_reported():
    """Also outside an ``except`` block, where TensorFlow fails itself."""
    coord = Coordinator()
    coord.request_stop(ValueError("made up"))
    with pytest.raises(ValueError, match="made up"):
        coord.raise_requested_exception()


def test_end_of_input_is_a_clean_stop_by_default():
    """It stops everybody and is not raised."""
    coord = Coordinator()
    coord.request_stop(OutOfRangeError("the end"))
    assert coord.should_stop()
    coord.join()


def test_clean_types_are_those_that_were_given():
    """Only they are taken for a plain stop."""
    coord = Coordinator(clean_stop_exception_types=(KeyError,))
    coord.request_stop(KeyError("fine"))
    coord.join()
    strict = Coordinator(clean_stop_exception_types=())
    strict.request_stop(OutOfRangeError("the end"))
    with pytest.raises(OutOfRangeError):
        strict.join()


def test_the_first_error_wins():
    """Errors that are reported later are dropped."""
    coord = Coordinator()
    coord.request_stop(ValueError("first"))
    coord.request_stop(KeyError("second"))
    with pytest.raises(ValueError, match="first"):
        coord.join()


def test_an_error_after_a_plain_stop_is_dropped():
    """It is taken for a consequence of the stop."""
    coord = Coordinator()
    coord.request_stop()
    coord.request_stop(ValueError("late"))
    coord.join()


def test_an_error_after_the_join_is_raised_at_once():
    """Nobody else would raise it any more."""
    coord = Coordinator()
    coord.join()
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(ValueError("late"))


def test_wait_for_stop_tells_a_stop_from_a_timeout():
    """It returns True when a stop was asked for, False when time was up."""
    coord = Coordinator()
    assert coord.wait_for_stop(timeout=0.001) is False
    coord.request_stop()
    assert coord.wait_for_stop(timeout=0.001) is True
    assert coord.wait_for_stop() is True


def test_clear_stop_clears_the_stop_the_error_and_the_join():
    """The coordinator can be used anew."""
    coord = Coordinator()
    coord.request_stop(ValueError("old"))
    with pytest.raises(ValueError, match="old"):
        coord.join()
    coord.clear_stop()
    assert (coord.should_stop(), coord.joined) == (False, False)
    coord.request_stop(ValueError("new"))
    with pytest.raises(ValueError, match="new"):
        coord.join()


@pytest.mark.parametrize(
    "error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(2), GeneratorExit()]
)
def test_stop_on_exception_swallows_anything(error):
    """Execution goes on after the block; join raises what was raised in it."""
    coord, after = Coordinator(), False
    with coord.stop_on_exception():
        raise error
    after = True
    assert after
    assert coord.should_stop()
    with pytest.raises(type(error)):
        coord.join()


def test_join_waits_for_registered_and_for_given_threads():
    """Both kinds are waited for."""
    coord, done = Coordinator(), []
    coord.register_thread(started(lambda: done.append("registered")))
    coord.join([started(lambda: done.append("given"))])
    assert sorted(done) == ["given", "registered"]


def test_join_without_a_stop_waits_as_long_as_the_threads_live(release):
    """The grace period counts from a stop, and does not exist before it."""
    coord, order = Coordinator(), []

    def work() -> None:
        release.wait()
        order.append("thread")

    coord.register_thread(started(work))
    joining = started(
        lambda: (coord.join(stop_grace_period_secs=0.0), order.append("join"))
    )
    joining.join(0.2)
    assert joining.is_alive()
    release.set()
    joining.join()
    assert order == ["thread", "join"]


def test_threads_that_outlive_the_grace_period_are_named(release):
    """It is a RuntimeError that lists them."""
    coord = Coordinator()
    coord.request_stop()
    threads = [started(release.wait, "reader"), started(release.wait, "writer")]
    with pytest.raises(RuntimeError, match="reader, writer"):
        coord.join(threads, stop_grace_period_secs=0.0)
    assert coord.joined


def test_threads_that_outlive_the_grace_period_can_be_ignored(release, capsys):
    """With ignore_live_threads they are only logged."""
    coord = Coordinator()
    coord.request_stop()
    threads = [started(release.wait, "reader")]
    coord.join(threads, stop_grace_period_secs=0.0, ignore_live_threads=True)
    assert "reader" in capsys.readouterr().err


def test_an_error_beats_the_threads_that_still_run(release):
    """The cause is raised, not its consequence."""
    coord = Coordinator()
    coord.request_stop(ValueError("cause"))
    with pytest.raises(ValueError, match="cause"):
        coord.join([started(release.wait)], stop_grace_period_secs=0.0)


def test_every_later_join_raises_the_error_again():
    """It is not used up."""
    coord = Coordinator()
    coord.request_stop(ValueError("broken"))
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            coord.join()


def test_join_forgets_the_registered_threads(release):
    """The next join does not wait for them."""
    coord = Coordinator()
    coord.request_stop()
    coord.register_thread(started(release.wait))
    coord.join(stop_grace_period_secs=0.0, ignore_live_threads=True)
    coord.join(stop_grace_period_secs=0.0)


def test_joined_is_true_after_a_join():
    """Until clear_stop it stays so."""
    coord = Coordinator()
    assert not coord.joined
    coord.join()
    assert coord.joined
    coord.clear_stop()
    assert not coord.joined


def test_raise_requested_exception_raises_again_and_again():
    """Without an error it does nothing; with one it raises it and keeps it."""
    coord = Coordinator()
    coord.raise_requested_exception()
    coord.request_stop(ValueError("broken"))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            coord.raise_requested_exception()


def test_a_plain_thread_loops_until_it_is_stopped():
    """A registered thread that waits for the stop does what a LooperThread does."""
    coord, turns = Coordinator(), []

    def loop() -> None:
        with coord.stop_on_exception():
            while not coord.wait_for_stop(timeout=0.0):
                turns.append(1)
                if len(turns) == 3:
                    raise ValueError("third turn")

    coord.register_thread(started(loop))
    with pytest.raises(ValueError, match="third turn"):
        coord.join()
    assert len(turns) == 3


def test_each_backend_session_has_a_coordinator_of_its_own():
    """After a preemption hooks are handed a new one, and the old one was joined."""
    hook = Notes()
    errors = iter([AbortedError("gone"), None])
    graph = Graph()

    @graph.train_op
    def train():
        error = next(errors)
        if error is not None:
            raise error
        return ()

    recovery = Recovery(first_wait=0.0)
    with MonitoredSession(graph, hooks=[hook], config=OFF, recovery=recovery) as session:
        session.run("train")
        old, new = hook.coords
        assert (old.joined, new.joined, new.should_stop()) == (True, False, False)


def test_errors_of_the_main_thread_are_not_reported_to_the_coordinator():
    """Threads go on after a run that failed and was caught."""
    hook = Notes()
    with session_of(hook) as session:
        with pytest.raises(ValueError, match="nowhere"):
            session.run("nowhere")
        assert not hook.coords[0].should_stop()
        assert not session.should_stop()


def test_at_end_the_coordinator_is_not_yet_told_to_stop():
    """Hooks can still use their threads in ``end``; then they are stopped and joined."""
    hook = Notes()
    with session_of(hook):
        pass
    assert hook.stopped == [False]
    assert (hook.coords[0].should_stop(), hook.coords[0].joined) == (True, True)


def test_closing_waits_no_longer_than_the_grace_period(release, capsys):
    """A thread that does not stop is logged and left alone."""
    hook = Notes(lambda coord: coord.register_thread(started(release.wait, "stubborn")))
    with session_of(hook, stop_grace_period_secs=0.0) as session:
        session.run("train")
    assert session.outcome.kind == "completed"
    assert "stubborn" in capsys.readouterr().err


def test_for_a_session_no_error_of_a_thread_is_clean():
    """Even end of input that a thread reports comes out at the exit."""
    hook = Notes(lambda coord: coord.request_stop(OutOfRangeError("the end")))
    with pytest.raises(OutOfRangeError, match="the end"), session_of(hook) as session:
        assert session.should_stop()


def test_a_thread_that_was_never_started_is_not_waited_for():
    """It may have been registered by who failed before starting it."""
    coord = Coordinator()
    coord.register_thread(threading.Thread(target=print))
    coord.join()
    assert coord.joined
