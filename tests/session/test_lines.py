"""Tests which log lines a session sends to its hooks."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    hookimpl,
    log,
)

OFF = Config(autoload=False, header=False)


class LinesHook(SessionRunHook):
    """Notes the lines that it gets, and may do more with each."""

    def __init__(self, also: Callable[[str], object] = str) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []
        self.also = also

    @hookimpl
    def line_logged(self, event: str, level: str, fields: Mapping[str, Any]) -> None:
        self.lines.append((event, level, fields))
        self.also(event)

    @property
    def texts(self) -> list[str]:
        """The texts of the lines."""
        return [event for event, *_ in self.lines]


class SaysHook(SessionRunHook):
    """Logs a line in each of its events."""

    def begin(self) -> None:
        log.info("in begin")

    def after_create_session(self) -> None:
        log.info("created")

    def after_run(self) -> None:
        log.debug("a detail")
        log.warning("careful", step=1, values={"loss": 0.5})

    def end(self) -> None:
        log.error("at the end")

    @hookimpl
    def finished(self) -> None:
        log.info("finished")


def counting() -> Graph:
    """Return a graph whose train op counts."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def trained(*hooks: Any, **more: Any) -> MonitoredSession:
    """Train one step."""
    with MonitoredSession(counting(), hooks=hooks, config=OFF, **more) as session:
        session.run("train")
    return session


def test_a_hook_gets_each_line_from_the_last_begin_to_the_last_end(capsys):
    """With its level and fields; a detail is no line, and the rest is logged as before."""
    hook = LinesHook()
    trained(hook, SaysHook())
    assert hook.lines == [
        ("created", "info", {}),
        ("careful", "warning", {"step": 1, "values": {"loss": 0.5}}),
        ("at the end", "error", {}),
    ]
    shown = capsys.readouterr().err
    for text in ("in begin", *hook.texts, "finished", "session ended"):
        assert text in shown


def test_the_lines_of_the_session_itself_come():
    """Those about checkpoints, for example."""
    hook = LinesHook()
    for _ in range(2):
        with MonitoredTrainingSession(
            counting(), hooks=[hook], checkpoint_dir="runs", config=OFF
        ) as session:
            session.run("train")
    first, last = "checkpoint saved", "checkpoint saved"
    assert [text for text in hook.texts if text in (first, "restored")] == [
        first,
        last,
        "restored",
        last,
    ]
    saved = next(fields for event, _, fields in hook.lines if event == "checkpoint saved")
    assert (saved["step"], saved["by"]) == (0, "checkpoint-saver")


def test_a_line_may_be_written_as_structlog_takes_it(capsys):
    """With values in its text, or by keyword."""

    class ProgramHook(SessionRunHook):
        def after_run(self) -> None:
            log.info("%d of %d", 2, 3, unit="files")
            log.info(event="by keyword")

    hook = LinesHook()
    trained(hook, ProgramHook())
    assert hook.lines == [
        ("2 of 3", "info", {"unit": "files"}),
        ("by keyword", "info", {}),
    ]
    assert "2 of 3 unit=files" in capsys.readouterr().err


def test_the_fields_are_one_dict_for_all_hooks():
    """Nobody can change it for the others."""
    hook = LinesHook()
    trained(hook, SaysHook())
    with pytest.raises(TypeError, match="all hooks get this dict"):
        hook.lines[1][2]["step"] = 2


def test_a_line_that_a_hook_logs_there_is_not_sent():
    """Neither to the hook itself nor to others."""
    first = LinesHook(lambda event: log.warning("got", line=event))
    second = LinesHook()
    trained(first, second, SaysHook())
    assert first.texts == second.texts == ["created", "careful", "at the end"]


def test_lines_of_other_threads_are_left_out():
    """A hook may be unsafe to call in several threads."""

    class ThreadHook(SessionRunHook):
        def after_run(self) -> None:
            thread = threading.Thread(target=lambda: log.warning("from a thread"))
            thread.start()
            thread.join()

    hook = LinesHook()
    trained(hook, ThreadHook())
    assert hook.texts == []


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a process")
def test_the_line_of_a_signal_is_left_out(capfd):
    """It comes between any two instructions."""

    class SignalHook(SessionRunHook):
        def after_run(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = LinesHook()
    trained(hook, SignalHook(), exit_on_signal=False)
    assert "SIGTERM" in capfd.readouterr().err
    assert not [text for text in hook.texts if "SIGTERM" in text]


def test_the_innermost_session_of_a_thread_gets_the_line():
    """Even if its hooks want none; afterwards the one around it gets them again."""
    outer, inner = LinesHook(), LinesHook()

    class InsideHook(SessionRunHook):
        def after_run(self) -> None:
            with MonitoredSession(counting(), hooks=[inner], config=OFF):
                log.info("inner")
            log.info("between")
            with MonitoredSession(counting(), config=OFF):
                log.info("nobody listens")
            log.info("outer")

    trained(outer, InsideHook())
    assert inner.texts == ["inner"]
    assert outer.texts == ["between", "outer"]


def test_a_session_that_the_program_drops_takes_no_lines():
    """Though it was never closed."""
    hooks = [LinesHook()]
    dropped = MonitoredSession(counting(), hooks=hooks, config=OFF, watch_signals=False)
    log.info("dropped")
    lines = hooks[0].lines
    del dropped
    gc.collect()
    hook = LinesHook()
    trained(hook, SaysHook())
    log.info("after all sessions")
    assert [event for event, *_ in lines] == ["dropped"]
    assert len(hook.texts) == 3


def test_a_session_that_fails_sends_lines_until_on_exception():
    """The hook gets the error there."""

    class FailsHook(SessionRunHook):
        def after_run(self) -> None:
            log.warning("soon")
            raise OSError("disk")

        def on_exception(self) -> None:
            log.warning("too late")

    hook = LinesHook()
    with pytest.raises(OSError, match="disk"):
        trained(hook, FailsHook())
    assert hook.texts == ["soon"]


def test_an_error_of_a_hook_ends_the_session_where_the_line_is_logged():
    """As in any event; its policy holds it back."""

    def fail(event: str) -> None:
        raise ConnectionError("no chat")

    with pytest.raises(ConnectionError) as caught:
        trained(LinesHook(fail), SaysHook())
    assert caught.value.__notes__[0] == (
        "hookbus: raised by plugin 'lines' (hooks=) in line_logged()"
    )
    hook = LinesHook(fail)
    hook.options = HookOptions(on_error="warn")
    assert trained(hook, SaysHook()).outcome.kind == "completed"
    assert len(hook.texts) > 1


def test_a_custom_loop_sends_lines_to_the_session_of_its_thread():
    """Also those of the program."""
    hook = LinesHook()
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        with session.step():
            log.info("in a step")
        log.info("between steps")
    assert hook.texts == ["in a step", "between steps"]
