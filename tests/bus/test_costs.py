"""Tests that the cost of hooks is added up, and that some of them keep to a budget."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_logging_tensor import LoggingTensorHook

from hookbus import (
    AbortedError,
    Config,
    Due,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    hookimpl,
)
from hookbus.config.parser import Precedence
from hookbus.errors import ArgumentTypeError
from hookbus.hooks.hook_options import options_of
from hookbus.testing import fake_dist, run_steps
from tests.support.watching import clock as clock
from tests.support.watching import lines as lines

QUIET = Config(autoload=False, header=False)
LESS = "hook above its budget; from now on it runs less often"
CANNOT = "hook above its budget; it cannot run less often"


@pytest.fixture
def take(clock, monkeypatch):
    """Return the function that takes time: so many seconds of a clock that else stands."""
    monkeypatch.setattr(time, "perf_counter", time.monotonic)

    def take(seconds: float) -> None:
        clock[0] += seconds

    return take


class Slow(SessionRunHook):
    """Takes a second in each of its runs, and wants one in every so many."""

    def __init__(self, take: Any, every: int = 1, **answers: Any) -> None:
        self.take, self.every, self.answers = take, every, answers
        self.ended: list[int] = []
        self.runs = 0

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(**self.answers) if self.answers else Due(global_step + self.every)

    @hookimpl
    def idled(self, runs: int) -> None:
        self.runs += runs

    def after_run(self, run_values: Any) -> None:
        self.take(1.0)
        self.runs += 1
        self.ended.append(run_values.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Patient(Slow):
    """A hook that can wait."""

    options = HookOptions(can_wait=True)


def graph_of(take: Any, **ops: float) -> Graph:
    """Return a graph whose train op takes a second, and further ops as many as given."""
    graph = Graph()
    graph.variable("w", 0)

    @graph.train_op(updates="w")
    def train(w):
        take(1.0)
        return w + 1

    for name, seconds in ops.items():
        graph.op(lambda seconds=seconds: take(seconds), name=name)
    return graph


def train(graph: Graph | None, *hooks: Any, steps: int = 60, take: Any = None, **more: Any):
    """Train for some steps with a budget of a tenth, in a graph or in a custom loop."""
    settings: dict[str, Any] = {"hook_budget": 0.1, "config": QUIET, **more}
    with MonitoredSession(graph, hooks=hooks, **settings) as session:
        for _ in range(steps):
            if graph is not None:
                session.run("train")
                continue
            with session.step() as step:
                take(1.0)
                step.report(loss=1.0, score=lambda: take(5.0))
    return session


def events(lines: list[dict[str, Any]], event: str) -> Iterator[dict[str, Any]]:
    """Yield the log lines of an event, without its name and level."""
    for line in lines:
        if line["event"] == event:
            yield {k: v for k, v in line.items() if k not in ("event", "log_level")}


@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_hook_that_can_wait_runs_less_often(take, lines, custom_loop):
    """After three runs its share is known; then it waits a power of two as long."""
    hook = Patient(take)
    train(None if custom_loop else graph_of(take), hook, take=take)
    assert hook.ended == [1, 2, 3, 4, 20, 36, 52]
    assert [*events(lines, LESS)] == [
        {"plugin": "patient", "share": "50%", "budget": "10%", "interval": "16 steps"}
    ]
    told = list(events(lines, "hook costs"))
    assert told == [
        {"share": "10.4%", "secs": 67.0, "most": "patient 10.4%", "budget": "10%"}
    ]


@pytest.mark.parametrize("kind", [MonitoredTrainingSession, SingularMonitoredSession])
def test_every_session_takes_a_budget(take, lines, kind):
    """The argument has one name in all of them."""
    hook = Patient(take)
    with kind(graph_of(take), hooks=[hook], hook_budget=0.1, config=QUIET) as session:
        for _ in range(10):
            session.run("train")
    assert hook.ended == [1, 2, 3, 4]


def test_a_hook_that_runs_less_often_counts_all_runs(take):
    """It is told of those that left it out, as any hook that waits."""
    hook = Patient(take)
    train(graph_of(take), hook)
    assert hook.ended[-1] == hook.runs == 52


def test_a_hook_may_ask_for_runs_or_for_a_time(take, lines):
    """Both are stretched; a time that has come already counts as the time between runs."""
    runs, seconds = Patient(take, runs=1), Patient(take, time=0.0)
    train(graph_of(take), runs)
    assert runs.ended == [1, 2, 3, 4, 20, 36, 52]
    train(graph_of(take), seconds)
    assert seconds.ended == [1, 2, 3, 4, 36]
    intervals = [line["interval"] for line in events(lines, LESS)]
    assert intervals == ["16 steps", "32 seconds"]


def test_a_hook_that_is_always_due_cannot_run_less_often(take):
    """A step that has come already leaves nothing to stretch."""
    hook = Patient(take, step=0)
    train(graph_of(take), hook, steps=20)
    assert hook.ended == [*range(1, 21)]


def test_a_hook_that_cannot_wait_is_named_once(take, lines):
    """It runs as often as before, and so does one that has no schedule."""

    class Sleepy(SessionRunHook):
        options = HookOptions(can_wait=True)
        runs = 0

        def before_run(self) -> None:
            take(1.0)
            self.runs += 1

    hook, sleepy = Slow(take), Sleepy()
    train(graph_of(take), hook, sleepy, steps=300)
    assert len(hook.ended) == sleepy.runs == 300
    assert [*events(lines, LESS)] == []
    assert [*events(lines, CANNOT)] == [
        {"plugin": "slow", "share": "33.3%", "budget": "10%"},
        {"plugin": "sleepy", "share": "33.3%", "budget": "10%"},
    ]


def test_a_hook_below_the_budget_runs_as_often_as_it_asks(take, lines):
    """And nothing but the last line is logged."""
    hook = Patient(take, every=20)
    train(graph_of(take), hook, steps=200)
    assert hook.ended == [1, *range(21, 200, 20)]
    assert [line["event"] for line in lines] == ["session ended", "hook costs"]


def test_without_a_budget_hooks_are_called_directly(take, lines):
    """Nothing is measured, nothing stands between the bus and a hook, nothing is told."""
    hook = Patient(take)
    session = train(graph_of(take), hook, hook_budget=None)
    assert hook.ended == [*range(1, 61)]
    assert [line["event"] for line in lines] == ["session ended"]
    ((_, call),) = session._state.bus.caller("idled").rows
    assert call == hook.idled
    with_budget = train(graph_of(take), Slow(take), steps=10)
    ((_, call),) = with_budget._state.bus.caller("idled").rows
    assert call != hook.idled


class Fetches(Patient):
    """Fetches a node that takes long, and itself takes no time."""

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("score")

    def after_run(self, run_values: Any) -> None:
        self.ended.append(run_values.global_step)


@pytest.mark.parametrize("custom_loop", [False, True])
def test_what_a_fetch_takes_counts(take, lines, custom_loop):
    """In comparison with a run without it, from the second such run on."""
    hook = Fetches(take, every=4)
    graph = None if custom_loop else graph_of(take, score=5.0)
    train(graph, hook, steps=90, take=take)
    assert hook.ended == [1, 5, 9, 13, 77]
    (line,) = events(lines, LESS)
    assert line == {
        "plugin": "fetches",
        "share": "55.6%",  # 3 times 5 of 27 seconds
        "budget": "10%",
        "interval": "64 steps",
    }


def test_on_a_device_only_the_calls_count(take, lines, tmp_path, monkeypatch):
    """A fetch waits for the steps before it, and nobody can tell how long."""
    source = """
        from hookbus.backend import Library

        class FastLibrary(Library):
            def device_memory(self):
                return 4096
    """
    entry = {"hookbus.library": {"fastlib": "fastlib_plugin:FastLibrary"}}
    fake_dist(tmp_path, "hookbus-fastlib", entry, modules={"fastlib_plugin": source})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "fastlib", types.ModuleType("fastlib"))
    hook = Fetches(take, every=4)
    train(graph_of(take, score=5.0), hook)
    assert hook.ended == [*range(1, 60, 4)]
    assert [*events(lines, LESS)] == []


def test_a_checkpoint_is_the_cost_of_who_asked_for_it(take, lines, tmp_path):
    """The work of hooks around it counts as theirs."""

    class Thing:
        def state_dict(self) -> dict[str, int]:
            take(2.0)
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    class Around(SessionRunHook):
        @hookimpl
        def before_save(self) -> None:
            take(1.0)

    saver = CheckpointSaverHook(str(tmp_path), save_steps=5)
    with MonitoredSession(
        hooks=[saver, Around()], hook_budget=0.1, config=QUIET
    ) as session:
        session.track(thing=Thing())
        for _ in range(10):
            with session.step():
                take(1.0)
    (line,) = events(lines, "hook costs")
    # at steps 0, 5 and 10: two or more seconds for the thing, and one for Around
    assert line["most"].startswith("checkpoint-saver ")
    assert ", around 1" in line["most"]
    assert line["share"] == f"{100 * (line['secs'] - 10) / line['secs']:.3g}%"


def test_an_event_that_a_hook_sends_is_the_cost_of_who_gets_it(take, lines):
    """Each second counts once, also inside a wrapper."""

    class Sends(SessionRunHook):
        def after_run(self, run_context: Any) -> None:
            take(1.0)
            run_context.emit("measured", values={}, global_step=1)
            take(1.0)

    class Gets(SessionRunHook):
        @hookimpl
        def measured(self) -> None:
            take(5.0)

    class Wraps(SessionRunHook):
        @hookimpl(wrapper=True)
        def measured(self) -> Iterator[None]:
            take(1.0)
            yield
            take(2.0)

        @hookimpl(wrapper=True)
        def before_run(self) -> Any:
            answers = yield
            take(1.0)
            return answers

    train(graph_of(take), Sends(), Gets(), Wraps(), steps=4)
    (line,) = events(lines, "hook costs")
    assert line["secs"] == 4 * 12
    assert line["most"] == "gets 41.7%, wraps 33.3%, sends 16.7%"
    assert line["share"] == "91.7%"


def test_a_failing_hook_counts(take, lines):
    """An error on its way through a call does not lose its time."""

    class Fails(SessionRunHook):
        options = HookOptions(on_error="warn")

        def after_run(self) -> None:
            take(1.0)
            raise OSError("disk")

    train(graph_of(take), Fails(), steps=3)
    (line,) = events(lines, "hook costs")
    assert line["most"] == "fails 50%"


def test_a_session_that_recovers_keeps_the_new_interval(take):
    """The hook runs at once in the new backend session, and waits as before then."""
    hook, failed = Patient(take), []

    class Preempts(SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            if run_context.global_step == 4 and not failed:
                failed.append(1)
                raise AbortedError("gone")

    train(graph_of(take), hook, Preempts(), recovery=Recovery(first_wait=0.0))
    # without a checkpoint all steps are repeated
    assert hook.ended == [1, 2, 3, 4, 1, 17, 33, 49]


def test_a_resumed_session_begins_with_the_interval_of_the_hook(take, tmp_path):
    """The budget changes no state; nothing of it is in a checkpoint."""
    first, second = Patient(take), Patient(take)
    more: dict[str, Any] = {"hook_budget": 0.1, "directory": tmp_path, "config": QUIET}
    graph = lambda: _Ticking(take)  # noqa: E731
    run_steps(first, steps=30, graph=graph, **more)
    run_steps(second, steps=30, graph=graph, **more)
    assert first.ended[:5] == [1, 2, 3, 4, 20]
    assert second.ended[:5] == [31, 32, 33, 34, 50]


class _Ticking(Graph):
    """A graph whose input takes a second."""

    def __init__(self, take: Any) -> None:
        super().__init__()
        self.take = take

    def input(self, name: str, factory: Any, **more: Any) -> Any:
        def ticking() -> Iterator[Any]:
            for value in factory():
                self.take(1.0)
                yield value

        return super().input(name, ticking, **more)


def test_a_hook_that_runs_less_often_is_not_asked_in_between(take):
    """An event that it gets does not bring it back earlier."""

    class Hears(Patient):
        @hookimpl
        def measured(self) -> None: ...

    class Measures(SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.emit("measured", values={}, global_step=run_values.global_step)

    hook = Hears(take)
    train(graph_of(take), hook, Measures())
    assert hook.ended == [1, 2, 3, 4, 20, 36, 52]


def test_a_slow_report_keeps_to_the_budget():
    """With real time: a formatter that sleeps is called a few times, not each time."""

    def reports(budget: float | None) -> int:
        texts: list[Any] = []

        def slow(values: Any) -> str:
            time.sleep(0.004)
            texts.append(values)
            return "slow"

        hook = LoggingTensorHook("loss", every_n_iter=1, formatter=slow)
        run_steps(hook, steps=40, hook_budget=budget)
        return len(texts)

    assert reports(0.02) <= 8
    assert reports(None) == 40


def test_the_built_in_hooks_that_can_wait():
    """Those that nothing depends on, and no saver, no stop and no guard."""
    found = {
        entry.name
        for entry in entry_points(group="hookbus")
        if entry.attr and entry.dist.name.startswith("hookbus-")
        if options_of(entry.load()).can_wait
    }
    watching = {"logging-tensor", "progress", "step-counter", "summary-saver"}
    assert found == watching | {"live", "metrics-writer"}


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, float("nan")])
def test_a_budget_is_a_share(share):
    """Neither nothing nor everything, and no number of percent."""
    with pytest.raises(UsageError, match=r"hook_budget is a share above 0 and below 1"):
        MonitoredSession(Graph(), hook_budget=share, config=QUIET)
    with pytest.raises(UsageError, match=r"Config\(hook_budget=\) is a share above 0"):
        MonitoredSession(Graph(), config=Config(hook_budget=share))


@pytest.mark.parametrize("share", ["2%", True])
def test_a_budget_is_a_number(share):
    """Text is for flags."""
    with pytest.raises(ArgumentTypeError, match=r"hook_budget must be a number like 0\.02"):
        MonitoredSession(Graph(), hook_budget=share, config=QUIET)


def test_the_strongest_place_sets_the_budget(tmp_path):
    """The environment beats the argument, which beats the file."""
    (tmp_path / "hookbus.toml").write_text("hook_budget = '5%'\n")
    file = Config.from_environment({}, tmp_path)
    environment = Config.from_environment(
        {"HOOKBUS_ADDOPTS": "--hook-budget 0.25"}, tmp_path
    )
    assert (file.budget(None), file.budget(0.1)) == (0.05, 0.1)
    assert (environment.budget(None), environment.budget(0.1)) == (0.25, 0.25)
    assert environment.hook_budget_place is Precedence.ENVIRONMENT
    assert Config().budget(None) is None
    assert Config(hook_budget=0.3).budget(None) == 0.3
