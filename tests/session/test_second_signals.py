"""Further signals while a session opens or closes, at every line that it runs then."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

import hookbus
from hookbus import Config, Graph, MonitoredSession, SessionRunHook
from tests.support import commands
from tests.support.handlers import SIGNALS, handlers
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)
HOOKBUS = str(Path(hookbus.__file__).parent)
SESSION = (MonitoredSession._start.__code__, MonitoredSession.__exit__.__code__)
CLOSING, OPENING = cases((67, 307), (1, 5))
"""Every how many lines one is tried."""


class WatchHook(SessionRunHook):
    """Keeps what it was told of begin and end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self):
        self.told.append("begin")

    def end(self):
        self.told.append("end")

    def on_exception(self):
        self.told.append("on_exception")


class Lines:
    """Counts the lines of hookbus that run in a block, and sends a signal before one."""

    def __init__(self, at: int = 0, number: int = signal.SIGINT) -> None:
        self.at, self.number, self.count = at, number, 0
        self.where, self.counts = "", False

    def __enter__(self) -> Lines:
        sys.settrace(self.entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def entered(self, frame: FrameType, event: str, value: Any) -> Any:
        # What comes before _start, like loading plugins, happens without a session.
        self.counts = self.counts or frame.f_code in SESSION
        own = self.counts and frame.f_code.co_filename.startswith(HOOKBUS)
        return self.line if own else None

    def line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line" and self.counts:
            self.count += 1
            if self.count == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(self.number)
        return self.line


class Attempt:
    """A session of hooks that ends while a signal comes at one line."""

    def __init__(self, at: int, *more: SessionRunHook) -> None:
        self.hooks, self.more = [WatchHook(), WatchHook()], more
        self.lines = Lines(at)
        self.folder = f"runs/{at}"

    def opened(self, folder: str = "") -> MonitoredSession:
        graph = Graph()
        graph.variable("w", 1)
        graph.train_op(lambda w: w + 1, name="train", updates="w")
        saver = CheckpointSaverHook(folder or self.folder, save_steps=1000)
        hooks = [self.hooks[0], *self.more, saver, self.hooks[1]]
        return MonitoredSession(graph, hooks=hooks, config=OFF)

    def check(self, before: list[Any]) -> None:
        """Check that nothing is left behind."""
        where = self.lines.where
        for hook in self.hooks:
            assert hook.told in ([], ["begin", "end"], ["begin", "on_exception"]), where
        assert [signal.getsignal(number) for number in SIGNALS] == before, where
        for path in Path(self.folder).glob("*"):
            assert path.name in (".writing", "ckpt-0", "ckpt-1", "outcome.json"), where
        Attempt(0).opened(self.folder).close()  # the directory is not locked


@pytest.fixture
def before(ctrl_c) -> list[Any]:
    """Return the handlers from before the sessions."""
    return [signal.getsignal(number) for number in SIGNALS]


def every_line(attempt: Callable[[int], Attempt], stride: int) -> Iterator[Attempt]:
    """Make an attempt without a signal, and then one for each line that it ran."""
    total = attempt(0).lines.count
    assert total > 100
    for at in range(1, total + 1, stride):
        yield attempt(at)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.long
def test_a_second_ctrl_c_at_any_line_of_closing_breaks_off_nothing(fails, before, capfd):
    """Each hook is told once, the lock and the handlers go back, and the block is left."""

    def attempt(at: int) -> Attempt:
        tried = Attempt(at)
        session = tried.opened()
        session.run("train")
        signal.raise_signal(signal.SIGINT)
        with pytest.raises((KeyboardInterrupt, ValueError)), session:  # noqa: PT012
            sys.settrace(tried.lines.entered)
            if fails:
                raise ValueError("broken")
        sys.settrace(None)
        return tried

    for tried in every_line(attempt, CLOSING):
        tried.check(before)
        assert (Path(tried.folder) / "outcome.json").exists(), tried.lines.where
        assert all(len(hook.told) == 2 for hook in tried.hooks), tried.lines.where


@pytest.mark.long
@pytest.mark.parametrize("resumes", cases([True], [True, False]))
def test_a_second_ctrl_c_at_any_line_of_opening_leaves_nothing_open(resumes, before, capfd):
    """The session is either ready, and ends by the signal, or ends before it is ready."""

    class First(SessionRunHook):
        def begin(self):
            signal.raise_signal(signal.SIGINT)

    def attempt(at: int) -> Attempt:
        tried = Attempt(at, First())
        if resumes:
            with Attempt(0).opened(tried.folder) as session:
                session.run("train")
        with contextlib.suppress(KeyboardInterrupt):
            with tried.lines:
                session = tried.opened()
            session.close()
        return tried

    for tried in every_line(attempt, OPENING):
        tried.check(before)


class AsksHook(SessionRunHook):
    """Asks for all that it can ask for, while a second Ctrl-C comes at one line."""

    def __init__(self, at: int) -> None:
        self.lines = Lines(at)
        self.lines.counts = True

    def after_create_session(self, coord):
        self.coord = coord

    def after_run(self, run_context):
        signal.raise_signal(signal.SIGINT)
        with self.lines:
            run_context.request_save("asked")
            run_context.assign({"w": 5})
            run_context.request_stop("asked")
            self.coord.register_thread(threading.Thread())
            self.coord.request_stop()
            self.coord.clear_stop()


@pytest.mark.timeout(60, method="thread")  # a lock that is left taken stops all of it
@pytest.mark.usefixtures("before", "capfd")
def test_a_second_ctrl_c_at_any_line_of_a_request_leaves_no_lock_taken():
    """The session ends, whatever it needs the lock for."""

    def ended(at: int) -> AsksHook:
        graph = Graph()
        graph.variable("w", 1)
        graph.train_op(lambda w: w + 1, name="train", updates="w")
        hook = AsksHook(at)
        session = MonitoredSession(graph, hooks=[hook], config=OFF)
        with contextlib.suppress(KeyboardInterrupt), session:
            session.run("train")
        assert session.outcome is not None, hook.lines.where
        assert session.outcome.kind in ("interrupted", "preempted"), hook.lines.where
        return hook

    total = ended(0).lines.count
    assert total > 20
    for at in range(1, total + 1):
        ended(at)


class Hangs(WatchHook):
    """Waits in one event until something breaks it off."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self.event, self.ran = event, event in ("begin", "after_create_session")

    def after_run(self):
        self.ran = True

    def wait(self, event: str) -> None:
        if event == self.event and self.ran:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("nothing broke it off")

    def begin(self):
        super().begin()
        self.wait("begin")

    def after_create_session(self):
        self.wait("after_create_session")

    @hookbus.hookimpl
    def before_save(self):
        self.wait("before_save")

    @hookbus.hookimpl
    def after_save(self):
        self.wait("after_save")

    def end(self):
        super().end()
        self.wait("end")

    def on_exception(self):
        super().on_exception()
        self.wait("on_exception")

    @hookbus.hookimpl
    def finished(self):
        self.wait("finished")


class HangingWrapper(WatchHook):
    """Waits around the other hooks' ``end``."""

    @hookbus.hookimpl(wrapper=True)
    def end(self):
        self.told.append("end")
        signal.raise_signal(signal.SIGINT)
        pytest.fail("nothing broke it off")
        yield


EVENTS = ["before_save", "after_save", "end", "finished"]


@pytest.mark.parametrize("hook", [*map(Hangs, EVENTS), HangingWrapper()])
def test_a_second_ctrl_c_breaks_off_a_hook_that_hangs_at_the_end(hook, before, capfd):
    """The other hooks still get their events, and the session ends in good order."""
    tried = Attempt(0, hook)
    with pytest.raises(KeyboardInterrupt), tried.opened() as session:  # noqa: PT012
        session.run("train")
        signal.raise_signal(signal.SIGINT)
    assert hook.told == ["begin", "end"]
    assert json.loads(Path("runs/0/outcome.json").read_text())["kind"] == "interrupted"
    tried.check(before)


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)])
def test_a_second_ctrl_c_breaks_off_on_exception_and_leaves_the_block(error, before):
    """The error that was on its way is the context of KeyboardInterrupt."""
    hook = Hangs("on_exception")
    tried = Attempt(0, hook)
    with pytest.raises(KeyboardInterrupt) as caught, tried.opened() as session:  # noqa: PT012
        session.run("train")
        signal.raise_signal(signal.SIGINT)
        raise error
    assert caught.value.__context__ is error
    tried.check(before)


@pytest.mark.parametrize("event", ["begin", "after_create_session"])
def test_a_second_ctrl_c_breaks_off_a_hook_that_hangs_at_the_start(event, before):
    """The hooks that began are told of the end, and no other."""

    class First(SessionRunHook):
        def begin(self):
            signal.raise_signal(signal.SIGINT)

    tried = Attempt(0, First(), Hangs(event))
    with pytest.raises(KeyboardInterrupt):
        tried.opened()
    assert tried.hooks[0].told == ["begin", "on_exception"]
    later = [] if event == "begin" else ["begin", "on_exception"]
    assert tried.hooks[1].told == later
    tried.check(before)


class Saved(WatchHook):
    """Interrupts the step, and then the save in which its state is read."""

    sent = 0

    def after_run(self):
        signal.raise_signal(signal.SIGINT)

    def state_dict(self):
        if self.sent < 1 and self.told == ["begin", "run"]:
            self.sent += 1
            signal.raise_signal(signal.SIGINT)
        return {}

    def before_run(self):
        self.told.append("run")

    def load_state_dict(self, state):
        pass


def test_a_second_ctrl_c_in_a_save_comes_after_it(before, capfd):
    """A checkpoint is written whole; the log shows that the signal was heard."""
    hook = Saved()
    tried = Attempt(0, hook)
    with pytest.raises(KeyboardInterrupt), tried.opened() as session:  # noqa: PT012
        session.run("train")
        pytest.fail("the interrupt was forgotten")
    lines = capfd.readouterr().err.splitlines()
    told, saved = (
        next(place for place, line in enumerate(lines) if text in line)
        for text in ("cleaning up, then ending signal=SIGINT", "ckpt-1 step=1 by=SIGINT")
    )
    assert told < saved
    assert hook.told == ["begin", "run", "on_exception"]
    tried.check(before)


def test_what_a_handler_of_the_program_raises_is_deferred_as_well(before):
    """A handler that raises at its first signal must not break off the end either."""

    class AlarmError(Exception): ...

    def alarm(number: int, frame: FrameType | None) -> None:
        raise AlarmError

    class Ends(WatchHook):
        def state_dict(self):
            if self.told == ["begin", "end"]:
                signal.raise_signal(signal.SIGTERM)
            return {}

        def load_state_dict(self, state):
            pass

    with handlers(alarm):
        tried = Attempt(0, Ends())
        session = tried.opened()
        session.run("train")
        with pytest.raises(AlarmError):
            session.close()
    assert session.outcome is not None
    tried.check(before)


def terminate() -> None:
    """Send this process SIGTERM, SIGHUP and SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        signal.raise_signal(number)


def test_further_sigterms_are_ignored_until_the_exit_is_caught(before):
    """The exit code stays 75; the program that catches it has its handlers back."""
    cleaned = []
    try:
        try:
            with Attempt(0).opened():
                terminate()
        finally:
            terminate()
            cleaned.append(True)
    except SystemExit as error:
        terminate()
        cleaned.append(error.code == 75)
    assert cleaned == [True, True]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_error_at_the_end_takes_the_place_of_the_exit(before):
    """The handlers are back at once, also while the error is kept."""

    class Fails(SessionRunHook):
        def end(self):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as kept, Attempt(0, Fails()).opened():
        signal.raise_signal(signal.SIGTERM)
    assert kept is not None
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_session_that_opens_on_the_way_out_hears_signals(before):
    """An exit that is kept, as a notebook does, does not keep the handlers for good."""
    kept: list[BaseException] = []
    for folder in ("one", "two"):
        try:
            with Attempt(0).opened(folder) as session:
                signal.raise_signal(signal.SIGTERM)
        except SystemExit as error:
            kept.append(error)
        assert session.outcome is not None
        assert session.outcome.kind == "preempted"
    kept.clear()
    assert [signal.getsignal(number) for number in SIGNALS] == before


RUN = ["-m", "hookbus", "run"]
LEAVES = """
import atexit, os, signal
from hookbus import Config, Graph, MonitoredTrainingSession

def terminate():
    for number in (signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)

atexit.register(lambda: (terminate(), print("cleaned", flush=True)))
graph = Graph()
graph.train_op(lambda: (), name="train")
try:
    with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
        for _ in session.loop():
            terminate()
finally:
    terminate()
"""


@pytest.mark.parametrize("command", cases([RUN], [RUN, []]))
def test_a_sigterm_between_the_session_and_the_end_of_the_process(command):
    """The exit code is 75, and functions registered for the exit are called."""
    Path("leaves.py").write_text(LEAVES)
    done = commands.run([sys.executable, *command, "leaves.py"], timeout=60)
    assert (done.returncode, done.stdout) == (75, "cleaned\n"), done.stderr
