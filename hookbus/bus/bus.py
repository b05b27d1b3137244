"""Which hooks take part in a session, and in which order each event reaches them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pluggy

from hookbus.bus import hookspecs
from hookbus.bus.caller import Caller, Implementation
from hookbus.bus.error_policy import RAISE, ErrorGuard, FailureLog, policy_of
from hookbus.bus.observers import Observers
from hookbus.bus.ordering import (
    GROUPS,
    OrderedHook,
    OrderHints,
    arrange,
    check_groups,
    check_names,
    reasons,
)
from hookbus.bus.registry import HookFunction, Registration, Registry
from hookbus.bus.validation import check_object, fault_of, unmarked
from hookbus.errors import ArgumentTypeError, PluginError, UsageError, did_you_mean
from hookbus.hooks.context import CurrentHook
from hookbus.hooks.event_bus import Call
from hookbus.hooks.hook import Kind, check_kind
from hookbus.logs import log


class Bus:
    """The hooks of one session.

    The first registered is called first, in every event; ``tryfirst``, ``trylast`` and
    ``wrapper`` apply as in pluggy. Inside each of these classes the order is again that of
    registration, but for what plugins say in ``before = (NAME, ...)`` and ``after``.

    Args:
        kind: the kind of the session.
    """

    def __init__(self, kind: Kind = "train") -> None:
        self.kind = kind
        self.current = CurrentHook()
        self._members: dict[str, Registration] = {}
        self._wishes: dict[str, OrderHints] = {}
        self._guards: dict[str, ErrorGuard] = {}
        self.failures = FailureLog(self.current, self._members)
        self._registry = Registry()
        self._registry.declare(hookspecs)
        self._observers = Observers()
        self._callers: dict[tuple[str, Kind], Caller] = {}
        self.run_callers: dict[Kind, tuple[Caller, Caller]] = {}
        """The callers of ``before_run`` and ``after_run`` that were compiled, by kind."""

    @property
    def members(self) -> Mapping[str, Registration]:
        """All hooks by name, in the order of registration."""
        return dict(self._members)

    @property
    def events(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each event's arguments, by the event's name."""
        return dict(self._registry.parameters)

    def check_order(self) -> None:
        """See to it, before the first event, that the hooks' wishes can be met.

        Raises:
            PluginError: they contradict each other.
        """
        check_names(self._wishes)
        kinds = [self.kind, *(k for m in self._members.values() for k in m.kinds or ())]
        groups = {
            kind: {event: self._groups(event, kind) for event in self._registry.parameters}
            for kind in dict.fromkeys(kinds)
        }
        check_groups(groups[self.kind], self._wishes)

    def order(self, event: str, kind: Kind | None = None) -> list[OrderedHook]:
        """Tell who is called in an event, in calling order, and why there.

        Args:
            event: the event's name.
            kind: that of the run, by default the session's.

        Raises:
            UsageError: there is no such kind.
            PluginError: there is no such event, or the hooks' wishes contradict each other.
        """
        groups = self._groups(event, kind or self.kind)
        found = []
        for name, group in groups.items():
            member, because = self._members[name], reasons(name, groups, self._wishes)
            found.append(OrderedHook(name, member.label, member.origin, group, because))
        return found

    def add_events(self, module_or_class: types.ModuleType | type) -> None:
        """Declare events: the functions of *module_or_class* marked ``@hookspec``.

        Raises:
            PluginError: there is none, another one declared an event of that name, or a
                function that waited for the event does not fit it.
        """
        self._registry.declare(module_or_class)

    def observe(self, callback: Callable[[Call], object]) -> Callable[[], None]:
        """Have *callback* told of every call from now on, with answer, error and time.

        It is told of each hook's call when that is over, then of the whole event. Where
        nobody observes, this costs nothing. A callback that raises is told no more.

        Returns:
            What undoes it.

        Raises:
            ArgumentTypeError: it cannot be called.

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
                f"observe() takes a function of one call, and a {type(callback).__name__} "
                "is none: write bus.observe(calls.append)"
            )
        forget = self._observers.add(callback)
        self._forget_callers()

        def undo() -> None:
            forget()
            self._forget_callers()

        return undo

    def register(self, *members: Registration) -> None:
        """Let hooks take part; each may declare events, in ``addhooks``, before any does.

        Raises:
            UsageError: a hook object takes part already.
            PluginError: a name is taken, an implementation does not fit its event, an
                object compares by value, or what it wishes for its place is no wish.
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
        self._forget_callers()

    def unregister(self, name: str) -> None:
        """Take a hook out.

        Raises:
            KeyError: no hook has the name.
        """
        self._registry.unregister(self._members.pop(name).plugin)
        self._guards.pop(name, None)
        del self._wishes[name]
        self._forget_callers()

    def guard(self, name: str) -> ErrorGuard | None:
        """Return what holds back the errors of a hook; None where they end the session."""
        return self._guards.get(name)

    def configure(self) -> None:
        """Hand each hook the values of the settings that it declared in ``addoption``."""
        members = self._members.items()
        given = {name: m.options for name, m in members if m.options is not None}
        if given:
            self.caller("configure").visit((given,), own=given)

    def caller(self, event: str, kind: Kind | None = None) -> Caller:
        """Return the compiled caller of an event, for runs of *kind*.

        Raises:
            UsageError: there is no such kind.
            PluginError: there is no such event.
        """
        key = (event, kind or self.kind)
        if key not in self._callers:
            self._callers[key] = self._compile(*key)
        return self._callers[key]

    def around_run(self, kind: Kind) -> tuple[Caller, Caller]:
        """Return the callers of ``before_run`` and ``after_run`` for runs of *kind*."""
        if kind not in self.run_callers:
            pair = self.caller("before_run", kind), self.caller("after_run", kind)
            self.run_callers[kind] = pair
        return self.run_callers[kind]

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers, Nones left out.

        Raises:
            PluginError: there is no such event, or an argument is not one of its own.
        """
        caller = self.caller(event)
        parameters = self._registry.parameters[event]
        if set(arguments) != set(parameters):
            raise PluginError(
                f"event {event!r} takes {', '.join(parameters) or 'nothing'}, "
                f"not {', '.join(arguments) or 'nothing'}"
            )
        results = caller.collect(*[arguments[name] for name in parameters])
        return [answer for _, answer in results]

    def _forget_callers(self) -> None:
        self._callers.clear()
        self.run_callers.clear()

    def _compile(self, event: str, kind: Kind) -> Caller:
        implementations = self._ordered(event, kind)
        return Caller(
            event,
            self._registry.parameters[event],
            implementations,
            self.current,
            first_result=event in self._registry.first_result,
            answers=event not in self._registry.answerless,
            observers=self._observers or None,
        )

    def _groups(self, event: str, kind: Kind) -> dict[str, str]:
        return {i.plugin: i.group for i in self._ordered(event, kind)}

    def _ordered(self, event: str, kind: Kind) -> list[Implementation]:
        """Sort an event's implementations: by group, then by wishes and registration."""
        if event not in self._registry.parameters:
            hint = did_you_mean(event, self._registry.parameters)
            raise PluginError(f"there is no event {event!r}{hint}")
        check_kind(kind)
        groups: dict[str, dict[str, Implementation]] = {group: {} for group in GROUPS}
        for name, found in self._registry.implementations(event):
            member = self._members[name]
            if kind in (member.kinds or (self.kind,)):
                guard = self._guards.get(name)
                made = _implementation(
                    found, member, self._registry.parameters[event], guard
                )
                groups[made.group][name] = made
        return [
            group[name]
            for group in groups.values()
            for name in arrange([n for n in self._members if n in group], self._wishes)
        ]

    def _register(self, member: Registration, functions: Sequence[HookFunction]) -> None:
        for other in self._members.values():
            if other.plugin is member.plugin:
                raise UsageError(
                    f"hook {other.label} is given twice; make a second object of it"
                )
        wishes = OrderHints.of(member.plugin, member.name, member.label)
        _admit(self._registry, member, functions)
        for name in unmarked(member.plugin, functions, self._registry.parameters):
            log.warning(
                f"{name}() looks like a hook and has no @hookimpl", plugin=member.name
            )
        self._members[member.name], self._wishes[member.name] = member, wishes

    def _set_guard(self, member: Registration) -> None:
        policy = member.policy or policy_of(member.plugin, member.label)
        self._guards.pop(member.name, None)
        if policy != RAISE:
            guard = ErrorGuard(member.name, member.shipped_by, policy, self.failures)
            self._guards[member.name] = guard

    def _add_hooks(self, member: Registration) -> None:
        try:
            call_one(member, "addhooks", self, current=self.current)
        except Exception as error:
            guard = self._guards.get(member.name)
            if guard is None or not guard.drops("addhooks", error):
                raise


def call_one(
    member: Registration, event: str, *args: Any, current: CurrentHook | None = None
) -> Any:
    """Call one plugin's function for one event, outside of any bus.

    An error carries the note that names plugin and event.

    Args:
        member: the plugin.
        event: one of core's events.
        args: the event's arguments, in its order; the function gets those it names.
        current: holds the name of the hook that is being called.

    Returns:
        What the function answers; None where the plugin has none for the event.

    Raises:
        PluginError: the function does not fit the event.
    """
    registry = Registry()
    functions = registry.found_in(member.plugin)
    if event not in {found.event for found in functions}:
        return None
    registry.declare(hookspecs)
    known = [found for found in functions if found.event in registry.parameters]
    _admit(registry, member, known)
    parameters = registry.parameters[event]
    made = [
        _implementation(impl, member, parameters)
        for _, impl in registry.implementations(event)
    ]
    current = current or CurrentHook()
    caller = Caller(event, parameters, made, current, answers=False)
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
    """Register a plugin, if its functions fit."""
    fault = fault_of(functions, registry.parameters)
    if fault is not None:
        raise PluginError(f"plugin {member.label}: {fault}")
    registry.register(member.plugin, member.name)


def _implementation(
    impl: pluggy.HookImpl,
    member: Registration,
    known: tuple[str, ...],
    guard: ErrorGuard | None = None,
) -> Implementation:
    return Implementation(
        member.name,
        member.label,
        impl.function,
        tuple(impl.argnames),
        impl.wrapper,
        # A parameter with a default that the event does not have keeps its default.
        tuple(name for name in impl.kwargnames if name in known),
        "tryfirst" if impl.tryfirst else "trylast" if impl.trylast else "",
        guard,
    )
