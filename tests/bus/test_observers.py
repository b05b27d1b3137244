"""Watching a bus: what observers are told, and what they cannot change."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookbus import (
    Config,
    Graph,
    HookCall,
    HookOptions,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from hookbus.bus.bus import Bus
from hookbus.bus.caller import Caller
from hookbus.bus.observers import Observers
from hookbus.bus.registry import Registration as Member
from hookbus.errors import ArgumentTypeError
from hookbus.hooks.hook_options import ErrorPolicy
from hookbus.hooks.requests import CurrentHook as Turn
from tests.support.behaviours import (
    PLAIN,
    WRAPPERS,
    implementation,
    raises_stop,
    reraises,
    swallows,
)
from tests.support.buses import answering, bus, called


def told(made: Bus) -> list[HookCall]:
    """Observe a bus; return the list that its calls are put into."""
    calls: list[HookCall] = []
    made.observe(calls.append)
    return calls


def test_a_hooks_call_comes_before_that_of_the_whole_event() -> None:
    """Each call is told with plugin, event, arguments and answer; then all together."""
    made = bus(answering(), answering())
    calls = told(made)
    called(made)

    facts = [(c.plugin, c.event, dict(c.arguments), c.result, c.error) for c in calls]
    arguments = {"run_context": "context"}
    assert facts == [
        ("p0", "before_run", arguments, "here", None),
        ("p1", "before_run", arguments, "here", None),
        (None, "before_run", arguments, [("p0", "here"), ("p1", "here")], None),
    ]
    assert not any(call.wrapper for call in calls)


def test_times_are_seconds_of_the_performance_counter() -> None:
    """A call began after the event did, and took as long as it slept at least."""

    class Sleepy:
        def before_run(self) -> None:
            time.sleep(0.02)

    made = bus(Sleepy())
    calls, before = told(made), time.perf_counter()
    called(made)
    one, whole = calls
    assert before <= whole.start <= one.start <= time.perf_counter()
    assert 0.02 <= one.seconds <= whole.seconds


def test_each_after_run_is_told_with_its_own_results() -> None:
    """The run_values of a hook hold what it asked for, those of the whole event nothing."""

    class Asking(SessionRunHook):
        def before_run(self) -> SessionRunArgs:
            return SessionRunArgs("global_step")

        def after_run(self) -> None: ...

    class Watching(SessionRunHook):
        def __init__(self) -> None:
            self.calls: list[HookCall] = []

        @hookimpl
        def addhooks(self, bus: Bus) -> None:
            bus.observe(self.calls.append)

    watching = Watching()
    hooks, config = [watching, Asking()], Config(autoload=False)
    with MonitoredSession(Graph(), hooks=hooks, config=config) as session:
        session.run("global_step")

    after = [call for call in watching.calls if call.event == "after_run"]
    results = {call.plugin: call.arguments["run_values"].results for call in after}
    assert results == {"asking": 0, None: None}
    assert [call.event for call in watching.calls if call.plugin is None] == [
        "begin",
        "after_create_session",
        "before_first_run",
        "before_training",
        "before_run",
        "after_run",
        "end",
        "finished",
    ]


def test_an_error_is_told_and_leaves() -> None:
    """Of a call that raises, the error is told; it goes on its way with its note."""

    class Failing:
        def before_run(self) -> None:
            raise OSError

    made = bus(Failing())
    calls = told(made)
    with pytest.raises(OSError) as info:  # noqa: PT011
        called(made)
    assert [(call.plugin, call.error) for call in calls] == [
        ("p0", info.value),
        (None, info.value),
    ]
    assert info.value.__notes__ == [
        "hookbus: raised by plugin 'p0' (hooks=) in before_run()"
    ]


def test_an_error_that_is_held_back_is_told_too() -> None:
    """A suppressed error is the call's error, and not that of the whole event."""

    class Failing:
        options = HookOptions(on_error="warn")

        def before_run(self) -> None:
            raise OSError

    made = bus(Failing())
    calls = told(made)
    called(made)
    assert [(call.plugin, type(call.error)) for call in calls] == [
        ("p0", OSError),
        (None, type(None)),
    ]


class Around:
    """A wrapper that sleeps before and after its yield."""

    @hookimpl(wrapper=True)
    def before_run(self) -> Generator[None, Any, Any]:
        time.sleep(0.01)
        answers = yield
        time.sleep(0.01)
        return [*answers, ("around", "more")]


def test_a_wrapper_is_timed_without_what_it_wraps() -> None:
    """One call records a wrapper: its own time before and after, and its answer."""

    class Slow:
        def before_run(self) -> str:
            time.sleep(0.2)
            return "slow"

    made = bus(Around(), Slow())
    calls = told(made)
    called(made)
    slow, around, whole = calls

    assert (around.plugin, around.wrapper) == ("p0", True)
    assert 0.02 <= around.seconds < 0.2 <= slow.seconds
    assert around.start < slow.start
    assert around.result == whole.result == [("p1", "slow"), ("around", "more")]


def test_the_time_of_others_is_not_ones_own() -> None:
    """A hook that emits an event is not charged with what others do in it."""

    class Sender:
        def after_run(self, run_context: Any) -> None:
            run_context.emit("measured", values={}, global_step=1)

    class Slow:
        @hookimpl
        def measured(self) -> None:
            time.sleep(0.2)

    made = bus(Sender(), Slow())
    calls = told(made)
    context = type("Context", (), {"emit": staticmethod(made.emit)})()
    made.emit("after_run", run_context=context, run_values=None)
    times = {(call.plugin, call.event): call.seconds for call in calls}

    assert times["p1", "measured"] >= 0.2
    assert times["p0", "after_run"] < 0.2
    assert times[None, "after_run"] >= 0.2


def test_undo_ends_it_at_once() -> None:
    """After undo nothing is told, not even of the event of the moment; twice is once."""
    calls: list[HookCall] = []

    class Undoing:
        def before_run(self) -> None:
            undo()

    made = bus(answering(), Undoing(), answering())
    undo = made.observe(calls.append)
    assert called(made) == ["p0", "p2"]
    assert [call.plugin for call in calls] == ["p0"]
    undo()
    called(made)
    assert len(calls) == 1


def test_an_observer_may_come_in_the_middle_of_an_event() -> None:
    """It is told from the next event on; the one on its way reaches everybody."""
    calls: list[HookCall] = []

    class Starting:
        def before_run(self) -> None:
            made.observe(calls.append)

    made = bus(answering(), Starting(), answering())
    assert called(made) == ["p0", "p2"]
    assert calls == []
    made.emit("planned_last_step")
    assert [call.event for call in calls] == ["planned_last_step"]


def test_several_observers_are_told_each() -> None:
    """A function that is added twice is called twice; each has its own undo."""
    calls: list[HookCall] = []
    made = bus()
    undo, _ = made.observe(calls.append), made.observe(calls.append)
    made.emit("planned_last_step")
    undo()
    made.emit("planned_last_step")
    assert len(calls) == 3


def test_who_does_not_observe_pays_nothing() -> None:
    """Without observers the callers are plain ones, before and after."""
    made = bus(answering())
    assert made.caller("before_run").observers is None
    undo = made.observe(print)
    assert made.caller("before_run").observers is not None
    undo()
    assert made.caller("before_run").observers is None


def test_an_observer_can_be_called() -> None:
    """An observer that cannot be called is refused immediately, not at the first event."""
    made = bus()
    with pytest.raises(ArgumentTypeError, match=r"takes a function, not a int: write"):
        made.observe(3)
    assert made.caller("begin").observers is None


def test_an_observer_that_fails_is_told_no_more(capsys: Any) -> None:
    """An observer ends no session: its error is logged, once."""

    def fails(call: HookCall) -> None:
        raise OSError("full")

    made = bus(answering())
    made.observe(fails)
    calls = told(made)
    assert called(made) == called(made) == ["p0"]
    assert len(calls) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "an observer failed" in line
    assert "fails" in line
    assert "full" in line


def test_configure_is_told_with_each_ones_own_options() -> None:
    """The whole event has the options of all, by plugin."""

    class Set:
        @hookimpl
        def configure(self, options: Any) -> None: ...

    made = Bus()
    calls = told(made)
    made.register(Member("a", Set(), "here", options={"every": 1}))
    made.configure()
    assert [(call.plugin, call.arguments["options"]) for call in calls] == [
        ("a", {"every": 1}),
        (None, {"a": {"every": 1}}),
    ]


Behaviours = list[Callable[..., Any]]


def outcome(make: Callable[..., Caller], behaviours: Behaviours) -> Any:
    """Call a stack of behaviours; return its answers or error, and who was called."""
    stack = [implementation(place, each) for place, each in enumerate(behaviours)]
    caller = make("event", ("arg",), stack, Turn(), False)
    arg: list[Any] = []
    try:
        return caller.collect(arg), arg
    except BaseException as error:
        return type(error), str(error), arg


def observed(*arguments: Any) -> Caller:
    """Make a caller that one observer watches."""
    observers = Observers()
    observers.add(lambda call: None)
    return Caller(*arguments, observers=observers)


@given(st.lists(st.sampled_from(PLAIN + WRAPPERS), max_size=7))
@example([swallows, raises_stop])
@example([reraises, reraises, raises_stop])
def test_observing_changes_nothing(behaviours: Behaviours) -> None:
    """Any stack of hooks and wrappers, a StopIteration in it or not, goes on as ever."""
    assert outcome(observed, behaviours) == outcome(Caller, behaviours)


@given(st.lists(st.sampled_from(PLAIN + WRAPPERS), max_size=7))
@example([reraises, raises_stop])
def test_each_call_that_ran_is_told_once(behaviours: Behaviours) -> None:
    """Nobody is told of twice, and the last one told of is the whole event."""
    calls: list[HookCall] = []
    observers = Observers()
    observers.add(calls.append)
    outcome(partial(Caller, observers=observers), behaviours)
    plugins = [call.plugin for call in calls]
    assert plugins[-1] is None
    assert len(set(plugins)) == len(plugins)
    assert all(call.seconds >= 0 for call in calls)


def test_a_stop_that_passes_a_wrapper_is_told_as_one() -> None:
    """Python would make a RuntimeError of a StopIteration that goes through a generator."""
    calls: list[HookCall] = []
    observers = Observers()
    observers.add(calls.append)
    stack = [implementation(0, reraises), implementation(1, raises_stop)]
    with pytest.raises(StopIteration):
        Caller("event", ("arg",), stack, Turn(), observers=observers).collect([])
    assert [type(call.error) for call in calls] == [StopIteration] * 3


def test_a_wrapper_that_is_held_back_is_told_with_its_error() -> None:
    """A mild wrapper that fails is told of; the event goes on without it."""

    class Failing:
        @hookimpl(wrapper=True)
        def before_run(self) -> Generator[None, Any, Any]:
            yield
            raise OSError

    made = bus(answering())
    made.register(Member("mild", Failing(), "here", policy=ErrorPolicy("warn")))
    calls = told(made)
    assert called(made) == ["p0"]
    assert [(call.plugin, type(call.error)) for call in calls] == [
        ("p0", type(None)),
        ("mild", OSError),
        (None, type(None)),
    ]
