"""Threads of a session, sessions in threads, and a session inside another one's event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    SessionRunArgs,
    SingularMonitoredSession,
)

OFF = Config(autoload=False)
KINDS = pytest.mark.parametrize("cls", [MonitoredSession, SingularMonitoredSession])


def counting(start: int = 0) -> Graph:
    """Return a graph that counts from *start* on."""
    graph = Graph()
    graph.variable("n", start)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


class Readers:
    """Starts threads that wait for the end, and one more that does some work of its own."""

    def __init__(self, work: Callable[[Any], None], waiting: int = 2) -> None:
        self.work, self.waiting = work, waiting
        self.threads: list[threading.Thread] = []
        self.told: list[str] = []

    def after_create_session(self, coord):
        targets = [coord.wait_for_stop] * self.waiting + [lambda: self.guarded(coord)]
        self.threads = [threading.Thread(target=target) for target in targets]
        for thread in self.threads:
            coord.register_thread(thread)
            thread.start()

    def guarded(self, coord: Any) -> None:
        with coord.stop_on_exception():
            self.work(coord)

    def end(self):
        self.told.append("end")

    def on_exception(self, exception):
        self.told.append(repr(exception))

    @property
    def alive(self) -> list[bool]:
        return [thread.is_alive() for thread in self.threads]


def fails(coord: Any) -> None:
    """Be a thread that meets an error."""
    raise OSError("the disk is gone")


@KINDS
def test_the_error_of_one_of_three_threads_ends_the_session(cls):
    """The loop ends, the error leaves the block as itself, and no thread lives on."""
    hook = Readers(fails)
    with (
        pytest.raises(OSError, match="the disk is gone") as caught,
        cls(counting(), hooks=[hook], config=OFF) as session,
    ):
        list(session.loop())
    assert hook.alive == [False] * 3
    assert len(hook.told) == 1
    assert caught.traceback[-1].name == "fails"


def test_a_session_whose_thread_failed_has_not_completed():
    """The outcome names the thread's error, which is why the loop was left."""
    hooks = [Readers(fails)]
    with (
        pytest.raises(OSError, match="disk"),
        MonitoredSession(counting(), hooks=hooks, config=OFF) as session,
    ):
        list(session.loop())
    assert session.outcome.kind == "failed"
    assert "the disk is gone" in session.outcome.why


@KINDS
def test_threads_that_work_well_are_stopped_at_the_end(cls):
    """Nobody fails: the block's exit tells all threads to stop, and waits for them."""
    hook = Readers(lambda coord: coord.wait_for_stop())
    with cls(counting(), hooks=[hook], config=OFF) as session:
        session.run("train")
        assert hook.alive == [True] * 3
        assert not session.should_stop()
    assert hook.alive == [False] * 3
    assert hook.told == ["end"]


@KINDS
def test_threads_are_stopped_when_the_body_fails(cls):
    """An error in the block also ends the threads, and leaves the block."""
    hook = Readers(lambda coord: coord.wait_for_stop())
    with pytest.raises(KeyError), cls(counting(), hooks=[hook], config=OFF):
        raise KeyError("mine")
    assert hook.alive == [False] * 3
    assert hook.told == ["KeyError('mine')"]


def test_threads_are_stopped_when_a_session_cannot_be_made():
    """A hook behind them fails in after_create_session: no thread is left behind."""

    class Broken:
        def after_create_session(self):
            raise ValueError("broken")

    hook = Readers(lambda coord: coord.wait_for_stop())
    with pytest.raises(ValueError, match="broken"):
        MonitoredSession(counting(), hooks=[hook, Broken()], config=OFF)
    assert hook.alive == [False] * 3


def in_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Start *work* in a thread; return what waits for it and raises its error."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def join() -> None:
        thread.join()
        if errors:
            raise errors[0]

    thread = threading.Thread(target=guarded)
    thread.start()
    return join


class Notes:
    """Notes the values of its own session's runs."""

    def __init__(self, meet: Callable[[], object] = lambda: None) -> None:
        self.values: list[int] = []
        self.events: list[str] = []
        self.meet = meet

    def begin(self):
        self.events.append("begin")

    def before_run(self):
        self.meet()
        return SessionRunArgs("n")

    def after_run(self, run_values):
        self.meet()
        self.values.append(run_values.results)

    def end(self, outcome):
        self.events.append(f"end {outcome.who}")


def test_a_session_in_a_thread_is_a_session_like_any():
    """It saves, stops, ends and resumes outside the main thread."""

    def train(steps: int) -> None:
        hooks = [CheckpointSaverHook("runs", save_steps=2), StopAtStepHook(steps)]
        with MonitoredSession(counting(), hooks=hooks, config=OFF) as session:
            seen.append([values["n"] for values in session.loop({"n": "n"})])
            outcomes.append(session)

    seen: list[list[int]] = []
    outcomes: list[MonitoredSession] = []
    in_thread(lambda: train(3))()
    assert seen == [[0, 1, 2]]
    assert outcomes[0].outcome.kind == "stopped"
    assert (Path("runs") / "ckpt-3").is_dir()


def test_two_sessions_in_two_threads_have_hooks_and_stops_of_their_own():
    """Step by step side by side, each hook sees the runs of its session only."""
    barrier = threading.Barrier(2)
    hooks = [Notes(barrier.wait), Notes(barrier.wait)]

    def train(hook: Notes, start: int) -> None:
        hooks = [hook, StopAtStepHook(num_steps=4)]
        with MonitoredSession(counting(start), hooks=hooks, config=OFF) as session:
            list(session.loop())
            assert session.outcome is None

    both = [lambda: train(hooks[0], 0), lambda: train(hooks[1], 100)]
    for join in [in_thread(work) for work in both]:
        join()
    assert hooks[0].values == [0, 1, 2, 3]
    assert hooks[1].values == [100, 101, 102, 103]
    assert [hook.events for hook in hooks] == [["begin", "end stop-at-step"]] * 2


def test_the_failure_of_one_thread_s_session_is_not_the_other_s():
    """One fails in its second step, while the other one is in a step of its own."""
    barrier = threading.Barrier(2, timeout=30)
    good, bad = Notes(), Notes()

    class Fails:
        def after_run(self):
            barrier.wait()
            barrier.wait()
            raise ValueError("broken")

    class Watches:
        def after_run(self):
            barrier.wait()
            barrier.wait()

    def train(*hooks: Any) -> None:
        with MonitoredSession(counting(), hooks=hooks, config=OFF) as session:
            session.run("train")

    joins = [
        in_thread(lambda: train(good, Watches())),
        in_thread(lambda: train(bad, Fails())),
    ]
    joins[0]()
    with pytest.raises(ValueError, match="broken") as caught:
        joins[1]()
    assert good.events == ["begin", "end caller"]
    assert bad.events == ["begin"]
    assert "plugin 'fails'" in caught.value.__notes__[0]


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The log lines of a program that shows its log context in them."""
    seen: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        yield seen
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


def test_the_log_context_of_a_thread_is_its_own(lines):
    """A hook's bound values are in the lines of its session and in no other one's."""
    barrier = threading.Barrier(2, timeout=30)

    class Binds:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self):
            structlog.contextvars.bind_contextvars(job=self.name)
            barrier.wait()

        def end(self):
            barrier.wait()

    def train(name: str, steps: int) -> None:
        with MonitoredSession(counting(), hooks=[Binds(name)], config=OFF) as session:
            for _ in range(steps):
                session.run("train")

    for join in [in_thread(lambda: train("one", 1)), in_thread(lambda: train("two", 2))]:
        join()
    ends = {line["step"]: line.get("job") for line in lines if "step" in line}
    assert ends == {1: "one", 2: "two"}
