"""Defines the bus as a hook sees it: events, the dicts in them, and reports of calls."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

import attrs

from hookbus.backend.read_only import protected


@attrs.frozen(eq=False)
class HookCall:
    """One call of one hook, or of all hooks of an event.

    Attributes:
        plugin: the hook's name; None for the whole event, all hooks together.
        event: the event's name.
        arguments: all arguments of the event, by name, whether the hook takes them or
            not. The ``run_values`` of the whole ``after_run`` have no results.
        result: the answer of the hook; for the whole event a list of pairs (plugin,
            answer), or None for an event that takes no answer.
        error: the exception that the hook raised, even if ``on_error`` suppressed it; or
            None.
        start: when the call began, in seconds of ``time.perf_counter``.
        seconds: the hook's own time, without the hooks to which it sent an event, and for
            a wrapper without the calls that it wraps.
        wrapper: whether the hook is a wrapper.

    >>> from hookbus import SessionRunHook
    >>> from hookbus.testing import run_steps
    >>> class BeginHook(SessionRunHook):
    ...     def begin(self, graph):
    ...         return None
    >>> calls = run_steps(BeginHook(), steps=1).calls
    >>> [(call.plugin, call.event) for call in calls if call.plugin == "begin"]
    [('begin', 'begin')]
    """

    plugin: str | None
    event: str
    arguments: Mapping[str, Any]
    result: Any
    error: BaseException | None
    start: float
    seconds: float
    wrapper: bool = False


class EventBus(Protocol):
    """Declares events, emits them and reports calls; hooks get it in ``addhooks``.

    :class:`hookbus.Bus` is the one that a session has.
    """

    def add_events(self, module_or_class: types.ModuleType | type) -> None:
        """Declare events: the functions of *module_or_class* marked ``@hookspec``."""

    def emit(self, event: str, /, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers without the Nones."""

    def around(self, event: str, /, **arguments: Any) -> AbstractContextManager[None]:
        """Send an event around a block: wrappers of the event surround it."""

    def observe(self, callback: Callable[[HookCall], object]) -> Callable[[], None]:
        """Report every call to *callback* from now on; return a function that stops it."""


class SharedDict(dict[Any, Any]):
    """A dict that all hooks get, so none of them may change it.

    It is a dict, so that JSON and comparisons take it as one. Its copies can be changed.

    >>> SharedDict(loss=0.5)["loss"] = 1.0
    Traceback (most recent call last):
    TypeError: all hooks get this dict: make a copy, like dict(values), and change that
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "all hooks get this dict: make a copy, like dict(values), and change that"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def shared(values: Mapping[Any, Any]) -> SharedDict:
    """Return a mapping as all hooks get it; its parts are protected."""
    return SharedDict({key: _shared_part(part) for key, part in values.items()})


def _shared_part(part: Any) -> Any:
    return shared(part) if part.__class__ is dict else protected(part)
