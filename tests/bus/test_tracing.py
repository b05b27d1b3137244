"""The trace: how long each plugin took, by event, and what share of the steps that is."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hookbus import Config, Graph, HookCall, MonitoredSession, SessionRunHook, hookimpl
from hookbus.bus.observers import Tracer


def call(plugin: str | None, event: str, start: float, seconds: float) -> HookCall:
    """Return a call of so many seconds."""
    return HookCall(plugin, event, {}, None, None, start, seconds)


def taken(*calls: HookCall) -> Tracer:
    """Return a tracer that was told of calls."""
    tracer = Tracer()
    for each in calls:
        tracer.take(each)
    return tracer


def test_calls_of_one_plugin_and_event_add_up() -> None:
    """A line has the number of calls and their seconds, the most time first."""
    tracer = taken(
        call("a", "begin", 0, 1.0),
        call("b", "after_run", 3, 2.0),
        call("b", "after_run", 9, 3.0),
        call("b", "end", 20, 0.5),
    )
    lines = [(line.plugin, line.event, line.calls, line.seconds) for line in tracer.lines()]
    assert lines == [
        ("b", "after_run", 2, 5.0),
        ("a", "begin", 1, 1.0),
        ("b", "end", 1, 0.5),
    ]


def test_a_step_goes_from_before_run_to_after_run() -> None:
    """Step time is from the start of the one event to the end of the other, summed."""
    tracer = taken(
        call(None, "before_run", 10, 1.0),
        call("a", "after_run", 13, 0.5),
        call(None, "after_run", 13, 1.0),  # a step of 4 seconds
        call(None, "end", 50, 7.0),
        call(None, "before_run", 60, 1.0),  # that run failed
        call(None, "before_run", 70, 1.0),
        call(None, "after_run", 75, 1.0),  # a step of 6 seconds
    )
    assert tracer.step_seconds == pytest.approx(10.0)
    (line,) = tracer.lines()
    assert line.share == pytest.approx(0.05)


def test_without_a_step_there_is_no_share() -> None:
    """A session that did nothing has no time to compare with."""
    (line,) = taken(call("a", "begin", 0, 1.0)).lines()
    assert line.share is None


def test_what_is_called_outside_steps_has_no_share() -> None:
    """The time of an event at the end is no part of the steps' time."""
    tracer = taken(
        call("a", "begin", 0, 1.0),
        call("a", "before_run", 1, 1.0),
        call(None, "before_run", 1, 1.0),
        call("a", "logged", 2, 1.0),
        call(None, "after_run", 2, 1.0),
        call("a", "end", 3, 1.0),
    )
    assert {line.event for line in tracer.lines() if line.share} == {"before_run", "logged"}


class Slow(SessionRunHook):
    """Sleeps in each step."""

    def after_run(self) -> None:
        time.sleep(0.01)


class Quick(SessionRunHook):
    """Does nothing, in a step and before it."""

    def begin(self) -> None: ...

    def after_run(self) -> None: ...

    @hookimpl
    def finished(self) -> None: ...


def trained(trace: bool, fails: bool = False) -> None:
    """Do three steps, with a trace or without."""
    config = Config(autoload=False, trace=trace)
    with MonitoredSession(Graph(), hooks=[Quick(), Slow()], config=config) as session:
        for _ in range(3):
            session.run("global_step")
        if fails:
            raise OSError


def lines_in(capsys: Any) -> list[str]:
    """Return the lines of the trace, without the clock."""
    err = capsys.readouterr().err.splitlines()
    return [line.partition("] ")[2] for line in err if "plugin time" in line]


def test_a_session_reports_at_its_end(capsys: Any) -> None:
    """With the trace on, a line for each plugin and event is logged, also for the last."""
    trained(trace=True)
    first, *rest = lines_in(capsys)
    assert first.startswith("plugin time plugin=slow bus_event=after_run calls=3 total_ms=")
    assert float(first.partition("share=")[2].rstrip("%")) > 50
    assert {line.partition(" calls")[0] for line in rest} == {
        "plugin time plugin=quick bus_event=begin",
        "plugin time plugin=quick bus_event=after_run",
        "plugin time plugin=quick bus_event=finished",
    }


def test_a_session_that_fails_reports_too(capsys: Any) -> None:
    """The slow parts are of interest after an error as well."""
    with pytest.raises(OSError):  # noqa: PT011
        trained(trace=True, fails=True)
    assert lines_in(capsys)


def test_without_the_trace_there_is_no_line(capsys: Any) -> None:
    """It is off unless the Config says so."""
    trained(trace=False)
    assert lines_in(capsys) == []
