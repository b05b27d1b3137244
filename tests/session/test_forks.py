"""Processes that are forked while a session is open: the session stays its parent's."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
)
from hookbus.errors import ForkedSessionError
from tests.support import commands
from tests.support.handlers import handlers
from tests.support.profiles import cases

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

OFF = Config(autoload=False)
FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None


class Tells:
    """Keeps the events that this process gets."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def after_create_session(self, session):
        close = session.close
        session.close = lambda: (self.events.append("closed"), close())

    def before_run(self):
        self.events.append("before_run")

    def after_run(self):
        self.events.append("after_run")

    @hookbus.hookimpl
    def before_save(self):
        self.events.append("before_save")

    @hookbus.hookimpl
    def finished(self):
        self.events.append("finished")

    def end(self):
        self.events.append("end")

    def on_exception(self):
        self.events.append("on_exception")


def opened(*hooks: Any, **arguments: Any) -> MonitoredTrainingSession:
    """Open a session that saves after every run."""
    graph = Graph()
    graph.variable("w", 0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        log_step_count_steps=None,
        hooks=hooks,
        config=OFF,
        **arguments,
    )


def contents() -> dict[str, bytes]:
    """Return the bytes of every file in the directory of the checkpoints."""
    return {str(p): p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}


class Child:
    """A forked child of a test, and what became of it.

    It ends at the end of the block at the latest, and never returns to pytest.
    """

    def __init__(self) -> None:
        self.pid, self.left, self.told = -1, "", ""
        self._pipe = os.pipe()

    def fork(self) -> bool:
        """Fork, and wait in the parent; return whether this is the child."""
        self.pid = os.fork()
        if self.pid == 0:
            return True
        os.close(self._pipe[1])
        with os.fdopen(self._pipe[0]) as pipe:  # at its end, the child has ended
            self.left, _, self.told = pipe.read().partition("\n")
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return False

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.pid == 0:
            left = "" if error is None else type(error).__name__
            os.write(self._pipe[1], f"{left}\n{self.told}".encode())
            os._exit(0)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Fail if processes of the block must be killed after some time."""
    hung = threading.Event()

    def kill() -> None:
        hung.set()
        for process in multiprocessing.active_children():
            process.kill()

    timer = threading.Timer(10, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not hung.is_set(), "a child had to be killed"


def pool() -> None:
    assert FORK is not None
    with FORK.Pool(2) as workers:  # leaving it terminates them
        assert workers.map(math.sqrt, [1, 4, 9]) == [1, 2, 3]
        workers.map_async(time.sleep, [60, 60], chunksize=1)
        time.sleep(0.05)


def prefetcher() -> None:
    assert FORK is not None
    process = FORK.Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    process.terminate()
    process.join()
    assert process.exitcode == -signal.SIGTERM


def executor(context: Any = FORK) -> None:
    with ProcessPoolExecutor(2, mp_context=context) as workers:
        assert list(workers.map(math.sqrt, [1, 4, 9])) == [1, 2, 3]


def spawned() -> None:
    executor(multiprocessing.get_context("spawn"))


@pytest.mark.parametrize("do", cases([pool, executor], [pool, executor, spawned]))
def test_worker_processes_end_and_change_nothing(do):
    """A pool ends as in a program without a session, and the parent's files stay."""
    tells = Tells()
    with handlers(signal.SIG_DFL), opened(tells) as session:
        session.run("train")
        before = contents()
        with in_time():
            do()
        assert contents() == before
        session.run("train")
    assert tells.events.count("end") == 1
    assert session.outcome.step == 2


@pytest.mark.long
def test_a_child_that_is_terminated_as_soon_as_it_is_forked_ends():
    """No moment after the fork loses a signal, for which the parent would wait."""
    with handlers(signal.SIG_DFL), opened() as session:
        for _ in range(cases(20, 300)):
            with in_time():  # each child: three hundred forks of a large process take long
                prefetcher()
    assert session.outcome.kind == "completed"


@pytest.mark.parametrize("layers", [1, 2])
def test_the_handlers_from_before_the_session_are_back_in_a_child(layers, ctrl_c):
    """Also if the program put handlers of its own between two sessions."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with Child() as child, contextlib.ExitStack() as opened_first:
        earlier = [signal.getsignal(number) for number in numbers]
        opened_first.enter_context(MonitoredSession(Graph(), config=OFF))
        if layers == 2:
            below = signal.getsignal(signal.SIGINT)
            opened_first.enter_context(handlers(lambda *args: below(*args)))
            earlier = [signal.getsignal(number) for number in numbers]
            opened_first.enter_context(MonitoredSession(Graph(), config=OFF))
        if child.fork():
            assert [signal.getsignal(number) for number in numbers] == earlier
            with pytest.raises(KeyboardInterrupt):  # passed on, to the first handler
                os.kill(os.getpid(), signal.SIGINT)
            child.told = "right"
            return
    assert (child.left, child.told) == ("", "right")


def test_a_child_that_another_thread_forks_has_the_earlier_handlers(ctrl_c):
    """That thread is the main one of the child, and the session's was another."""
    earlier = signal.getsignal(signal.SIGTERM)
    with Child() as child, opened() as session:

        def forks() -> None:
            if child.fork():
                child.told = str(signal.getsignal(signal.SIGTERM) is earlier)
                child.__exit__(None, None, None)

        forker = threading.Thread(target=forks)
        forker.start()
        forker.join()
        session.run("train")
    assert child.told == "True"
    assert session.outcome.step == 1


def test_a_session_that_a_child_opens_hears_its_own_signals(ctrl_c):
    """The child's exit is not that of the parent, which a signal ended before the fork."""
    with Child() as child, opened(exit_on_signal=False) as session:
        signal.raise_signal(signal.SIGINT)
        if child.fork():
            with MonitoredSession(Graph(), config=OFF) as own:
                child.told = f"{own.should_stop()} "
                os.kill(os.getpid(), signal.SIGTERM)
                child.told += f"{own.should_stop()}"
            return
        assert session.should_stop()
    assert (child.left, child.told) == ("SignalExit", "False True")
    assert session.outcome.kind == "interrupted"


def returns(session: Any) -> None:
    pass


def raises(session: Any) -> None:
    raise ValueError


def ends_input(session: Any) -> None:
    raise StopIteration


def exits(session: Any) -> None:
    sys.exit(3)


def closes(session: Any) -> None:
    session.close()
    session.close()


def runs(session: Any) -> None:
    session.run("train")


def asks(session: Any) -> None:
    session.should_stop()


def dies(session: Any) -> None:
    os._exit(9)


WAYS = {
    returns: "",
    raises: "ValueError",
    ends_input: "StopIteration",
    exits: "SystemExit",
    closes: "",
    runs: "ForkedSessionError",
    asks: "ForkedSessionError",
    dies: "",
}
"""The ways out of a child, and what leaves the session's block there."""


@pytest.mark.parametrize("way", WAYS)
def test_however_a_child_ends_the_session_is_its_parents(way):
    """No event, no save, no outcome; an error that leaves the block is unchanged."""
    tells = Tells()
    with Child() as child, opened(tells) as session:
        session.run("train")
        before, events = contents(), [*tells.events]
        if child.fork():
            way(session)
            return
        assert contents() == before
        assert tells.events == events
        session.run("train")
    assert child.left == WAYS[way]
    assert tells.events.count("end") == 1
    assert (session.outcome.kind, session.outcome.step) == ("completed", 2)
    assert Path("runs/ckpt-2").is_dir()


class ForksIn:
    """Forks in one event; the child goes on with whatever its parent was in."""

    def __init__(self, child: Child, event: str, tells: Tells, earlier: int = 0) -> None:
        self.child, self.event, self.tells = child, event, tells
        self.earlier = earlier
        self.same = False

    def at(self, event: str) -> None:
        if event != self.event or self.child.pid != -1:
            return
        if self.earlier:
            self.earlier -= 1
            return
        before = contents()
        if self.child.fork():
            self.tells.events.clear()
        self.same = contents() == before

    def begin(self):
        self.at("begin")

    def before_run(self):
        self.at("before_run")

    def after_run(self):
        self.at("after_run")

    @hookbus.hookimpl
    def before_save(self, global_step):
        if global_step:
            self.at("before_save")

    def end(self):
        self.at("end")

    @hookbus.hookimpl
    def finished(self):
        self.at("finished")


@pytest.mark.parametrize(
    ("event", "runs"),
    [
        *[(each, 1) for each in ("begin", "before_run", "after_run", "before_save")],
        *[(each, 4) for each in ("before_run", "after_run")],
        *[(each, 1) for each in ("end", "finished")],
    ],
)
def test_a_child_that_is_forked_in_an_event_does_not_go_on_with_it(event, runs):
    """The hooks behind are not called there, also in a compiled run; nothing is written."""
    tells = Tells()
    with Child() as child:
        forks = ForksIn(child, event, tells, earlier=runs - 1)
        try:
            with opened(forks, tells) as session:
                for _ in range(runs):
                    session.run("train")
                session.should_stop()
        finally:
            if child.pid == 0:
                child.told = " ".join(tells.events)
    assert forks.same
    assert (child.left, child.told) == ("ForkedSessionError", "")
    assert tells.events.count("end") == 1
    assert (session.outcome.kind, session.outcome.step) == ("completed", runs)


def test_nothing_of_a_session_can_be_used_in_a_child():
    """Each call raises, generators from before the fork too."""
    with Child() as child, MonitoredSession(config=OFF) as session:
        steps, entered = session.iterate(range(9)), session.step()
        next(steps)
        entered.__enter__()
        calls: dict[str, Callable[[], Any]] = {
            "run": lambda: session.run("loss"),
            "step": session.step,
            "iterate": lambda: session.iterate(range(9)),
            "goes on": lambda: next(steps),
            "leaves a step": lambda: entered.__exit__(None, None, None),
            "track": lambda: session.track(w=[1]),
            "evaluation": session.evaluation,
            "should_stop": session.should_stop,
        }
        if child.fork():
            refused = []
            for name, call in calls.items():
                with contextlib.suppress(ForkedSessionError):
                    call()
                    continue
                refused.append(name)
            child.told = ",".join(refused)
            return
        entered.__exit__(None, None, None)
    assert (child.left, child.told) == ("", ",".join(calls))
    assert session.outcome.step == 1


def test_a_loop_of_the_parent_raises_in_a_child():
    """``loop``, ``run_step_fn``, and a generator that the parent began."""
    with Child() as child, opened() as session:
        loop = session.loop()
        next(loop)
        if child.fork():
            for call in (
                lambda: next(loop),
                lambda: next(session.loop()),
                lambda: session.run_step_fn(lambda step_context: None),
            ):
                with pytest.raises(ForkedSessionError, match="belongs to the parent"):
                    call()
            child.told = "refused"
            return
        next(loop)
    assert child.told == "refused"
    assert session.outcome.step == 2


def test_an_open_step_of_another_loop_does_not_go_on_in_a_child():
    """Neither to its end nor without it."""
    graph = Graph()
    with Child() as child, DrivenSession(graph, config=OFF) as driven:
        driven.begin()
        driven.created(EmbeddedSession(graph))
        driven.before_step()
        if child.fork():
            for call in (driven.after_step, driven.cancel_step, driven.before_step):
                with pytest.raises(ForkedSessionError, match="belongs to the parent"):
                    call()
            child.told = "refused"
            return
        driven.after_step()
    assert child.told == "refused"


def test_a_session_that_a_child_opens_is_its_own():
    """It has its events and its end; its directory is refused while the parent saves."""
    with Child() as child, opened() as session:
        session.run("train")
        if child.fork():
            tells = Tells()
            with pytest.raises(hookbus.UsageError, match=f"process {os.getppid()} is"):
                opened()
            Path("own").mkdir()
            os.chdir("own")
            with opened(tells) as own:
                own.run("train")
            child.told = f"{own.outcome.kind} {tells.events.count('end')}"
            return
    assert child.told == "completed 1"
    assert session.outcome.step == 1


SCRIPT = """
import atexit, os, signal, sys
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.train_op(lambda: (), name="train")
with MonitoredTrainingSession(
    graph, checkpoint_dir="before", exit_on_signal=False
) as session:
    session.run("train")
    signal.raise_signal(signal.SIGTERM)

atexit.register(lambda: print("atexit", os.getpid() == parent, flush=True))
parent, way = os.getpid(), sys.argv[1]
child = -1
with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
    session.run("train")
    sys.stdout.flush()
    child = os.fork()
    if child == 0 and way == "exits":
        sys.exit(3)
    if child == 0 and way == "raises":
        raise ValueError("from the child")
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        session.run("train")
print("child" if child == 0 else f"parent of {code}", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "code"), cases([("returns", 0)], [("returns", 0), ("exits", 3), ("raises", 1)])
)
def test_a_child_that_ends_as_the_command_does_has_its_own_exit_code(way, code):
    """It says nothing of the parent's sessions; those say their end once."""
    Path("script.py").write_text(SCRIPT)
    environment = {**os.environ, "HOOKBUS_PLUGINS": "no:nobodys"}  # warned of once
    done = commands.run_new(
        [sys.executable, "-m", "hookbus", "run", "script.py", way], env=environment
    )
    assert done.returncode == hookbus.ExitCode.PREEMPTED, done.stderr
    out = done.stdout.splitlines()
    assert out[-2:] == [f"parent of {code}", "atexit True"], done.stderr
    assert out[:-2] == ["child"] * (way == "returns") + ["atexit False"]
    assert done.stderr.count("session ended") == 2
    assert done.stderr.count("no plugin called 'nobodys'") == 1, done.stderr
    assert done.stderr.count("ValueError: from the child") == (way == "raises")
