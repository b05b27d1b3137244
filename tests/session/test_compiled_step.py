"""The code that a session has compiled for its steps can be read."""

from __future__ import annotations

import gc
import linecache
import traceback
from typing import Any

import pytest
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import Config, Due, Graph, MonitoredSession, SessionRunHook, hookimpl
from hookbus.backend.codegen import FILES
from tests.support.watching import lines as lines

QUIET = Config(autoload=False, header=False)
SHOWING = Config(autoload=False, header=False, show_step=True)


def graph_of() -> Graph:
    """Return a graph with a train op that has a loss."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(
        lambda w: (w + 1, {"loss": w}), name="train", updates="w", outputs=["loss"]
    )
    return graph


def hooks() -> list[Any]:
    """Return a hook that is called in each step and one that waits."""
    return [NanTensorHook("loss"), StopAtStepHook(last_step=100)]


def test_a_graph_shows_the_whole_run():
    """From its requests to its values, with the names of hooks and ops; also at the end."""
    with MonitoredSession(graph_of(), hooks=hooks(), config=QUIET) as session:
        for _ in range(2):
            session.run("train")
            assert session.compiled_step is None
        for _ in range(4):
            session.run("train")
        source = session.compiled_step
    assert source is not None
    assert session.compiled_step == source
    assert "# Hooks that are left out until they are due: stop-at-step\n" in source
    assert "# NanTensorHook.before_run, plugin 'nan-tensor' (hookbus-nan-tensor" in source
    assert "# NanTensorHook.after_run, plugin 'nan-tensor' (hookbus-nan-tensor" in source
    assert "# op 'train'\n" in source
    assert "StopAtStepHook" not in source
    assert "def run(feeds):\n" in source
    assert "def tell(run_context, values, step_after):\n" in source
    compile(source, "<shown>", "exec")


def test_a_custom_loop_shows_what_hooks_add():
    """The functions that call the hooks, and the one that takes what they fetch."""
    with MonitoredSession(hooks=hooks(), config=QUIET) as session:
        for _ in range(6):
            with session.step() as step:
                step.report(loss=1.0)
        source = session.compiled_step
    assert source is not None
    assert "def ask(run_context):\n" in source
    assert "def run(feeds):\n" in source
    assert "def tell(run_context, values, step_after):\n" in source
    assert "# NanTensorHook.after_run, plugin 'nan-tensor'" in source
    compile(source, "<shown>", "exec")


def test_a_run_in_which_a_hook_is_always_due_shows_the_calls_of_hooks():
    """There is no run in which nobody is due."""

    class Eager(SessionRunHook):
        @hookimpl
        def next_due(self) -> Due:
            return Due(0)

        def after_run(self) -> None: ...

    with MonitoredSession(graph_of(), hooks=[Eager()], config=QUIET) as session:
        for _ in range(6):
            session.run("train")
        source = session.compiled_step
    assert source is not None
    assert "Eager.after_run, plugin 'eager' (hooks=)" in source


@pytest.mark.parametrize("label", ["a\nraise SystemExit", "a  b"])
def test_a_comment_has_one_line(label):
    """Whatever a function is called."""

    class Odd(SessionRunHook):
        def before_run(self) -> None: ...

    Odd.before_run.__qualname__ = label
    with MonitoredSession(graph_of(), hooks=[Odd()], config=QUIET) as session:
        for _ in range(6):
            session.run("train")
        assert f"# {' '.join(label.split())}, plugin 'odd'" in session.compiled_step


def test_there_is_no_compiled_step_without_steps():
    """Nor after steps that all differ."""
    with MonitoredSession(graph_of(), config=QUIET) as session:
        assert session.compiled_step is None
        session.run({"t": "train"})
        session.run(["train", "loss"])
        assert session.compiled_step is None


@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_session_logs_it_at_its_end(lines, custom_loop):
    """If it is asked to, once, also after an error."""
    graph = None if custom_loop else graph_of()
    session = MonitoredSession(graph, hooks=hooks(), config=SHOWING)

    def train() -> None:
        with session:
            for _ in range(6):
                if graph is not None:
                    session.run("train")
                    continue
                with session.step() as step:
                    step.report(loss=1.0)
            raise KeyError("after six steps")

    with pytest.raises(KeyError):
        train()
    shown = [line["event"] for line in lines if "compiled step" in line["event"]]
    assert session.compiled_step is not None
    assert shown == [f"compiled step\n{session.compiled_step.rstrip()}"]


def test_a_session_without_one_says_so(lines):
    """A flag never has no effect at all."""
    with MonitoredSession(graph_of(), config=SHOWING) as session:
        session.run("train")
    (line,) = [line for line in lines if "compiled step" in line["event"]]
    assert line["event"] == "no compiled step"
    assert line["why"] == "no two steps in a row did the same"


@pytest.mark.parametrize("event", ["before_run", "after_run"])
def test_a_traceback_shows_the_line_of_the_compiled_step(event):
    """As it shows a line of any file."""

    def fails(run_context: Any) -> None:
        if run_context.global_step == 5:
            raise OSError("disk")

    hook = type("Fails", (SessionRunHook,), {event: staticmethod(fails)})()
    session = MonitoredSession(graph_of(), hooks=[hook], config=QUIET)

    def train() -> None:
        with session:
            for _ in range(10):
                session.run("train")

    with pytest.raises(OSError, match="disk") as caught:
        train()
    linecache.checkcache()  # what the module traceback does first
    shown = "".join(traceback.format_exception(caught.value))
    (line,) = [
        after.strip()
        for before, after in zip(shown.splitlines(), shown.splitlines()[1:], strict=False)
        if "<hookbus, compiled " in before
    ]
    assert line.startswith("answer = ")
    assert line in session.compiled_step


def lines_kept() -> int:
    """Return the number of lines of generated source that the process keeps."""
    gc.collect()
    files = [file for file in linecache.cache if file.startswith(FILES)]
    return sum(len(linecache.getlines(file)) for file in files)


def train_another(number: int) -> MonitoredSession:
    """Train with source that no other session has; return the session."""
    graph = Graph()
    graph.train_op(lambda: None, name=f"train_{number}")
    session = MonitoredSession(graph, config=QUIET)
    with session:
        for _ in range(4):
            session.run(f"train_{number}")
    return session


@pytest.mark.long
def test_the_source_of_sessions_that_are_gone_is_forgotten():
    """A process may open any number of sessions, and only some of the last ones stay."""
    open_session = train_another(0)
    shown = open_session.compiled_step
    assert shown is not None
    for number in range(1, 1200):
        train_another(number)
        if number == 599:
            kept = lines_kept()
    assert 0 < lines_kept() <= kept
    assert open_session.compiled_step == shown
