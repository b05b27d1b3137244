"""One event's caller: its order and answers, wrappers as in pluggy, turns and blame."""

from __future__ import annotations

from collections.abc import Callable, Generator
from operator import itemgetter
from typing import Any

import pluggy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.bus.caller import Caller, Implementation
from hookbus.errors import culprit_of
from hookbus.hooks.requests import CurrentHook as Turn
from tests.support.behaviours import (
    PLAIN,
    WRAPPERS,
    caller,
    never_yields,
    passes,
    raises,
    raises_after,
    raises_before,
    raises_interrupt,
    raises_stop,
    reraises,
    returns_none,
    returns_number,
    returns_zero,
    swallows,
    traced,
    yields_twice,
)
from tests.support.profiles import examples

spec, impl = pluggy.HookspecMarker("differ"), pluggy.HookimplMarker("differ")


class Spec:
    @spec
    def event(self, arg: Any) -> None: ...


class FirstSpec:
    @spec(firstresult=True)
    def event(self, arg: Any) -> None: ...


def ours(behaviours: list[Callable[..., Any]], first: bool) -> tuple[Any, list]:
    arg: list = []
    try:
        answers = caller(*behaviours, first=first).collect(arg)
    except BaseException as error:
        return type(error), arg
    return [value for _, value in answers], arg


def pluggys(behaviours: list[Callable[..., Any]], first: bool) -> tuple[Any, list]:
    manager = pluggy.PluginManager("differ")
    manager.add_hookspecs(FirstSpec if first else Spec)
    # pluggy calls the last registered first, hookbus the first.
    for place, behaviour in reversed(list(enumerate(behaviours))):
        plugin = type("Plugin", (), {})()
        plugin.event = impl(wrapper=behaviour in WRAPPERS)(traced(place, behaviour))
        manager.register(plugin)
    arg: list = []
    try:
        answers = manager.hook.event(arg=arg)
    except BaseException as error:
        return type(error), arg
    if first and not isinstance(answers, list):
        answers = [] if answers is None else [answers]
    # A wrapper's own answers are also pairs here.
    return [a[1] if isinstance(a, tuple) else a for a in answers], arg


@settings(deadline=None, max_examples=examples(400))
@given(st.lists(st.sampled_from(PLAIN + WRAPPERS), max_size=7))
@example([swallows, yields_twice])
@example([swallows, raises_stop])
@example([reraises, reraises, raises_stop])
@example([swallows, never_yields, returns_number])
def test_a_stack_behaves_as_in_pluggy(behaviours: list[Callable[..., Any]]) -> None:
    """Any stack of hooks and wrappers gives pluggy's answers or its exception type.

    Equal is also who is called, in which order.
    """
    assert ours(behaviours, first=False) == pluggys(behaviours, first=False)


@settings(deadline=None)
@given(st.lists(st.sampled_from([*PLAIN, passes, reraises]), max_size=7))
def test_the_first_result_ends_the_call_as_in_pluggy(
    behaviours: list[Callable[..., Any]],
) -> None:
    """Where an event wants one answer, those after the first that has one are not asked."""
    assert ours(behaviours, first=True) == pluggys(behaviours, first=True)


def test_answers_bear_names_and_none_is_left_out() -> None:
    """Each answer comes as (plugin, value), in calling order; 0 is an answer."""
    answers = caller(returns_number, returns_none, returns_zero).collect([])
    assert answers == [("p0", 1), ("p2", 0)]


def test_an_implementation_gets_only_the_arguments_it_names() -> None:
    """A function that names some arguments of its event, in any order, gets those."""
    wants = Implementation("p", "'p'", lambda c, a: (c, a), ("c", "a"))
    assert wants.bind(("a", "b", "c"))(1, 2, 3) == (3, 1)
    nothing = Implementation("p", "'p'", lambda: "called", ())
    assert nothing.bind(("a", "b"))(1, 2) == "called"


def test_each_is_delivered_its_own_entry() -> None:
    """Deliver hands out own results, wrappers' too, and to all others None."""
    seen = {}

    def plain(name: str) -> Callable[..., None]:
        return lambda context, values: seen.update({name: (context, values)})

    def wrapper(context: Any, values: Any) -> Generator[None, Any, Any]:
        seen["w"] = (context, values)
        return (yield)

    both = ("context", "values")
    stack = [
        Implementation("a", "'a'", plain("a"), both),
        Implementation("w", "'w'", wrapper, both, wrapper=True),
        Implementation("b", "'b'", plain("b"), both),
    ]
    deliver = Caller("after_run", both, stack, Turn()).deliver
    options, metadata = RunOptions(), RunMetadata()
    splits = {"b": itemgetter(0), "w": itemgetter(1)}
    deliver("context", splits, [2, 3], (options, metadata, 7))

    assert {name: values.results for name, (_, values) in seen.items()} == {
        "a": None,
        "b": 2,
        "w": 3,
    }
    for context, values in seen.values():
        common = (values.options, values.run_metadata, values.global_step)
        assert (context, *common) == ("context", options, metadata, 7)


def test_the_turn_names_who_is_called_and_goes_back() -> None:
    """While a hook or a wrapper's part runs it is its turn; afterwards the caller's."""
    turn, seen = Turn(), []

    def wrapper() -> Generator[None, Any, Any]:
        seen.append(turn.name)
        try:
            yield
        finally:
            seen.append(turn.name)

    def plain() -> None:
        seen.append(turn.name)
        raise ValueError

    stack = [
        Implementation("w", "'w'", wrapper, (), wrapper=True),
        Implementation("p", "'p'", plain, ()),
    ]
    with pytest.raises(ValueError):  # noqa: PT011
        Caller("event", (), stack, turn).collect()

    assert seen == ["w", "p", "w"]
    assert turn.name == "caller"


def test_an_error_names_the_plugin_and_the_event() -> None:
    """An exception out of a hook carries one note: plugin and event."""
    with pytest.raises(ValueError) as info:  # noqa: PT011
        caller(returns_number, reraises, raises).collect([])
    assert info.value.__notes__ == ["hookbus: raised by plugin 'p2' in event()"]
    assert culprit_of(info.value) == "p2"


@pytest.mark.parametrize(
    ("behaviour", "what"), [(never_yields, "did not yield"), (yields_twice, "second yield")]
)
def test_a_wrapper_that_yields_wrongly_is_named(behaviour: Any, what: str) -> None:
    """The message says whose wrapper it was, for which event, and the rule."""
    with pytest.raises(RuntimeError, match=f"'p1' for event.*{what}.*yields exactly once"):
        caller(returns_zero, behaviour).collect([])


def visited(stack: Caller, arg: list[int], only: set[str]) -> list[tuple[str, type]]:
    """Visit the hooks named in *only*; return each failure's plugin and type."""
    failures = stack.visit_all((arg,), lambda name: (arg,) if name in only else None)
    return [(name, type(error)) for name, error in failures]


def test_a_visit_that_takes_failures_calls_all_though_some_raise() -> None:
    """All hooks are called, and each error is kept with its plugin."""
    arg: list = []
    stack = caller(raises, returns_zero, raises_interrupt, returns_none)
    failures = visited(stack, arg, {"p0", "p1", "p2", "p3"})

    assert arg == [0, 1, 2, 3]
    assert failures == [("p0", ValueError), ("p2", KeyboardInterrupt)]


def test_a_visit_calls_only_those_named() -> None:
    """A visit leaves out the plugins and wrappers that it is not to call."""
    arg: list = []
    stack = caller(passes, returns_zero, returns_none, passes)
    assert visited(stack, arg, {"p2", "p3"}) == []
    assert arg == [3, 2]


def test_a_visit_of_nobody_calls_nobody() -> None:
    """Where no hook began, none is told of the end."""
    arg: list = []
    assert visited(caller(passes, returns_zero), arg, set()) == []
    assert arg == []


def test_a_visit_reports_a_wrapper_that_raises() -> None:
    """An error of a wrapper is reported under its name, and the hooks are still called."""
    arg: list = []
    failures = visited(caller(raises_after, returns_zero), arg, {"p0", "p1"})
    assert failures == [("p0", ValueError)]
    assert arg == [0, 1]


def test_a_visit_calls_the_hooks_though_a_wrapper_fails_before_its_yield() -> None:
    """All hooks are called though a wrapper raises before they come."""
    arg: list = []
    stack = caller(raises_before, passes, returns_zero)
    assert visited(stack, arg, {"p0", "p1", "p2"}) == [("p0", ValueError)]
    assert 2 in arg


def test_a_visit_asks_for_arguments_just_before_each_call() -> None:
    """The arguments of the hook that raises were asked for, and those after it not."""
    started: set[str] = set()

    def args_of(name: str) -> tuple[list[int]]:
        started.add(name)
        return ([],)

    with pytest.raises(ValueError):  # noqa: PT011
        caller(returns_zero, raises, returns_none).visit(([],), args_of)
    assert started == {"p0", "p1"}
