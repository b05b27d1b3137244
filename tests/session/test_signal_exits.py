"""Tests what leaves a session's block after a signal, and what the user sees at once."""

from __future__ import annotations

import gc
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

import hookbus
from hookbus import (
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    SingularMonitoredSession,
)
from hookbus.errors import SessionInterruptedError
from hookbus.logs import configure
from hookbus.process import signals
from tests.support.handlers import SIGNALS, exits_by, handlers

OFF = Config(autoload=False)
EACH = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
SESSIONS: list[Callable[..., MonitoredSession]] = [
    MonitoredSession,
    SingularMonitoredSession,
    MonitoredTrainingSession,
]


class WatchHook(SessionRunHook):
    """Keeps how the session ended, and may fail then."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.told: list[str] = []

    def end(self, session, outcome):
        self.told.append(f"end {outcome.kind}")
        if self.error is not None:
            raise self.error

    def on_exception(self, exception):
        self.told.append(repr(exception))


def idle() -> Graph:
    """Return a graph whose one train op does nothing."""
    graph = Graph()
    graph.train_op(lambda: (), name="train")
    return graph


def opened(*hooks: Any, **arguments: Any) -> MonitoredSession:
    """Return a session without plugins."""
    return MonitoredSession(idle(), hooks=hooks, config=OFF, **arguments)


@EACH
@pytest.mark.parametrize("way", ["ask", "run", "loop", "step", "exit"])
def test_no_code_behind_the_block_runs_after_a_signal(way, number, ctrl_c):
    """A half-trained model is not exported; the block exits as Python does on a signal."""
    hook, behind = WatchHook(), False
    graph = None if way == "step" else idle()
    session = MonitoredSession(graph, hooks=[hook], config=OFF)
    with exits_by(number):
        with session:
            signal.raise_signal(number)
            if way == "ask":
                assert session.should_stop()
            elif way == "loop":
                assert list(session.loop()) == []
            elif way == "exit":
                sys.exit(0)
            else:
                session.step().__enter__() if way == "step" else session.run("train")
        behind = True
    assert not behind
    kind = "interrupted" if number == signal.SIGINT else "preempted"
    assert hook.told == [f"end {kind}"]
    assert session.outcome is not None
    assert session.outcome.kind == kind


@EACH
@pytest.mark.parametrize("session_class", SESSIONS, ids=lambda cls: cls.__name__)
def test_exit_on_signal_false_goes_on_behind_the_block(session_class, number, ctrl_c):
    """The program reads the outcome and decides itself."""
    with session_class(idle(), config=OFF, exit_on_signal=False) as session:
        signal.raise_signal(number)
        session.run("train")
    assert session.outcome is not None
    assert session.outcome.who == signal.Signals(number).name


@EACH
@pytest.mark.parametrize("form", ["monitored", "driven"])
def test_watch_signals_false_leaves_signals_to_the_program(form, number):
    """The session installs no handler, and a signal does not end it."""
    heard = []

    def hear(number, frame):
        heard.append(number)

    with handlers(hear):
        if form == "monitored":
            with opened(watch_signals=False) as session:
                assert signal.getsignal(number) is hear
                signal.raise_signal(number)
                assert not session.should_stop()
                session.run("train")
        else:
            with DrivenSession(idle(), config=OFF, watch_signals=False) as session:
                session.begin()
                session.created(EmbeddedSession(session.graph))
                assert signal.getsignal(number) is hear
                signal.raise_signal(number)
                session.before_step()
                assert session.after_step() is None
    assert heard == [number]
    assert session.outcome is not None
    assert session.outcome.kind == "completed"


@pytest.mark.long
def test_a_session_that_is_dropped_leaves_nothing_behind():
    """Without handlers, no object of hookbus stays after a session without an end."""

    def objects() -> int:
        gc.collect()
        everything = map(type, gc.get_objects())
        return sum(str(cls.__module__).startswith("hookbus.") for cls in everything)

    opened(watch_signals=False).run("train")
    before = objects()
    for _ in range(3):
        opened(watch_signals=False).run("train")
    assert objects() == before


@EACH
def test_a_program_with_its_own_handler_goes_on_behind_the_block(number):
    """Python raises nothing then either: the handler says what becomes of the process."""
    heard = []
    with handlers(lambda number, frame: heard.append(number)), opened() as session:
        signal.raise_signal(number)
        session.run("train")
    assert heard == [number]
    assert session.outcome is not None


@EACH
def test_another_error_after_the_signal_leaves_the_block_itself(number, ctrl_c):
    """An exit would hide its traceback."""
    session = opened()
    with pytest.raises(ValueError, match="broken"), session:  # noqa: PT012
        signal.raise_signal(number)
        raise ValueError("broken")


@EACH
def test_an_error_in_end_leaves_the_block_itself(number, ctrl_c):
    """A write that a hook failed to do is not hidden either."""
    hook = WatchHook(ValueError("no space"))
    with pytest.raises(ValueError, match="no space"), opened(hook):
        signal.raise_signal(number)


@EACH
def test_close_exits_as_the_block_does(number, ctrl_c):
    """Code behind it is code behind the session."""
    session = opened()
    signal.raise_signal(number)
    with exits_by(number):
        session.close()
    with exits_by(number), opened() as session:
        signal.raise_signal(number)
        session.close()


@EACH
def test_close_in_a_finally_hides_no_error(number, ctrl_c):
    """The error that is on its way goes on."""
    session = opened()

    def train() -> None:
        try:
            signal.raise_signal(number)
            raise ValueError("broken")
        finally:
            session.close()

    with pytest.raises(ValueError, match="broken"):
        train()


@EACH
def test_a_signal_leaves_the_inner_block_and_then_the_outer_one(number, ctrl_c):
    """Metrics of half an evaluation are not compared; both sessions end in good order."""
    outer_hook, inner_hook, behind = WatchHook(), WatchHook(), False
    saver = CheckpointSaverHook("runs", save_steps=1000)
    with exits_by(number), opened(outer_hook, saver) as session:
        session.run("train")
        with opened(inner_hook) as inner:
            signal.raise_signal(number)
            try:
                inner.close()
            except SessionInterruptedError as error:
                left_by = str(error)
                raise
        behind = True
    assert not behind
    name = signal.Signals(number).name
    assert left_by == f"{name} ended the session, and ends the one around it"
    assert outer_hook.told == inner_hook.told
    assert outer_hook.told[0].startswith("end ")
    assert Path("runs/ckpt-1").is_dir()


@EACH
def test_a_hook_that_evaluates_returns_to_its_session(number, ctrl_c):
    """The hooks after it get the step's ``after_run``; then the outer block exits."""
    steps = []

    class Evaluates(SessionRunHook):
        def after_run(self):
            with opened() as inner:
                signal.raise_signal(number)
                inner.run("train")

    class Counts(SessionRunHook):
        def after_run(self, run_values):
            steps.append(run_values.global_step)

    with exits_by(number), opened(Evaluates(), Counts()) as session:
        for _ in session.loop():
            pass
    assert steps == [1]


@EACH
def test_a_signal_while_a_worker_waits_for_its_chief_exits(number, ctrl_c):
    """The session never got ready, and its constructor is left by the signal."""
    graph = idle()
    graph.op(lambda: signal.raise_signal(number) or "w", name="missing")
    scaffold = hookbus.Scaffold(graph, ready_op="missing")
    with exits_by(number):
        MonitoredTrainingSession(graph, is_chief=False, config=OFF, scaffold=scaffold)


PROGRAM = """
import time
from hookbus import Config, Graph, MonitoredTrainingSession

graph = Graph()
graph.train_op(lambda: (), name="train")
config = Config(autoload=False)
try:
    with MonitoredTrainingSession(graph, checkpoint_dir="runs", config=config) as session:
        for _ in session.loop():
            if session.global_step == 3:
                print("ready", flush=True)
                while not session.should_stop():
                    time.sleep(0.01)
    print("behind")
finally:
    open("cleaned", "w").close()
"""


def started() -> subprocess.Popen[str]:
    """Start the program as plain Python."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 75)]
)
def test_plain_python_exits_by_the_signal(number, code):
    """Its cleanup runs, the code after the block does not, and 75 means: run it again."""
    process = started()
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (code, ""), error
    assert Path("cleaned").exists()
    assert Path("runs/ckpt-3").is_dir()
    assert ("Traceback" in error) is (number == signal.SIGINT)


@pytest.mark.long
def test_a_terminal_that_hangs_up_ends_the_session_in_good_order():
    """The session saves, although nothing can be written to the terminal any more."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    shown = b""
    while b"ready\r\n" not in shown:  # the line must be out, or printing it would fail
        shown += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 75
    assert json.loads(Path("runs/outcome.json").read_text())["who"] == "SIGHUP"
    assert Path("runs/ckpt-3").is_dir()


@pytest.mark.parametrize("saves", [True, False])
@EACH
def test_what_happens_next_is_shown_at_once(number, saves, ctrl_c, capfd):
    """A step may take minutes; the line comes before it ends."""
    seen = ""
    hooks = [CheckpointSaverHook("runs", save_steps=1000)] if saves else []
    with exits_by(number), opened(*hooks):
        capfd.readouterr()
        signal.raise_signal(number)
        seen = capfd.readouterr().err
    then = "then saving" if saves else "then ending"
    again = "; Ctrl-C again ends now" if number == signal.SIGINT else ""
    name = signal.Signals(number).name
    assert seen[9:] == f"[warning  ] finishing this step, {then}{again} signal={name}\n"


def test_a_line_that_a_signal_interrupts_blocks_nothing(ctrl_c, capfd, monkeypatch):
    """A handler that waited for the lock of the line would wait for itself."""
    lines = []

    class Interrupted:
        """A stderr whose first line is interrupted while it is written."""

        def write(self, text: str) -> None:
            if not lines:
                lines.append("")
                signal.raise_signal(signal.SIGTERM)
            lines.append(text)

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    with exits_by(signal.SIGTERM), opened():
        capfd.readouterr()
        monkeypatch.setattr(sys, "stderr", Interrupted())
        hookbus.log.info("a line")
        monkeypatch.undo()
    assert "finishing this step, then ending signal=SIGTERM\n" in capfd.readouterr().err
    assert "a line" in "".join(lines)


def test_a_log_of_json_lines_stays_one(ctrl_c, capfd):
    """A program that reads the log gets the line as an object."""
    structlog = pytest.importorskip("structlog")
    configure("json")
    try:
        with exits_by(signal.SIGTERM), opened():
            signal.raise_signal(signal.SIGTERM)
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert lines[0]["event"] == "finishing this step, then ending"
    assert (lines[0]["level"], lines[0]["signal"]) == ("warning", "SIGTERM")


def test_a_terminal_shows_the_line_below_what_it_was_at(ctrl_c, monkeypatch):
    """The line of a progress bar, or the ``^C``, is left as it is."""
    terminal, child = pty.openpty()
    with os.fdopen(child, "w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        with exits_by(signal.SIGINT), opened():
            signal.raise_signal(signal.SIGINT)
        shown = os.read(terminal, 1000).decode()
    os.close(terminal)
    assert shown.startswith("\r\n")
    assert shown.endswith("Ctrl-C again ends now signal=SIGINT\r\n")


@pytest.mark.parametrize("closed", [False, True])
def test_without_a_stderr_a_signal_ends_the_session(closed, ctrl_c, monkeypatch):
    """The number of a stderr that was closed may be that of another file."""
    with Path("err").open("w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream if closed else None)
    with exits_by(signal.SIGTERM), opened() as session:
        signal.raise_signal(signal.SIGTERM)
    assert session.outcome is not None
    assert session.outcome.kind == "preempted"


def test_an_exit_may_be_collected_while_handlers_are_restored():
    """The collector calls its ``__del__``, which restores them as well."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            left = signals.SignalExit()
            left.__notes__ = [left]  # a cycle, which only the collector finds
            del left
            for number, handler in before.items():  # as the end of a session does
                signals._absorbed[number] = handler
                signal.signal(number, signals._absorb)
            signals._stop_absorbing()
    finally:
        gc.set_threshold(*thresholds)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
