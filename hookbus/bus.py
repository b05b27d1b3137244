"""Which hooks take part in a session, and in which order each event reaches them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any

import attrs
import pluggy

from hookbus import hookspecs
from hookbus.caller import Caller, Implementation
from hookbus.errors import ArgumentTypeError, PluginError, UsageError, did_you_mean
from hookbus.hook import Kind, SessionRunHook, Turn
from hookbus.ordering import arrange, check_names


@attrs.frozen(eq=False)
class Member:
    """A hook that takes part.

    Attributes:
        name: the one name that messages, notes and state keys use.
        plugin: the hook object or module.
        origin: why it takes part, in words.
        distribution: what shipped it, like ``hookbus-progress 0.1.0``, or None.
        kinds: the kinds of runs that reach it; None for those of its session.
    """

    name: str
    plugin: Any
    origin: str
    distribution: str | None = None
    kinds: tuple[Kind, ...] | None = None

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"'{self.name}' ({self.distribution or self.origin})"


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
        self.turn = Turn()
        self._members: dict[str, Member] = {}
        self._registry = _Registry(hookspecs.PROJECT)
        self._parameters: dict[str, tuple[str, ...]] = {}
        self._first_result: set[str] = set()
        self._callers: dict[tuple[str, Kind], Caller] = {}
        self._around_run: dict[Kind, tuple[Caller, Caller]] = {}
        self.add_events(hookspecs)

    @property
    def members(self) -> Mapping[str, Member]:
        """All hooks by name, in the order of registration."""
        return dict(self._members)

    def check_order(self) -> None:
        """See to it, before the first event, that the hooks' wishes can be met.

        Raises:
            PluginError: they contradict each other.
        """
        check_names({name: member.plugin for name, member in self._members.items()})
        for event in self._parameters:
            self.caller(event)

    def add_events(self, module_or_class: types.ModuleType | type) -> None:
        """Declare events: the functions of *module_or_class* marked ``@hookspec``."""
        self._registry.add_hookspecs(module_or_class)
        for name in dir(module_or_class):
            if name.startswith("_"):
                continue
            function = getattr(module_or_class, name)
            options = self._registry.parse_hookspec_opts(module_or_class, name)
            if options is not None:
                parameters = inspect.signature(function).parameters
                self._parameters[name] = tuple(p for p in parameters if p != "self")
                if options.get("firstresult"):
                    self._first_result.add(name)

    def register(self, member: Member) -> None:
        """Let a hook take part.

        Raises:
            UsageError: the hook object takes part already.
            PluginError: one of its implementations does not fit its event, or the
                object compares by value.
        """
        self._check_is_hook(member)
        _check_identity(member)
        for other in self._members.values():
            if other.plugin is member.plugin:
                raise UsageError(
                    f"hook {other.label} is given twice; make a second object of it"
                )
        try:
            self._registry.register(member.plugin, member.name)
            self._check_events(member)
        except (pluggy.PluginValidationError, PluginError) as error:
            if self._registry.is_registered(member.plugin):  # pluggy 1.6 leaves it in
                self._registry.unregister(member.plugin)
            raise _misfit(member, error) from error
        self._members[member.name] = member
        self._forget_callers()

    def unregister(self, name: str) -> None:
        """Take a hook out.

        Raises:
            KeyError: no hook has the name.
        """
        self._registry.unregister(self._members.pop(name).plugin)
        self._forget_callers()

    def caller(self, event: str, kind: Kind | None = None) -> Caller:
        """Return the compiled caller of an event, for runs of *kind*.

        Raises:
            PluginError: there is no such event.
        """
        key = (event, kind or self.kind)
        if key not in self._callers:
            self._callers[key] = self._compile(*key)
        return self._callers[key]

    def around_run(self, kind: Kind) -> tuple[Caller, Caller]:
        """Return the callers of ``before_run`` and ``after_run``, in one look-up."""
        pair = self._around_run.get(kind)
        if pair is None:
            pair = self.caller("before_run", kind), self.caller("after_run", kind)
            self._around_run[kind] = pair
        return pair

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers, Nones left out.

        Raises:
            PluginError: there is no such event, or an argument is not one of its own.
        """
        caller = self.caller(event)
        parameters = self._parameters[event]
        if set(arguments) != set(parameters):
            raise PluginError(
                f"event {event!r} takes {', '.join(parameters) or 'nothing'}, "
                f"not {', '.join(arguments) or 'nothing'}"
            )
        results = caller.collect(*[arguments[name] for name in parameters])
        return [answer for _, answer in results]

    def _forget_callers(self) -> None:
        self._callers.clear()
        self._around_run.clear()

    def _compile(self, event: str, kind: Kind) -> Caller:
        if event not in self._parameters:
            hint = did_you_mean(event, self._parameters)
            raise PluginError(f"there is no event {event!r}{hint}")
        implementations = self._ordered(event, kind)
        return Caller(
            event,
            self._parameters[event],
            implementations,
            self.turn,
            event in self._first_result,
        )

    def _ordered(self, event: str, kind: Kind) -> list[Implementation]:
        """Sort pluggy's implementations: by class, then by wishes and registration."""
        ranks: tuple[dict[str, Implementation], ...] = ({}, {}, {})
        for impl in getattr(self._registry.hook, event).get_hookimpls():
            member = self._members[impl.plugin_name]
            if kind in (member.kinds or (self.kind,)):
                rank = 0 if impl.tryfirst else 2 if impl.trylast else 1
                ranks[rank][member.name] = self._implementation(impl, member, event)
        plugins = {name: member.plugin for name, member in self._members.items()}
        return [
            found[name]
            for found in ranks
            for name in arrange([n for n in plugins if n in found], plugins)
        ]

    def _implementation(
        self, impl: pluggy.HookImpl, member: Member, event: str
    ) -> Implementation:
        known = self._parameters[event]
        return Implementation(
            member.name,
            member.label,
            impl.function,
            tuple(impl.argnames),
            impl.wrapper,
            # A parameter with a default that the event does not have keeps its default.
            tuple(name for name in impl.kwargnames if name in known),
        )

    def _check_is_hook(self, member: Member) -> None:
        plugin = member.plugin
        if isinstance(plugin, type | SessionRunHook | types.ModuleType):
            return
        if not _implementations(plugin, self._registry):
            raise ArgumentTypeError(
                f"{member.origin} has {plugin!r}, which is no hook: it has no method of "
                "any event"
            )

    def _check_events(self, member: Member) -> None:
        """Refuse what pluggy would only notice when the event comes, or never."""
        for name, function in _implementations(member.plugin, self._registry):
            options = getattr(function, f"{hookspecs.PROJECT}_impl", {})
            event = options.get("specname") or name
            if event not in self._parameters and not options.get("optionalhook"):
                hint = did_you_mean(event, self._parameters)
                raise PluginError(f"{name!r} is no event{hint}")
            if options.get("hookwrapper"):
                raise PluginError(
                    f"{name}() is an old-style hookwrapper; use @hookimpl(wrapper=True)"
                )
            for parameter in inspect.signature(function).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    raise PluginError(
                        f"{name}() takes {parameter.name!r} by keyword only; events pass "
                        "arguments by position"
                    )


class _Registry(pluggy.PluginManager):
    """pluggy's manager, taught which undecorated methods count."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if name.startswith("_"):
            return None
        if not isinstance(plugin, types.ModuleType) and name in hookspecs.LIFECYCLE:
            own = getattr(type(plugin), name, None)
            if own is getattr(SessionRunHook, name):
                return None
            method = getattr(plugin, name, None)
            marked = super().parse_hookimpl_opts(plugin, name)
            if marked is None and inspect.isroutine(method):
                return _PLAIN
            return marked
        return super().parse_hookimpl_opts(plugin, name)


@hookspecs.hookimpl
def _plain() -> None:
    """Carry the options of an implementation that was not decorated."""


_PLAIN = getattr(_plain, f"{hookspecs.PROJECT}_impl")


def _implementations(plugin: Any, registry: _Registry) -> list[tuple[str, Any]]:
    found = []
    for name in dir(plugin):
        if registry.parse_hookimpl_opts(plugin, name) is not None:
            function = inspect.getattr_static(plugin, name)
            found.append((name, getattr(function, "__func__", function)))
    return found


def _check_identity(member: Member) -> None:
    if isinstance(member.plugin, type):
        raise UsageError(
            f"hooks takes hook objects, and {member.plugin.__name__} is a class: "
            f"write {member.plugin.__name__}(...)"
        )
    cls = type(member.plugin)
    definer = next(c for c in cls.__mro__ if "__eq__" in vars(c))
    if definer is not object:
        raise PluginError(
            f"plugin {member.label}: {cls.__name__} compares by value; hooks are told "
            "apart by identity: declare it with @attrs.define(eq=False)"
        )


def _misfit(member: Member, error: Exception) -> PluginError:
    if isinstance(error, pluggy.PluginValidationError):
        # Its last lines name the function and its arguments; the repr before does not
        # help anybody.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return PluginError(f"plugin {member.label}: {' '.join(lines[1:])}")
    return PluginError(f"plugin {member.label}: {error}")
