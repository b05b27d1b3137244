"""Defines hooks and wrappers that behave rightly and wrongly, to be stacked in any way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from hookbus.bus.caller import Caller, Implementation
from hookbus.hooks.requests import CurrentHook as Turn


def returns_number(arg: list) -> Any:
    return len(arg)


def returns_zero(arg: list) -> Any:
    return 0


def returns_none(arg: list) -> Any:
    return None


def raises(arg: list) -> Any:
    raise ValueError


def raises_stop(arg: list) -> Any:
    raise StopIteration


def raises_interrupt(arg: list) -> Any:
    raise KeyboardInterrupt


RAISED = (Exception, KeyboardInterrupt)
"""The errors of hooks here; GeneratorExit is Python's, when it drops a generator."""

PLAIN = [
    returns_number,
    returns_zero,
    returns_none,
    raises,
    raises_stop,
    raises_interrupt,
]


def passes(arg: list) -> Generator[None, Any, Any]:
    return (yield)


def drops(arg: list) -> Generator[None, Any, Any]:
    yield
    return []


def replaces(arg: list) -> Generator[None, Any, Any]:
    yield
    return [("replaces", 42)]


def extends(arg: list) -> Generator[None, Any, Any]:
    return [*(yield), ("extends", 43)]


def swallows(arg: list) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except RAISED as error:
        return [("swallows", type(error).__name__)]


def translates(arg: list) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        raise KeyError from error


def reraises(arg: list) -> Generator[None, Any, Any]:
    try:
        result = yield
    except RAISED as error:
        arg.append(type(error).__name__)
        raise
    return result


def raises_before(arg: list) -> Generator[None, Any, Any]:
    raise ValueError
    yield


def raises_after(arg: list) -> Generator[None, Any, Any]:
    yield
    raise ValueError


def stops_before(arg: list) -> Generator[None, Any, Any]:
    raise StopIteration
    yield


def stops_after(arg: list) -> Generator[None, Any, Any]:
    yield
    raise StopIteration


def never_yields(arg: list) -> Generator[None, Any, Any]:
    return
    yield


def yields_twice(arg: list) -> Generator[None, Any, Any]:
    yield
    yield


def swallows_and_yields_twice(arg: list) -> Generator[None, Any, Any]:
    try:
        yield
    except RAISED:
        arg.append("swallowed")
    yield


def fails_when_closed(arg: list) -> Generator[None, Any, Any]:
    yield
    try:
        yield
    finally:
        raise OSError


WRAPPERS = [
    passes,
    drops,
    replaces,
    extends,
    swallows,
    translates,
    reraises,
    raises_before,
    raises_after,
    stops_before,
    stops_after,
    never_yields,
    yields_twice,
    swallows_and_yields_twice,
    fails_when_closed,
]


def traced(place: int, behaviour: Callable[..., Any]) -> Callable[..., Any]:
    """Return *behaviour* as a function that also notes its call in *arg*."""
    if behaviour in WRAPPERS:

        def wrapper(arg: list) -> Generator[None, Any, Any]:
            arg.append(place)
            return (yield from behaviour(arg))

        return wrapper

    def plain(arg: list) -> Any:
        arg.append(place)
        return behaviour(arg)

    return plain


def implementation(
    place: int, behaviour: Callable[..., Any], traces: bool = True
) -> Implementation:
    function = traced(place, behaviour) if traces else behaviour
    return Implementation(
        f"p{place}", f"'p{place}'", function, ("arg",), behaviour in WRAPPERS
    )


def caller(*behaviours: Callable[..., Any], first: bool = False) -> Caller:
    stack = [implementation(place, one) for place, one in enumerate(behaviours)]
    return Caller("event", ("arg",), stack, Turn(), first)
