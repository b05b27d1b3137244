"""Mistakes in a plugin's functions are found when it is registered, or warned about."""

from __future__ import annotations

import re
import types
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from hookbus import PluginError, SessionRunHook, hookimpl
from tests.support.buses import bus, called


class Misspelt:
    @hookimpl
    def befor_run(self) -> None: ...


class MisspeltElsewhere:
    @hookimpl(specname="befor_run")
    def mine(self) -> None: ...


class Foreign:
    def after_run(self, values: Any) -> None: ...


class Keyword:
    def before_run(self, *, run_context: Any) -> None: ...


class Old:
    @hookimpl(hookwrapper=True)
    def before_run(self) -> Generator[None, Any, None]:
        yield


class Twice:
    def before_run(self) -> None: ...

    @hookimpl(specname="before_run")
    def mine(self) -> None: ...


class WrapperBesides:
    def before_run(self) -> None: ...

    @hookimpl(specname="before_run", wrapper=True)
    def around(self) -> Generator[None, Any, Any]:
        return (yield)


class Yielding:
    def before_run(self) -> Generator[None, None, None]:
        yield


class YieldingMarked:
    @hookimpl(tryfirst=True)
    def logged(self) -> Generator[None, None, None]:
        yield


class NotYielding:
    @hookimpl(wrapper=True)
    def before_run(self) -> None: ...


class Async:
    async def before_run(self) -> None: ...


class AsyncYielding:
    @hookimpl(wrapper=True)
    async def before_run(self) -> AsyncGenerator[None, None]:
        yield


class Both:
    @hookimpl(tryfirst=True, trylast=True)
    def before_run(self) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Misspelt, "'befor_run' is not an event; did you mean 'before_run'"),
        (MisspeltElsewhere, "'befor_run' is not an event; did you mean 'before_run'"),
        (
            Foreign,
            r"after_run\(\) takes 'values', which 'after_run' does not have; it has "
            "run_context, run_values; did you mean 'run_values'.",
        ),
        (Keyword, r"before_run\(\) takes 'run_context' by keyword only"),
        (Old, r"before_run\(\) is an old-style hookwrapper; use @hookimpl\(wrapper=True"),
        (Twice, r"before_run\(\) and mine\(\) both implement 'before_run'"),
        (WrapperBesides, r"around\(\) and before_run\(\) both implement 'before_run'"),
        (Yielding, r"before_run\(\) yields.* mark a wrapper @hookimpl\(wrapper=True\)"),
        (YieldingMarked, r"logged\(\) yields"),
        (NotYielding, r"before_run\(\) has wrapper=True but no yield"),
        (Async, r"before_run\(\) is async, but events are plain calls: write def"),
        (AsyncYielding, r"before_run\(\) is async"),
        (Both, r"before_run\(\) has both tryfirst and trylast; remove one"),
    ],
)
def test_a_function_that_cannot_work_is_refused(plugin: type, message: str) -> None:
    """The message names the plugin and what shipped it, the mistake, and its line."""
    with pytest.raises(PluginError, match=rf"plugin 'p0' \(hooks=\): {message}.*py:\d+\)$"):
        bus(plugin())


def test_a_refused_plugin_leaves_the_bus_as_it_was() -> None:
    """Another one may take its name, and the events reach it alone."""
    made = bus()
    with pytest.raises(PluginError):
        bus(p0=Misspelt())
    assert called(made) == []


def test_a_wrapper_and_its_plugin_are_fine() -> None:
    """A generator function with wrapper=True is called as one."""

    class Around:
        @hookimpl(wrapper=True)
        def before_run(self) -> Generator[None, Any, Any]:
            return (yield)

        def after_run(self) -> None: ...

    assert called(bus(Around())) == []


def forgotten(capsys: Any, plugin: Any) -> list[str]:
    """Return the functions that lack a decorator, as the warnings tell them."""
    bus(plugin)
    lines = capsys.readouterr().err.splitlines()
    assert all("looks like a hook but has no @hookimpl plugin=p0" in line for line in lines)
    return [line.partition("] ")[2].partition("()")[0] for line in lines]


def test_a_method_that_looks_like_a_hook_is_warned_about(capsys: Any) -> None:
    """Of an event's name and with the event's arguments, it was meant to be one."""

    class Hook(SessionRunHook):
        def logged(self, values: Any, global_step: int) -> None: ...

        def finished(self, session: Any) -> None: ...

        def configure(self, options: Any, more: bool = False) -> None: ...

        def planned_last_step(self) -> int:
            return 1

    assert set(forgotten(capsys, Hook())) == {
        "logged",
        "finished",
        "configure",
        "planned_last_step",
    }


def test_a_helper_may_be_called_like_an_event(capsys: Any) -> None:
    """A method that takes nothing, or something else, is the plugin's own business."""

    class Hook(SessionRunHook):
        before_save = True

        def logged(self) -> bool:
            return True

        def finished(self, path: str) -> None: ...

        def configure(self, options: Any, level: int) -> None: ...

        @property
        def measured(self) -> float:
            return 1.0

        @staticmethod
        def after_save(path: str) -> None: ...

    assert forgotten(capsys, Hook()) == []


def test_an_override_that_drops_the_mark_is_warned_about(capsys: Any) -> None:
    """A method that stands in for a marked one of a base class is not called any more."""

    class Base(SessionRunHook):
        @hookimpl
        def finished(self) -> None: ...

    class Derived(Base):
        def finished(self) -> None: ...

    assert forgotten(capsys, Derived()) == ["finished"]
    assert forgotten(capsys, Base()) == []


def test_a_function_of_a_module_is_warned_about(capsys: Any) -> None:
    """A module's function needs the mark for all events; imported names do not count."""
    module = types.ModuleType("plugin_module")
    source = """
from tempfile import gettempdir as before_save
from hookbus import hookimpl

@hookimpl
def begin(graph): ...

def before_run(run_context): ...

def end(): ...

def logged(text): ...
"""
    exec(source, vars(module))
    assert forgotten(capsys, module) == ["before_run"]


def test_the_six_methods_need_no_mark(capsys: Any) -> None:
    """They count as they are, with all arguments or none."""

    class Hook(SessionRunHook):
        def begin(self, graph: Any, checkpoints: Any) -> None: ...

        def end(self) -> None: ...

    assert forgotten(capsys, Hook()) == []


def nearly(capsys: Any, plugin: Any) -> dict[str, str]:
    """Return the functions whose names are nearly events, and those events, as warned."""
    bus(plugin)
    lines = capsys.readouterr().err.splitlines()
    found = [
        re.search(r"(\w+)\(\) is never called: .*did you mean '(\w+)'", x) for x in lines
    ]
    assert all(found), lines
    return {match[1]: match[2] for match in found if match}


def test_a_misspelt_event_is_warned_about(capsys: Any) -> None:
    """The warning names the event that was probably meant."""

    class Hook(SessionRunHook):
        def begn(self) -> None: ...

        def ends(self, session: Any) -> None: ...

        def after_rum(self) -> None: ...

        def beforeRun(self, run_context: Any) -> None: ...

        def on_exeption(self, exception: Any) -> None: ...

        def after_create_sesion(self, session: Any, coord: Any) -> None: ...

        def befor_save(self, session: Any, global_step: Any) -> None: ...

        def vetoo_save(self, session: Any, values: Any) -> None: ...

    assert nearly(capsys, Hook()) == {
        "begn": "begin",
        "ends": "end",
        "after_rum": "after_run",
        "beforeRun": "before_run",
        "on_exeption": "on_exception",
        "after_create_sesion": "after_create_session",
        "befor_save": "before_save",
        "vetoo_save": "veto_save",
    }


def test_a_misspelt_function_of_a_module_is_warned_about(capsys: Any) -> None:
    """It needs a mark, too, which the event's section of the reference shows."""
    module = types.ModuleType("plugin_module")
    source = """
from hookbus import hookimpl

@hookimpl
def begin(graph): ...

def after_rum(run_context, run_values): ...

def ends(): ...
"""
    exec(source, vars(module))
    assert nearly(capsys, module) == {"after_rum": "after_run"}


def test_a_helper_may_be_called_almost_like_an_event(capsys: Any) -> None:
    """Not counted: other arguments, private names, and what is not a function."""

    class Hook(SessionRunHook):
        before_runs = 3

        def send(self) -> None: ...

        def finish(self) -> None: ...

        def evaluate(self, batches: Any) -> None: ...

        def measure(self) -> float:
            return 1.0

        def after_runs(self, count: int) -> None: ...

        def after_step(self, run_context: Any) -> None: ...

        def _after_rum(self) -> None: ...

        @property
        def begins(self) -> bool:
            return True

    assert nearly(capsys, Hook()) == {}
