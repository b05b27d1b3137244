"""Which hooks take part, and by which functions; pluggy keeps the record."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pluggy

from hookbus.bus.error_policy import ErrorPolicy
from hookbus.errors import PluginError
from hookbus.hooks.hook import Kind, SessionRunHook
from hookbus.hooks.markers import LIFECYCLE, PROJECT, hookimpl


@attrs.frozen(eq=False)
class Registration:
    """A hook that takes part.

    Attributes:
        name: the one name that messages, notes and state keys use.
        plugin: the hook object or module.
        origin: why it takes part, in words.
        distribution: what shipped it, like ``hookbus-progress 0.1.0``, or None.
        kinds: the kinds of runs that reach it; None for those of its session.
        policy: what becomes of its errors; None for what it declares itself.
        options: what its ``configure`` gets; None where it is not called.
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
        """Its distribution, or else why it takes part."""
        return self.distribution or self.origin

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.name!r} ({self.shipped_by})"

    @classmethod
    def of_core(cls, promise: str, part: Any) -> Registration:
        """Return the part that the core itself takes in a session.

        Args:
            promise: the call or the argument that it keeps its word for, like
                ``Estimator.train()``; it is the name, and no plugin can have such a one.
            part: the hook object.
        """
        return cls(promise, part, "hookbus itself")


_PROPERTIES = (property, functools.cached_property)
MARK = f"{PROJECT}_impl"
"""The attribute of a function in which ``@hookimpl`` leaves its options."""


@attrs.frozen(eq=False)
class HookFunction:
    """One function of a plugin that takes part in an event.

    Attributes:
        name: what it is called in the plugin.
        event: the event, which ``specname`` may call otherwise.
        function: the function or the bound method.
        options: those of ``@hookimpl``.
    """

    name: str
    event: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """What it takes, ``self`` left out; nothing where Python cannot tell."""
        try:
            return tuple(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            return ()


class Registry(pluggy.PluginManager):
    """pluggy's manager, taught which undecorated methods count."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.parameters: dict[str, tuple[str, ...]] = {}
        self.first_result: set[str] = set()
        self.answerless: set[str] = set()
        """The events that are declared ``-> None``."""
        self._declared: dict[str, tuple[str, Any]] = {}

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return the options of a function that takes part, else None."""
        if name.startswith("_"):
            return None
        if isinstance(getattr(type(plugin), name, None), _PROPERTIES):
            return None  # reading it would run it
        if not isinstance(plugin, types.ModuleType) and name in LIFECYCLE:
            own = getattr(type(plugin), name, None)
            if own is getattr(SessionRunHook, name):
                return None
            method = getattr(plugin, name, None)
            marked = super().parse_hookimpl_opts(plugin, name)
            if marked is None and inspect.isroutine(method):
                return _PLAIN
            return marked
        return super().parse_hookimpl_opts(plugin, name)

    def found_in(self, plugin: Any) -> list[HookFunction]:
        """Return the functions of a plugin that take part in events."""
        found = []
        for name in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, name)
            if options is not None:
                event = options.get("specname") or name
                found.append(HookFunction(name, event, getattr(plugin, name), options))
        return found

    def declare(self, module_or_class: types.ModuleType | type) -> None:
        """Declare events: the functions of *module_or_class* marked ``@hookspec``.

        What is declared already, by the same function, is so once.

        Raises:
            PluginError: there is none, somebody else declared one of that name, or a
                function that waited for one does not fit it.
        """
        specs = self._specs_of(module_or_class)
        if not specs:
            raise PluginError(f"{module_or_class!r} declares no event: mark one @hookspec")
        for name in specs.keys() & self._declared.keys():
            where, function = self._declared[name]
            if function is not specs[name]:
                raise PluginError(
                    f"the event {name!r} is declared twice, by {where} and by "
                    f"{module_or_class.__name__}; rename one"
                )
        new = types.ModuleType(module_or_class.__name__)
        for name, function in specs.items():
            if name not in self._declared:
                self._note(name, function, module_or_class.__name__)
                setattr(new, name, function)
        if vars(new).keys() & specs.keys():
            self._add(new)

    def _add(self, module: types.ModuleType) -> None:
        try:
            self.add_hookspecs(module)
        except pluggy.PluginValidationError as error:  # in a plugin that was there before
            raise PluginError(" ".join(str(error).split())) from error

    def _note(self, name: str, function: Callable[..., Any], where: str) -> None:
        self._declared[name] = where, function
        signature = inspect.signature(function)
        self.parameters[name] = tuple(p for p in signature.parameters if p != "self")
        if signature.return_annotation in (None, "None"):
            self.answerless.add(name)
        if getattr(function, f"{PROJECT}_spec")["firstresult"]:
            self.first_result.add(name)

    def implementations(self, event: str) -> list[tuple[str, pluggy.HookImpl]]:
        """Return who takes part in an event, in no order: plugin's name, and function."""
        found = getattr(self.hook, event).get_hookimpls()
        return [(impl.plugin_name, impl) for impl in found]

    def _specs_of(self, module_or_class: Any) -> dict[str, Any]:
        declared = [*vars(module_or_class), *dir(module_or_class)]  # dir() sorts
        return {
            name: getattr(module_or_class, name)
            for name in declared
            if not name.startswith("_")
            and self.parse_hookspec_opts(module_or_class, name) is not None
        }


@hookimpl
def _plain() -> None:
    """Carry the options of an implementation that was not decorated."""


_PLAIN = getattr(_plain, MARK)
