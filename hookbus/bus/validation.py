"""Checks plugins before any event is called."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookbus.bus.registry import MARK, HookFunction
from hookbus.errors import ArgumentTypeError, PluginError, UsageError, did_you_mean
from hookbus.hooks import hookspecs
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hookspecs import LIFECYCLE
from hookbus.validation import signature_of

Events = Mapping[str, tuple[str, ...]]
"""The names of the arguments of each event."""

_A_SLIP = 0.8
"""The least likeness of a misspelt event, from 0 to 1; ``after_rum`` has 0.88."""


def check_object(
    plugin: Any, label: str, origin: str, functions: Sequence[HookFunction]
) -> None:
    """Check that *plugin* is a hook object or a module.

    Args:
        plugin: the object or module.
        label: its name in messages.
        origin: why it takes part.
        functions: its functions that implement events.

    Raises:
        ArgumentTypeError: it implements no event.
        UsageError: it is a class.
        PluginError: it compares by value.
    """
    if isinstance(plugin, type):
        raise UsageError(
            f"{origin.removesuffix('=')} takes hook objects, and {plugin.__name__} is a "
            f"class: write {plugin.__name__}(...)"
        )
    if not functions and not isinstance(plugin, SessionRunHook | types.ModuleType):
        raise ArgumentTypeError(
            f"{origin} contains {plugin!r}, which is not a hook: it has no method for any "
            "event"
        )
    cls = type(plugin)
    definer = next(c for c in cls.__mro__ if "__eq__" in vars(c))
    if definer is not object:
        raise PluginError(
            f"plugin {label}: {cls.__name__} compares by value, but hooks are compared by "
            "identity: declare it with @attrs.define(eq=False)"
        )


def fault_of(functions: Iterable[HookFunction], events: Events) -> str | None:
    """Return the description of a fault in a plugin's functions, or None."""
    names: dict[str, str] = {}
    for found in functions:
        fault = next(_faults(found, events), None)
        if fault is not None:
            return f"{fault}{_where(found)}"
        other = names.setdefault(found.event, found.name)
        if other != found.name:
            return (
                f"{other}() and {found.name}() both implement {found.event!r}; a plugin "
                f"has one function for an event{_where(found)}"
            )
    return None


def unmarked(plugin: Any, functions: Iterable[HookFunction], events: Events) -> list[str]:
    """Return the functions of a plugin that look like hooks but lack ``@hookimpl``.

    A helper may be called ``logged``. So a function counts only if the plugin itself
    defines it, and if it takes arguments of the event of its name or overrides a marked
    function of a base class.
    """
    marked = {found.name for found in functions}
    return [
        name
        for name in events
        if name not in marked and _looks_like_hook(plugin, name, events[name])
    ]


def misspelt(
    plugin: Any, functions: Iterable[HookFunction], events: Events
) -> dict[str, str]:
    """Return the functions of a plugin that are almost called like an event, and the event.

    A helper may be called ``finish``. So a function counts only if it takes arguments of
    the event. Methods that resemble an event which needs no mark may also take none.
    """
    found = {}
    for name in {n for n in dir(plugin) if not n.startswith("_")} - events.keys():
        function = _unmarked_function(plugin, name)
        event = _resembled(name, tuple(events)) if function is not None else None
        if event is None or name in {found.name for found in functions}:
            continue
        plain = event in LIFECYCLE and not isinstance(plugin, types.ModuleType)
        # Too many names of helpers are one letter away from "end".
        if _takes(function, events[event], some=not plain or event == "end"):
            found[name] = event
    return dict(sorted(found.items()))


@functools.lru_cache
def _resembled(name: str, events: tuple[str, ...]) -> str | None:
    """Return the event from which a name differs by a slip, or None."""
    import difflib  # as did_you_mean does

    plain = {event.replace("_", ""): event for event in events}
    word = name.replace("_", "").lower()
    close = difflib.get_close_matches(word, plain, n=1, cutoff=_A_SLIP)
    return plain[close[0]] if close else None


def _faults(found: HookFunction, events: Events) -> Iterator[str]:
    yield from _faults_of_marks(found, events)
    yield from _faults_of_kind(found)
    if found.event in events:
        yield from _faults_of_parameters(found, events[found.event])


def _faults_of_marks(found: HookFunction, events: Events) -> Iterator[str]:
    options = found.options
    if found.event not in events and not options.get("optionalhook"):
        yield f"{found.event!r} is not an event{did_you_mean(found.event, events)}"
    if options.get("hookwrapper"):
        yield (
            f"{found.name}() is an old-style hookwrapper; use @hookimpl(wrapper=True), and "
            "yield once"
        )
    if options.get("tryfirst") and options.get("trylast"):
        yield f"{found.name}() has both tryfirst and trylast; remove one"


def _faults_of_kind(found: HookFunction) -> Iterator[str]:
    function = found.function
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield f"{found.name}() is async, but events are plain calls: write def"
    elif found.options.get("wrapper"):
        if not inspect.isgeneratorfunction(function):
            yield f"{found.name}() has wrapper=True but no yield; a wrapper yields once"
    elif inspect.isgeneratorfunction(function):
        yield (
            f"{found.name}() yields, so a call of it would do nothing; mark a wrapper "
            "@hookimpl(wrapper=True)"
        )


def _faults_of_parameters(found: HookFunction, known: tuple[str, ...]) -> Iterator[str]:
    receiver = _receiver(found.function)
    if receiver in known:
        yield f"{found.name}() has no self: {receiver!r} would get the hook itself"
    for parameter in found.parameters:
        name = parameter.name
        if parameter.kind is parameter.KEYWORD_ONLY:
            yield (
                f"{found.name}() takes {name!r} by keyword only, but events pass arguments "
                "by position"
            )
        if name not in known and _is_needed(parameter):
            yield (
                f"{found.name}() takes {name!r}, which {found.event!r} does not have; "
                f"it has {', '.join(known) or 'no argument'}{did_you_mean(name, known)}"
            )


def _receiver(function: Any) -> str | None:
    """Return the name of the first parameter of a method, which gets the object."""
    if not inspect.ismethod(function) or isinstance(function.__self__, type):
        return None
    return next(iter(signature_of(function.__func__).parameters), None)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
    )


def _looks_like_hook(plugin: Any, name: str, known: tuple[str, ...]) -> bool:
    function = _unmarked_function(plugin, name)
    if function is None:
        return False
    if any(hasattr(vars(owner)[name], MARK) for owner in _definers(plugin, name)[1:]):
        return True
    if not known:  # a helper would hardly have the name of an event of the core
        return hasattr(hookspecs, name)
    return _takes(function, known)


def _takes(function: Any, known: tuple[str, ...], some: bool = True) -> bool:
    """Return whether an event with the arguments *known* could call a function.

    Args:
        function: the function.
        known: the names of the event's arguments.
        some: whether it has to take at least one of them.
    """
    own = signature_of(function).parameters.values()
    fits = all(p.name in (*known, "self") or not _is_needed(p) for p in own)
    return fits and (not some or any(p.name in known for p in own))


def _unmarked_function(plugin: Any, name: str) -> Any:
    """Return the function that a plugin itself defines without ``@hookimpl``, or None."""
    owners = _definers(plugin, name)
    function = inspect.getattr_static(owners[0], name) if owners else None
    plain = isinstance(function, types.FunctionType) and not hasattr(function, MARK)
    return function if plain else None


def _definers(plugin: Any, name: str) -> list[Any]:
    """Return the module, or the classes, nearest first, that define a function."""
    if isinstance(plugin, types.ModuleType):
        function = vars(plugin).get(name)
        return [plugin] if getattr(function, "__module__", "") == plugin.__name__ else []
    if name in LIFECYCLE:  # these need no mark
        return []
    classes = type(plugin).__mro__
    return [cls for cls in classes if name in vars(cls) and cls is not SessionRunHook]


def _where(found: HookFunction) -> str:
    code = getattr(inspect.unwrap(found.function), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
