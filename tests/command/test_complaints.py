"""Tests what users of other plugin systems complain about and no flag can answer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import requires
from pathlib import Path

import pluggy
import pytest
from packaging.requirements import Requirement

import hookbus
from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from hookbus.testing import run_steps

CORE = Path(hookbus.__file__).parent


class FirstHook(SessionRunHook):
    def before_run(self):
        return SessionRunArgs("loss")

    @hookimpl
    def planned_last_step(self):
        return 7


class SecondHook(FirstHook):
    def after_run(self, run_values):
        if run_values.global_step == 2:
            raise OSError("the disk is full")


def test_complaint_3_who_returned_and_who_raised_it():
    """Each answer and each error is told with its plugin, by observers and by a note."""
    steps = run_steps(FirstHook(), SecondHook(), steps=3, reraise=False)
    asked = steps.calls_of("before_run")
    assert [call.plugin for call in asked] == ["first", "second"] * 2
    assert {call.result.fetches for call in asked} == {"loss"}
    assert [call.plugin for call in steps.calls if call.plugin and call.error] == ["second"]
    (note,) = steps.error.__notes__
    assert note == "hookbus: raised by plugin 'second' (hooks=) in after_run()"


def test_complaint_11_default_arguments():
    """An argument that the event has is passed, whatever its default; another keeps it."""
    seen = []

    class DefaultsHook(SessionRunHook):
        def before_run(self, run_context=None):
            seen.append(run_context is not None)

        def after_run(self, run_values=None, factor=2):
            seen.append((run_values.global_step, factor))

    run_steps(DefaultsHook(), steps=1)
    assert seen == [True, (1, 2)]


PRIVATE = {
    name
    for thing in (pluggy.PluginManager("x"), pluggy.PluginManager("x").hook)
    for name in dir(thing)
    if name.startswith("_") and not name.startswith("__")
}


@pytest.mark.long
def test_complaint_12_a_release_of_pluggy():
    """The core names the versions of pluggy that it is for, and uses no private name."""
    (needed,) = [
        r for r in map(Requirement, requires("hookbus") or ()) if r.name == "pluggy"
    ]
    assert not needed.specifier.contains("2.0")
    for path in CORE.rglob("*.py"):
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not [m for m in modules if m.startswith("pluggy.")], path
        if "pluggy" in source:
            used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
            assert used & PRIVATE == set(), path


TYPED = """\
from hookbus import SessionRunContext, SessionRunHook

class WrongHook(SessionRunHook):
    def before_run(self, run_context: SessionRunContext) -> int:
        run_context.request_stop(3)
        return run_context.banana
"""


@pytest.mark.long
def test_complaint_14_typing():
    """A type checker sees what a hook answers, and what it does with its arguments."""
    pytest.importorskip("mypy")
    Path("typed.py").write_text(TYPED, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "typed.py"],
        env=os.environ | {"MYPYPATH": str(CORE.parent), "MYPY_CACHE_DIR": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {line.split(":")[1] for line in found} == {"4", "5", "6"}, done.stdout


@pytest.mark.parametrize("hooks", [0, 5])
def test_complaint_15_the_overhead_of_events_that_come_often(hooks):
    """A step calls each hook directly: nothing of pluggy runs, and no line is formatted."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.op(lambda w: 1 / w, name="loss")
    watchers = [type(f"W{n}Hook", (FirstHook,), {})() for n in range(hooks)]
    files: Counter[str] = Counter()

    def count(frame, event, arg):
        files[frame.f_code.co_filename] += event == "call"

    with MonitoredSession(graph, hooks=watchers, config=Config(autoload=False)) as session:
        for _ in range(3):  # callers, plans and compiled functions are made in them
            session.run("loss")
        sys.setprofile(count)
        try:
            for _ in range(10):
                session.run("loss")
        finally:
            sys.setprofile(None)
    assert files.pop(__file__) == 10 * (hooks + 1)  # before_run of each, and the op
    assert [f for f in files if not f.startswith((str(CORE), "<"))] == []
