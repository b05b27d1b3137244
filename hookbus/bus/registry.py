"""Registers hooks and events with pluggy, and finds those that hooks implement."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import pluggy

from hookbus.bus.error_policy import ErrorGuard
from hookbus.errors import PluginError
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hook_options import ErrorPolicy, Kind
from hookbus.hooks.hookspecs import LIFECYCLE, PROJECT, hookimpl
from hookbus.validation import signature_of


@attrs.frozen(eq=False)
class Registration:
    """A hook that takes part in a session.

    Attributes:
        name: the name in messages, notes and state keys.
        plugin: the hook object or module.
        origin: why it takes part, in words.
        distribution: the distribution that ships it, like ``hookbus-progress 0.1.0``, or
            None.
        kinds: the kinds of runs that reach it; None for the kind of its session.
        policy: the policy for its errors; None for the policy that it declares itself.
        options: the argument of its ``configure``; None if that is not called.
    """

    name: str
    plugin: Any
    origin: str
    distribution: str | None = None
    kinds: tuple[Kind, ...] | None = None
    policy: ErrorPolicy | None = None
    options: Mapping[str, Any] | None = None

    @property
    def shipped_by(self) -> str:
        """Its distribution, or why it takes part."""
        return self.distribution or self.origin

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.name!r} ({self.shipped_by})"

    @classmethod
    def of_call(cls, promise: str, hook: Any) -> Registration:
        """Return the registration of a hook that keeps a promise of the calling code.

        Args:
            promise: the call or argument that the hook serves, like ``Estimator.train()``.
                It is the name of the hook; no plugin can have such a name.
            hook: the hook object.
        """
        return cls(promise, hook, "the call itself")


_PROPERTIES = (property, functools.cached_property)
MARK = f"{PROJECT}_impl"
"""The attribute of a function that holds the options of ``@hookimpl``."""
SPEC_MARK = f"{PROJECT}_spec"
"""The attribute of a function that holds the options of ``@hookspec``."""


@attrs.frozen(eq=False)
class HookFunction:
    """A function of a plugin that implements an event, with its ``@hookimpl`` options.

    *event* differs from *name* if ``specname`` is given.
    """

    name: str
    event: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """Its parameters without ``self``; empty if Python cannot inspect it."""
        try:
            return tuple(signature_of(self.function).parameters.values())
        except (TypeError, ValueError):
            return ()


Bound: TypeAlias = Callable[..., Any]
"""A plugin's function that takes all arguments of its event."""


@attrs.frozen
class Implementation:
    """One plugin's function for one event.

    Attributes:
        plugin: the plugin's name.
        label: its name in messages, with its distribution.
        function: takes the arguments named in *parameters*, by position.
        parameters: the names of the event's arguments that it takes without a default.
        wrapper: whether it is a generator that wraps the others.
        defaulted: the names of the event's arguments that it has a default for.
        rank: ``tryfirst``, ``trylast`` or the empty string.
        guard: suppresses its errors; None if they end the session.
    """

    plugin: str
    label: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    wrapper: bool = False
    defaulted: tuple[str, ...] = ()
    rank: str = ""
    guard: ErrorGuard | None = None

    @classmethod
    def of(
        cls,
        found: pluggy.HookImpl,
        member: Registration,
        event_parameters: tuple[str, ...],
        guard: ErrorGuard | None = None,
    ) -> Implementation:
        """Return a function that pluggy found in a registered plugin."""
        return cls(
            member.name,
            member.label,
            found.function,
            tuple(found.argnames),
            found.wrapper,
            # A parameter with a default that the event does not have keeps its default.
            tuple(name for name in found.kwargnames if name in event_parameters),
            "tryfirst" if found.tryfirst else "trylast" if found.trylast else "",
            guard,
        )

    @property
    def group(self) -> str:
        """The group in which it is called: its rank, separately for wrappers."""
        return f"wrapper {self.rank}".strip() if self.wrapper else self.rank

    def bind(self, event_parameters: tuple[str, ...]) -> Bound:
        """Return a function that takes all arguments of the event by position."""
        function, wanted = self.function, self.parameters
        if wanted == event_parameters:
            return function
        places = tuple(event_parameters.index(name) for name in wanted)
        if self.defaulted:
            named = tuple((name, event_parameters.index(name)) for name in self.defaulted)
            return lambda *args: function(
                *[args[place] for place in places],
                **{name: args[place] for name, place in named},
            )
        if not places:
            return lambda *_: function()
        if len(places) == 1:
            (only,) = places
            return lambda *args: function(args[only])
        return lambda *args: function(*[args[place] for place in places])


class Registry(pluggy.PluginManager):
    """pluggy's manager, which also accepts undecorated methods of hook classes."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.parameters: dict[str, tuple[str, ...]] = {}
        """The names of each declared event's arguments."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return the options of a function that implements an event, or None."""
        if name.startswith("_"):
            return None
        own = getattr(type(plugin), name, None)
        if isinstance(own, _PROPERTIES):
            return None  # reading it would run it
        if name in LIFECYCLE and own is getattr(SessionRunHook, name):
            return None
        method = _plain_method(plugin, name)
        if method is not None:
            return vars(method).get(MARK, _PLAIN if name in LIFECYCLE else None)
        marked = super().parse_hookimpl_opts(plugin, name)
        if isinstance(plugin, types.ModuleType) or name not in LIFECYCLE:
            return marked
        plain = marked is None and inspect.isroutine(getattr(plugin, name, None))
        return _PLAIN if plain else marked

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Return the options of a function that declares an event, or None."""
        function = vars(module_or_class).get(name)
        if isinstance(function, types.FunctionType):  # pluggy takes much longer
            return vars(function).get(SPEC_MARK)
        return super().parse_hookspec_opts(module_or_class, name)

    def found_in(self, plugin: Any) -> list[HookFunction]:
        """Return the functions of a plugin that implement events."""
        found = []
        for name in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, name)
            if options is not None:
                event = options.get("specname") or name
                found.append(HookFunction(name, event, getattr(plugin, name), options))
        return found

    def declare(self, module_or_class: types.ModuleType | type) -> None:
        """Declare events: the functions of *module_or_class* marked ``@hookspec``.

        To declare the same function again has no effect.

        Raises:
            PluginError: there is no such function, another one declared an event of that
                name, or a registered implementation does not match it.
        """
        specs = self._specs_of(module_or_class)
        if not specs:
            raise PluginError(
                f"{module_or_class!r} declares no event: mark its functions @hookspec"
            )
        new = types.ModuleType(module_or_class.__name__)
        for name, function in specs.items():
            if name not in self.parameters:
                setattr(new, name, function)
            elif self._spec(name).function is not function:
                raise PluginError(
                    f"the event {name!r} is declared twice, by "
                    f"{self._spec(name).namespace.__name__} and by {new.__name__}; rename "
                    "one"
                )
        added = {name: vars(new)[name] for name in specs if name in vars(new)}
        for name, function in added.items():
            parameters = _signature(function).parameters
            self.parameters[name] = tuple(p for p in parameters if p != "self")
        try:
            if added:
                self.add_hookspecs(new)
        except pluggy.PluginValidationError as error:  # in a plugin that was there before
            raise PluginError(" ".join(str(error).split())) from error

    def implementations(self, event: str) -> list[pluggy.HookImpl]:
        """Return the functions registered for an event, in no order."""
        return list(getattr(self.hook, event).get_hookimpls())

    def is_first_result(self, event: str) -> bool:
        """Return whether the first answer to an event decides."""
        return bool(self._spec(event).opts["firstresult"])

    def takes_answers(self, event: str) -> bool:
        """Return whether an event is declared with another result than None."""
        answer = _signature(self._spec(event).function).return_annotation
        return answer not in (None, "None")

    def _spec(self, event: str) -> Any:
        return getattr(self.hook, event).spec

    def _specs_of(self, module_or_class: Any) -> dict[str, Any]:
        # dir() sorts, so what is declared here comes first, in its order.
        declared = dict.fromkeys([*vars(module_or_class), *dir(module_or_class)])
        return {
            name: getattr(module_or_class, name)
            for name in declared
            if not name.startswith("_")
            and self.parse_hookspec_opts(module_or_class, name) is not None
        }


def _plain_method(plugin: Any, name: str) -> types.FunctionType | None:
    """Return the function of an ordinary method of a class; None for anything else.

    Most attributes are such; pluggy takes much longer to find that out, in each session.
    """
    if name in getattr(plugin, "__dict__", ()):
        return None
    owners = (vars(cls) for cls in type(plugin).__mro__)
    found = next((owner[name] for owner in owners if name in owner), None)
    return found if isinstance(found, types.FunctionType) else None


@functools.lru_cache(maxsize=256)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of an event; each session declares the core's again."""
    return signature_of(function)


@hookimpl
def _plain() -> None:
    """Hold the options of an implementation that is not decorated."""


_PLAIN = getattr(_plain, MARK)
