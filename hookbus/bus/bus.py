"""Keeps the hooks of a session, and the order in which each event reaches them."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import WeakSet

from hookbus.bus.caller import Caller
from hookbus.bus.clock import TrainingClock
from hookbus.bus.costs import HookCosts
from hookbus.bus.error_policy import ErrorGuard, FailureLog
from hookbus.bus.observers import Observers, Tracer
from hookbus.bus.ordering import (
    GROUPS,
    OrderedHook,
    OrderHints,
    arrange,
    check_groups,
    check_names,
)
from hookbus.bus.registry import HookFunction, Implementation, Registration, Registry
from hookbus.bus.validation import check_object, fault_of, misspelt, unmarked
from hookbus.errors import ArgumentTypeError, PluginError, UsageError, did_you_mean
from hookbus.hooks import hookspecs
from hookbus.hooks.event_bus import HookCall, shared
from hookbus.hooks.hook_options import RAISE, Kind, check_kind, options_of
from hookbus.hooks.requests import CurrentHook
from hookbus.logs import log
from hookbus.process.forks import ForkGuard

_told: ContextVar[frozenset[int]] = ContextVar("told", default=frozenset())
"""The identities of the hooks that are told of the evaluation that is under way."""


class Follower(Protocol):
    """Keeps data that depend on the hooks of a bus."""

    def invalidate(self) -> None:
        """Update the data before their next use: hooks have changed, or got an event."""


class Bus:
    """The hooks of one session.

    Every event calls hooks in the order of registration. ``tryfirst``, ``trylast`` and
    ``wrapper`` apply as in pluggy; within each of these groups, ``before = (NAME, ...)``
    and ``after`` change the order.

    Args:
        kind: the kind of the session.
        budget: the share of the time that each hook may take; None does not measure it.
        fork_guard: detects a forked child of the process that opened the session.

    >>> from hookbus import hookimpl
    >>> from hookbus.testing import bus_with
    >>> class SpeedHook:
    ...     @hookimpl
    ...     def measured(self, values, global_step):
    ...         print(global_step, values)
    >>> bus = bus_with(SpeedHook())
    >>> _ = bus.emit("measured", values={"steps/sec": 9.5}, global_step=20)
    20 {'steps/sec': 9.5}
    """

    def __init__(
        self,
        kind: Kind = "train",
        budget: float | None = None,
        fork_guard: ForkGuard | None = None,
    ) -> None:
        self.kind = kind
        self.current: CurrentHook = CurrentHook()
        self.clock: TrainingClock = TrainingClock()
        self.evaluation: str | None = None
        """The name of the evaluation that is under way; None without one or its name."""
        self._members: dict[str, Registration] = {}
        self._hints: dict[str, OrderHints] = {}
        self._guards: dict[str, ErrorGuard] = {}
        self.failures: FailureLog = FailureLog(self.current, self._members)
        self.costs: HookCosts | None = (
            None if budget is None else HookCosts(budget, self._members)
        )
        self._registry = Registry()
        self._registry.declare(hookspecs)
        self.tracer: Tracer | None = None
        """Adds up the time of each hook; None before :meth:`trace`."""
        self._observers = Observers()
        self._callers: dict[tuple[str, Kind], Caller] = {}
        self._compiled: WeakSet[Caller] = WeakSet()
        self._fork_guard = fork_guard or ForkGuard()
        self._followers: WeakSet[Follower] = WeakSet()
        self.version: int = 0
        """How often its hooks or observers have changed."""
        self.changes: int = 0
        """How often something has happened after which hooks may be due earlier."""
        self.changed: dict[str, int] = {}
        """The last of these that reached a hook, by name; none if it is not there."""

    def follow(self, follower: Follower) -> None:
        """Tell *follower* from now on when hooks have changed or may be due earlier."""
        self._followers.add(follower)

    @property
    def members(self) -> Mapping[str, Registration]:
        """All hooks by name, in the order of registration."""
        return dict(self._members)

    def is_everywhere(self, name: str) -> bool:
        """Return whether a hook takes part in all processes."""
        return options_of(self._members[name].plugin).ranks == "all"

    @property
    def events(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each event's arguments, by the event's name."""
        return dict(self._registry.parameters)

    def check_order(self) -> None:
        """Check that the order that hooks ask for is possible.

        Raises:
            PluginError: their ``before`` and ``after`` contradict each other.
        """
        check_names(self._hints)
        if not any(hints.before or hints.after for hints in self._hints.values()):
            return  # any order is possible
        kinds = [self.kind, *(k for m in self._members.values() for k in m.kinds or ())]
        groups = {
            kind: {event: self._groups(event, kind) for event in self._registry.parameters}
            for kind in dict.fromkeys(kinds)
        }
        check_groups(groups[self.kind], self._hints)

    def order(self, event: str, kind: Kind | None = None) -> list[OrderedHook]:
        """Return the hooks of an event in calling order, each with its reasons.

        Each has ``plugin``, ``label``, ``origin``, ``group`` (``wrapper``, ``tryfirst``,
        ``trylast`` or nothing), and ``because``: the ``before`` and ``after`` that apply.

        Args:
            event: the event's name.
            kind: the kind of the run, by default the session's.

        Raises:
            UsageError: there is no such kind.
            PluginError: there is no such event, or the order is impossible.
        """
        groups = self._groups(event, kind or self.kind)
        found = []
        for name, group in groups.items():
            member, hints = self._members[name], self._hints[name].pairs()
            because = tuple(f"{key}={n}" for key, n in hints if groups.get(n) == group)
            ranks = options_of(member.plugin).ranks
            found.append(
                OrderedHook(name, member.label, member.origin, group, because, ranks)
            )
        return found

    def add_events(self, module_or_class: types.ModuleType | type) -> None:
        """Declare events: the functions of *module_or_class* marked ``@hookspec``.

        Raises:
            PluginError: there is no such function, the event is already declared, or a
                registered implementation does not match it.
        """
        self._registry.declare(module_or_class)

    def observe(self, callback: Callable[[HookCall], object]) -> Callable[[], None]:
        """Call *callback* after every call of a hook, with its answer, error and time.

        The callback gets one :class:`hookbus.HookCall` per hook, and then one for the whole
        event. Without an observer this costs nothing. A callback that raises is not called
        again.

        Returns:
            A function that removes the callback.

        Raises:
            ArgumentTypeError: *callback* is not callable.

        >>> bus, calls = Bus(), []
        >>> undo = bus.observe(calls.append)
        >>> bus.emit("planned_last_step")
        []
        >>> [(call.plugin, call.event, call.result) for call in calls]
        [(None, 'planned_last_step', [])]
        >>> undo()
        """
        if not callable(callback):
            raise ArgumentTypeError(
                f"observe() takes a function, not a {type(callback).__name__}: write "
                "bus.observe(calls.append)"
            )
        forget = self._observers.add(callback)
        self._changed()

        def undo() -> None:
            forget()
            self._changed()

        return undo

    def trace(self) -> None:
        """Add up the time of each hook, in :attr:`tracer`."""
        self.tracer = Tracer()
        self.observe(self.tracer.take)

    def register(self, *members: Registration) -> None:
        """Register hooks. ``addhooks`` is called on each of them before any is registered.

        Raises:
            UsageError: a hook object is already registered.
            PluginError: a name is already used, an implementation does not match its event,
                an object compares by value, or a hook asks to be called before itself.
        """
        functions = {}
        _check_names([*self._members.values(), *members])
        for member in members:
            functions[member] = found = self._registry.found_in(member.plugin)
            check_object(member.plugin, member.label, member.origin, found)
            self._set_guard(member)
            if any(function.event == "addhooks" for function in found):
                self._add_hooks(member)
        for member in members:
            self._register(member, functions[member])
        self._changed()

    def unregister(self, name: str) -> None:
        """Unregister a hook.

        Raises:
            KeyError: there is no hook of that name.
        """
        self._registry.unregister(self._members.pop(name).plugin)
        self._guards.pop(name, None)
        del self._hints[name]
        self._changed()

    def abandon_after_fork(self) -> None:
        """Reach no hook any more, in a forked child, even in an event that is under way."""
        for caller in self._compiled:
            caller.cut_off()
        self._changed()

    def guard(self, name: str) -> ErrorGuard | None:
        """Return the guard of a hook's errors, or None if they end the session."""
        return self._guards.get(name)

    def configure(self) -> None:
        """Pass each hook the values of the settings that it declared in ``addoption``."""
        members = self._members.items()
        given = {name: m.options for name, m in members if m.options is not None}

        def values_of(name: str) -> tuple[Any, ...] | None:
            return (given[name],) if name in given else None

        if given:
            self.caller("configure").visit((given,), values_of)

    def caller(self, event: str, kind: Kind | None = None) -> Caller:
        """Return the compiled caller of an event, for runs of *kind*, to send the event.

        Raises:
            UsageError: there is no such kind.
            PluginError: there is no such event.
            ForkedSessionError: this process is a forked child.
        """
        key = (event, kind or self.kind)
        if key not in self._callers:
            self._callers[key] = self.compile(event, self.implementations(*key))
        caller = self._callers[key]
        self._note_change()
        self.changed |= dict.fromkeys(caller.names, self.changes)
        return caller

    def compile(self, event: str, implementations: Sequence[Implementation]) -> Caller:
        """Return a caller of some implementations of an event, in this order.

        Raises:
            ForkedSessionError: this process is a forked child.
        """
        self._fork_guard.check()
        caller = Caller(
            event,
            self._registry.parameters[event],
            implementations,
            self.current,
            first_result=self._registry.is_first_result(event),
            answers=self._registry.takes_answers(event),
            observers=self._observers or None,
            costs=self.costs,
        )
        self._compiled.add(caller)
        return caller

    def implementations(self, event: str, kind: Kind) -> list[Implementation]:
        """Return an event's implementations for runs of *kind*, in calling order.

        Raises:
            UsageError: there is no such kind.
            PluginError: there is no such event.
        """
        if event not in self._registry.parameters:
            hint = did_you_mean(event, self._registry.parameters)
            raise PluginError(f"there is no event {event!r}{hint}")
        check_kind(kind)
        groups: dict[str, dict[str, Implementation]] = {group: {} for group in GROUPS}
        parameters = self._registry.parameters[event]
        for found in self._registry.implementations(event):
            member, guard = self._members[found.plugin_name], self.guard(found.plugin_name)
            if kind in (member.kinds or (self.kind,)):
                made = Implementation.of(found, member, parameters, guard)
                groups[made.group][member.name] = made
        return [
            group[name]
            for group in groups.values()
            for name in arrange([n for n in self._members if n in group], self._hints)
        ]

    def emit(self, event: str, /, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers without the Nones.

        Args:
            event: the event's name.
            arguments: all arguments of the event, by name. Each hook gets those it names.

        Raises:
            PluginError: there is no such event, or it has other arguments.
        """
        results = self.caller(event).collect(*self._ordered(event, arguments))
        return [answer for _, answer in results]

    def around(self, event: str, /, **arguments: Any) -> AbstractContextManager[None]:
        """Send an event around a block: wrappers of the event surround it.

        Hooks that are no wrappers are called before the block. An error of the block goes
        on, whatever the wrappers do.

        Args:
            event: the event's name.
            arguments: all arguments of the event, by name.

        Raises:
            PluginError: there is no such event, or it has other arguments.

        >>> bus = Bus()
        >>> with bus.around("evaluating", session=None, name="val"):
        ...     print("evaluated on the validation data")
        evaluated on the validation data
        """
        caller, ordered = self.caller(event), self._ordered(event, arguments)
        if event != "evaluating":
            return caller.around(*ordered)
        return self._evaluated(caller, ordered, arguments["name"])

    @contextlib.contextmanager
    def _evaluated(
        self, caller: Caller, ordered: Sequence[Any], name: str | None
    ) -> Iterator[None]:
        """Do a block that evaluates, during which the training's clock stands still.

        A hook of two sessions is told of an evaluation by the first one alone.
        """
        own = {name: id(member.plugin) for name, member in self._members.items()}
        told, before, is_aside = _told.get(), self.evaluation, self.kind == "train"
        if not told.isdisjoint(own.values()):
            every = self.implementations("evaluating", self.kind)
            new = [each for each in every if own[each.plugin] not in told]
            caller = self.compile("evaluating", new)
        self.evaluation = name
        _told.set(told.union(own.values()))
        try:
            with (
                self.clock.paused() if is_aside else contextlib.nullcontext(),
                caller.around(*ordered),
            ):
                yield
        finally:
            self.evaluation = before
            _told.set(told)

    def _ordered(self, event: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of an event in its order."""
        parameters = self._registry.parameters[event]
        if set(arguments) != set(parameters):
            raise PluginError(
                f"event {event!r} takes {', '.join(parameters) or 'nothing'}, "
                f"not {', '.join(arguments) or 'nothing'}"
            )
        ordered = map(arguments.get, parameters)
        return [shared(each) if each.__class__ is dict else each for each in ordered]

    def _groups(self, event: str, kind: Kind) -> dict[str, str]:
        return {i.plugin: i.group for i in self.implementations(event, kind)}

    def _changed(self) -> None:
        self._callers.clear()
        self.version += 1
        self._note_change()
        self.changed = dict.fromkeys(self._members, self.changes)

    def _note_change(self) -> None:
        self.changes += 1
        for follower in self._followers:
            follower.invalidate()

    def _register(self, member: Registration, functions: Sequence[HookFunction]) -> None:
        for other in self._members.values():
            if other.plugin is member.plugin:
                raise UsageError(
                    f"hook {other.label} is given twice; create a second object"
                )
        hints = OrderHints.of(member.plugin, member.name, member.label)
        _admit(self._registry, member, functions)
        for name in unmarked(member.plugin, functions, self._registry.parameters):
            log.warning(
                f"{name}() looks like a hook but has no @hookimpl", plugin=member.name
            )
        slips = misspelt(member.plugin, functions, self._registry.parameters)
        for name, event in slips.items():
            log.warning(
                f"{name}() is never called: it is no event; did you mean {event!r}?",
                plugin=member.name,
            )
        self._members[member.name], self._hints[member.name] = member, hints

    def _set_guard(self, member: Registration) -> None:
        policy = member.policy or options_of(member.plugin).policy
        self._guards.pop(member.name, None)
        if policy != RAISE:
            guard = ErrorGuard(member.name, member.shipped_by, policy, self.failures)
            self._guards[member.name] = guard

    def _add_hooks(self, member: Registration) -> None:
        guard = self.guard(member.name)
        try:
            call_one(member, "addhooks", self, current=self.current)
        except Exception as error:
            if guard is None or not guard.drops("addhooks", error):
                raise


def call_one(
    member: Registration, event: str, *args: Any, current: CurrentHook | None = None
) -> Any:
    """Call one plugin's function for one event, outside of any bus.

    Args:
        member: the plugin.
        event: one of core's events.
        args: the event's arguments, in its order; the function gets those it names.
        current: holds the name of the hook that is being called.

    Returns:
        The function's answer; None if the plugin has no function for the event.

    Raises:
        PluginError: the function does not match the event.
    """
    registry = Registry()
    functions = registry.found_in(member.plugin)
    if event not in {found.event for found in functions}:
        return None
    registry.declare(hookspecs)
    known = [found for found in functions if found.event in registry.parameters]
    _admit(registry, member, known)
    parameters = registry.parameters[event]
    found = registry.implementations(event)
    made = [Implementation.of(each, member, parameters) for each in found]
    caller = Caller(event, parameters, made, current or CurrentHook(), answers=False)
    answers = caller.collect(*args)
    return answers[0][1] if answers else None


def _check_names(members: Iterable[Registration]) -> None:
    """Refuse a second hook of one name."""
    named: dict[str, Registration] = {}
    for member in members:
        other = named.setdefault(member.name, member)
        if other.plugin is not member.plugin:
            raise PluginError(
                f"two plugins are called {member.name!r}: {other.shipped_by} and "
                f"{member.shipped_by}; give one another name"
            )


def _admit(
    registry: Registry, member: Registration, functions: Sequence[HookFunction]
) -> None:
    """Register a plugin, if its functions match their events."""
    fault = fault_of(functions, registry.parameters)
    if fault is not None:
        raise PluginError(f"plugin {member.label}: {fault}")
    registry.register(member.plugin, member.name)
