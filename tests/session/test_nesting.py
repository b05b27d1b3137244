"""A session inside another one's event, and whom flags are for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import Config, Graph, MonitoredSession, SessionRunArgs, UsageError
from tests.support import commands

OFF = Config(autoload=False)


def counting(start: int = 0) -> Graph:
    """Return a graph that counts from *start* on."""
    graph = Graph()
    graph.variable("n", start)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


class Notes:
    """Notes the values of its own session's runs."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def before_run(self):
        return SessionRunArgs("n")

    def after_run(self, run_values):
        self.values.append(run_values.results)


class Inside:
    """Opens a session with hooks of its own after each step of the one it belongs to."""

    def __init__(self, *hooks: Any, work: Callable[[Any], None] | None = None) -> None:
        self.hooks = hooks
        self.work = work or (lambda session: session.run("train"))
        self.inner: list[MonitoredSession] = []

    def after_run(self, run_context):
        with MonitoredSession(counting(100), hooks=self.hooks) as session:
            self.inner.append(session)
            self.work(session)


def of(*hooks: Any) -> MonitoredSession:
    """Return an outer session with these hooks."""
    return MonitoredSession(counting(), hooks=hooks, config=OFF)


def test_a_session_inside_another_one_has_hooks_and_steps_of_its_own():
    """Neither one's hooks see the other one's runs, and each counts its own steps."""
    inner_notes = [Notes(), Notes()]
    outer_notes, inside = Notes(), Inside()
    inside.hooks = (inner_notes[0],)
    with of(outer_notes, inside) as session:
        session.run("train")
        inside.hooks = (inner_notes[1],)
        session.run("train")
        assert session.global_step == 2
    assert outer_notes.values == [0, 1]
    assert [notes.values for notes in inner_notes] == [[100], [100]]
    assert [one.global_step for one in inside.inner] == [1, 1]


def test_a_stop_inside_stops_the_inner_one_only():
    """The outer session goes on, and its outcome is its own."""
    inside = Inside(StopAtStepHook(num_steps=1))
    with of(inside) as session:
        session.run("train")
        assert not session.should_stop()
    assert inside.inner[0].outcome.who == "stop-at-step"
    assert session.outcome.who == "caller"


def test_a_stop_outside_reaches_the_inner_one_only_afterwards():
    """The inner session can still run while the outer one has been asked to stop."""

    class Stops:
        def before_run(self, run_context):
            run_context.request_stop("enough")

    inside = Inside()
    with of(Stops(), inside) as session:
        session.run("train")
    assert inside.inner[0].outcome.kind == "completed"
    assert (session.outcome.who, session.outcome.why) == ("stops", "enough")


def test_requests_after_an_inner_session_bear_the_name_of_the_outer_hook():
    """Whose turn it is, is known again when the inner session is over."""

    class StopsAfterwards(Inside):
        def after_run(self, run_context):
            super().after_run(run_context)
            run_context.assign({"n": 7})
            run_context.request_stop("the inner one was good enough")

    with of(StopsAfterwards(Notes())) as session:
        session.run("train")
        assert session.run("n", kind="aux") == 7
    assert session.outcome.who == "stops-afterwards"


def test_a_failure_inside_is_that_of_the_outer_hook_for_the_outer_one():
    """Each session's outcome names a hook of its own."""

    class Breaks:
        def after_run(self):
            raise ValueError("broken")

    inside = Inside(Breaks())
    with pytest.raises(ValueError, match="broken") as caught, of(inside) as session:
        session.run("train")
    assert inside.inner[0].outcome.who == "breaks"
    assert session.outcome.who == "inside"
    assert any("plugin 'breaks'" in note for note in caught.value.__notes__)


def test_the_end_of_an_inner_input_is_not_that_of_the_of():
    """The inner block takes it in; the outer hook goes on behind it."""

    def exhaust(session: Any) -> None:
        raise StopIteration

    inside = Inside(work=exhaust)
    with of(inside) as session:
        session.run("train")
        session.run("train")
    assert [one.outcome.kind for one in inside.inner] == ["end_of_input"] * 2
    assert session.outcome.kind == "completed"


def test_a_session_does_not_run_itself_from_a_hook():
    """A hook would be called from within itself; the context's session is there for it."""

    class Recurses:
        session: Any = None

        def after_run(self):
            self.session.run("n")

    hook = Recurses()
    hook.session = session = of(hook)
    with pytest.raises(UsageError, match="recurses"), session:
        session.run("train")


FLAGS = """
import json, threading
from hookbus import Graph, MonitoredSession

def graph():
    g = Graph()
    g.train_op(lambda: (), name="train")
    return g

class Inside:
    def after_run(self):
        with MonitoredSession(graph()) as inner:
            for _ in range(5):
                inner.run("train")
        seen.append([inner.outcome.kind, inner.global_step])

def train(*hooks):
    with MonitoredSession(graph(), hooks=hooks) as session:
        while not session.should_stop():
            session.run("train")
    seen.append([session.outcome.who, session.global_step])

seen = []
threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
train(Inside())
print(json.dumps(seen))
"""


def test_flags_are_for_outermost_sessions_in_any_thread():
    """Each of them has instances of its own; a session inside an event has none."""
    Path("train.py").write_text(FLAGS)
    command = ["-m", "hookbus", "run", "-p", "no:progress", "--stop-at-step", "3"]
    done = commands.run(
        [sys.executable, *command, "train.py"],
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    outer, inner = ["stop-at-step", 3], ["completed", 5]
    assert json.loads(done.stdout) == [outer, outer, inner, inner, inner, outer]


FOUND = """
import hookbus

@hookbus.hookimpl
def begin():
    print("the plugin takes part")
"""


def test_a_session_inside_an_event_takes_no_plugin_and_prints_no_header(fake_dist, capsys):
    """A plugin that is on when found is for the session that the user sees."""
    fake_dist("found", {"hookbus": {"found": "fake_found"}}, modules={"fake_found": FOUND})
    config = Config.current().with_plugins("no:progress")
    inside = Inside(Notes())
    with MonitoredSession(counting(), hooks=[inside], config=config) as session:
        session.run("train")
    assert len(inside.inner) == 1
    told = capsys.readouterr()
    assert told.out == "the plugin takes part\n"
    assert told.err.count("plugins=") == 1
