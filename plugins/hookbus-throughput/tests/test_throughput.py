"""Tests throughput: its measurements, when it takes them, and its cost."""

from __future__ import annotations

import re
import sys
import time
import types
from typing import Any

import numpy as np
import pytest
from hookbus_throughput import ThroughputHook

import hookbus
from hookbus import Config, Graph, MonitoredSession, SessionRunHook, UsageError
from hookbus.testing import fake_dist

QUIET = Config(autoload=False, header=False)


@pytest.fixture
def sleepless(clock, monkeypatch) -> None:
    """Sleeping turns all clocks, and nothing else does, however busy the machine is."""

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", time.monotonic)


class Heard(SessionRunHook):
    """Keeps what is measured."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[dict[str, float]] = []

    @hookbus.hookimpl
    def measured(self, values: Any, global_step: int) -> None:
        self.steps.append(global_step)
        self.values.append({n.removeprefix("throughput/"): v for n, v in values.items()})


def graph_of(increment: int = 1, step_secs: float = 0.0, input_secs: float = 0.0) -> Graph:
    """Return a graph whose steps and inputs take some time."""
    graph = Graph()

    def batches():
        while True:
            time.sleep(input_secs)
            yield np.zeros((8, 2))

    graph.input("x", batches)
    graph.train_op(lambda x: time.sleep(step_secs), name="train", increment=increment)
    return graph


def measure(hook: ThroughputHook, runs: int, *others: Any, **graph: Any) -> Heard:
    """Run so often; return who heard what was measured."""
    heard = Heard()
    with MonitoredSession(
        graph_of(**graph), hooks=[hook, heard, *others], config=QUIET
    ) as session:
        for _ in range(runs):
            session.run("train")
    return heard


@pytest.mark.parametrize(
    ("every", "increment", "steps"),
    [
        (1, 1, [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (2, 1, [3, 5, 7, 9, 11]),
        (5, 1, [6, 11]),
        (10, 5, [15, 25, 35, 45, 55]),
        (5, 10, [20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120]),
    ],
)
def test_it_measures_at_these_steps(every, increment, steps):
    """The first run starts the clock, as with step-counter."""
    assert measure(ThroughputHook(every), 12, increment=increment).steps == steps


def test_it_is_called_in_two_runs_of_each_period():
    """The one that is measured and the one before; the others cost nothing."""
    called: list[Any] = []

    class Watches(SessionRunHook):
        @hookbus.hookimpl
        def addhooks(self, bus: Any) -> None:
            bus.observe(lambda call: called.append((call.plugin, call.event)))

    measure(ThroughputHook(20), 101, Watches())
    assert called.count(("throughput", "after_run")) == 1 + 2 * 5


@pytest.mark.usefixtures("sleepless")
def test_seconds_are_a_period_too():
    """A measurement comes in the run after the period is over."""
    heard = measure(ThroughputHook(None, 10), 12, step_secs=4)
    assert heard.steps == [5, 9]  # over in steps 4 and 8


@pytest.mark.usefixtures("sleepless")
@pytest.mark.parametrize(("size", "wanted"), [(32, 32), ("x", 8), (None, None)])
def test_examples_are_counted(size, wanted):
    """By a number, or by the first axis of a node."""
    heard = measure(ThroughputHook(3, batch_size=size), 8, step_secs=0.005)
    assert len(heard.values) == 2
    for values in heard.values:
        assert values["steps_per_sec"] == pytest.approx(200)
        each = values.get("examples_per_sec")
        assert each == (wanted and pytest.approx(200 * wanted))


@pytest.mark.usefixtures("sleepless")
def test_waiting_for_an_input_is_told():
    """Three quarters of the time of these steps pass in the input."""
    heard = measure(ThroughputHook(3), 14, step_secs=0.005, input_secs=0.015)
    assert [v["input_wait"] for v in heard.values] == pytest.approx([0.75] * 4)


@pytest.mark.usefixtures("sleepless")
def test_a_custom_loop_waits_between_its_steps():
    """A reported batch size counts; the time of a save is not waited for input."""
    heard = Heard()

    class Saves(SessionRunHook):
        def begin(self, checkpoints: Any) -> None:
            checkpoints.enable("runs")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step == 3:
                run_context.request_save("now")

        @hookbus.hookimpl
        def before_save(self) -> None:
            time.sleep(30)

    hooks = [ThroughputHook(3, batch_size="size"), heard, Saves()]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in range(8):
            time.sleep(0.015)
            with session.step() as step:
                time.sleep(0.005)
                step.report(size=16)
    assert heard.steps == [4, 7]
    for values in heard.values:
        assert values["input_wait"] == pytest.approx(0.75)
        assert values["steps_per_sec"] == pytest.approx(50)
        assert values["examples_per_sec"] == pytest.approx(800)


def test_a_library_tells_how_much_memory_its_devices_hold(monkeypatch, tmp_path):
    """Without one that knows, nothing is measured."""
    source = """
        from hookbus.backend import Library

        class FastLibrary(Library):
            def device_memory(self):
                return 4096
    """
    entry = {"hookbus.library": {"fastlib": "fastlib_plugin:FastLibrary"}}
    fake_dist(tmp_path, "hookbus-fastlib", entry, modules={"fastlib_plugin": source})
    assert "device_memory" not in measure(ThroughputHook(3), 5).values[0]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "fastlib", types.ModuleType("fastlib"))
    assert measure(ThroughputHook(3), 5).values[0]["device_memory"] == 4096


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"every_n_secs": 3.0}, "exactly one of every_n_steps and every_n_secs should be"),
        (
            {"every_n_steps": None},
            "exactly one of every_n_steps and every_n_secs should be",
        ),
        (
            {"batch_size": 0},
            "invalid batch_size=0. ThroughputHook expects a number above 0",
        ),
    ],
)
def test_settings_that_do_not_fit_are_errors(settings, told):
    """As in step-counter."""
    with pytest.raises(UsageError, match=re.escape(told)):
        ThroughputHook(**settings)
