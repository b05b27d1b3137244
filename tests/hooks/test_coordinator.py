"""The coordinator: threads that stop together, and whose error comes out."""

from __future__ import annotations

import threading

import pytest

from hookbus import Coordinator, OutOfRangeError
from hookbus.process.coordinator import ThreadsStillRunningError
from tests.support.running import started


def test_a_stop_reaches_everybody() -> None:
    """request_stop is seen by should_stop and wakes who waits for it."""
    coord = Coordinator()
    assert not coord.should_stop()
    assert not coord.wait_for_stop(timeout=0)
    waiter = started(coord.wait_for_stop)
    coord.request_stop()
    waiter.join()
    assert coord.should_stop()
    assert coord.wait_for_stop()


def test_the_first_error_is_kept() -> None:
    """Later errors are dropped; join and raise_requested_exception raise the first."""
    coord = Coordinator()
    coord.request_stop(ValueError("first"))
    coord.request_stop(KeyError("second"))
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            coord.raise_requested_exception()
        with pytest.raises(ValueError, match="first"):
            coord.join()


def test_an_error_after_a_plain_stop_is_dropped() -> None:
    """Once a stop was asked for, an error is a consequence of it."""
    coord = Coordinator()
    coord.request_stop()
    coord.request_stop(ValueError("too late"))
    coord.join()


@pytest.mark.parametrize("error", [OutOfRangeError("end"), StopIteration()])
def test_end_of_input_is_a_clean_stop(error: Exception) -> None:
    """A thread that reports the end of its input just stops the others."""
    coord = Coordinator()
    coord.request_stop(error)
    assert coord.should_stop()
    coord.join()


def test_clean_types_can_be_chosen() -> None:
    """With other clean types, end of input is an error like any."""
    coord = Coordinator(clean_stop_exception_types=(KeyError,))
    coord.request_stop(KeyError("clean"))
    coord.join()
    strict = Coordinator(clean_stop_exception_types=())
    strict.request_stop(OutOfRangeError("end"))
    with pytest.raises(OutOfRangeError):
        strict.join()


@pytest.mark.parametrize(
    "error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)]
)
def test_what_a_block_raises_is_reported_and_swallowed(error: BaseException) -> None:
    """stop_on_exception stops everybody, goes on after its block, and join raises."""
    coord = Coordinator()
    with coord.stop_on_exception():
        raise error
    assert coord.should_stop()
    with pytest.raises(type(error)):
        coord.join()


def test_a_quiet_block_stops_nobody() -> None:
    """A block that raises nothing leaves the coordinator as it was."""
    coord = Coordinator()
    with coord.stop_on_exception():
        pass
    assert not coord.should_stop()


def test_join_waits_for_threads_that_end_by_themselves() -> None:
    """Without a stop, join waits as long as the threads live, and asks nobody to stop."""
    coord = Coordinator()
    done = []
    registered = started(lambda: done.append("registered"))
    coord.register_thread(registered)
    coord.join([started(lambda: done.append("given"))])
    assert sorted(done) == ["given", "registered"]
    assert coord.joined
    assert not coord.should_stop()


def test_join_raises_what_a_thread_reported() -> None:
    """The error of a thread comes out of join in the main thread."""
    coord = Coordinator()

    def work() -> None:
        with coord.stop_on_exception():
            raise ValueError("broken sensor")

    coord.register_thread(started(work))
    with pytest.raises(ValueError, match="broken sensor"):
        coord.join()


def test_threads_that_outlive_the_grace_are_named(release: threading.Event) -> None:
    """After a stop and the grace period, join names those that still run."""
    coord = Coordinator()
    coord.request_stop()
    threads = [started(release.wait, "reader"), started(release.wait, "writer")]
    with pytest.raises(
        ThreadsStillRunningError, match=r"after 0.0 s: reader, writer"
    ) as info:
        coord.join(threads, stop_grace_period_secs=0.0)
    assert isinstance(info.value, RuntimeError)
    assert coord.joined


def test_threads_that_outlive_the_grace_can_be_ignored(release: threading.Event) -> None:
    """With ignore_live_threads they are left alone."""
    coord = Coordinator()
    coord.request_stop()
    coord.join(
        [started(release.wait)], stop_grace_period_secs=0.0, ignore_live_threads=True
    )
    assert coord.joined


def test_an_error_beats_the_threads_that_still_run(release: threading.Event) -> None:
    """The cause is raised, not its consequence."""
    coord = Coordinator()
    coord.request_stop(ValueError("cause"))
    with pytest.raises(ValueError, match="cause"):
        coord.join([started(release.wait)], stop_grace_period_secs=0.0)


def test_join_forgets_registered_threads(release: threading.Event) -> None:
    """A second join waits only for what was registered since."""
    coord = Coordinator()
    coord.request_stop()
    coord.register_thread(started(release.wait))
    coord.join(stop_grace_period_secs=0.0, ignore_live_threads=True)
    coord.join(stop_grace_period_secs=0.0)


def test_an_error_after_the_join_is_raised_at_once() -> None:
    """With nobody left to raise it, a late error stays with who reports it."""
    coord = Coordinator()
    coord.join()
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(ValueError("late"))
    coord.request_stop(OutOfRangeError("clean"))


def test_clear_stop_starts_anew() -> None:
    """The stop, its error and the join are forgotten."""
    coord = Coordinator()
    coord.request_stop(ValueError("old"))
    with pytest.raises(ValueError, match="old"):
        coord.join()
    coord.clear_stop()
    assert not coord.should_stop()
    assert not coord.joined
    coord.raise_requested_exception()
    coord.join()
