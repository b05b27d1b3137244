"""Finds the installed plugins and their names in metadata; imports none of them."""

from __future__ import annotations

import functools
import re
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from email import message_from_string
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from email.message import Message
    from importlib.metadata import Distribution, EntryPoint


def canonical_name(name: str) -> str:
    """Return the one spelling of a plugin's name.

    It is in lower case with dashes, and without the prefix of distributions and modules.

    >>> [canonical_name(n) for n in ("nan-tensor", "Nan_Tensor", "hookbus_nan_tensor")]
    ['nan-tensor', 'nan-tensor', 'nan-tensor']
    """
    dashed = re.sub(r"[-_.]+", "-", name.strip()).strip("-")
    return dashed.lower().removeprefix("hookbus-")


def name_from_class(name: str) -> str:
    """Return a plugin's name for the name of a hook class.

    >>> name_from_class("LossPrinterHook")
    'loss-printer'
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return canonical_name(words.removesuffix("-Hook")) or canonical_name(words)


def unique_name(name: str, taken: Container[str]) -> str:
    """Return *name*, or *name* with the first number from 2 on that is not *taken*.

    >>> unique_name("nan-tensor", {"nan-tensor"})
    'nan-tensor-2'
    """
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


CORE = frozenset({"hookbus", "core", "session", "bus", "graph", "config", "checkpoint"})
"""Names that users may take for plugins: parts of hookbus itself, which are always on."""
GROUP = "hookbus"
AUTOUSE_GROUP = "hookbus.autouse"


@attrs.frozen
class Installed:
    """A plugin as its metadata describes it.

    Attributes:
        name: the plugin's one name.
        entry: its entry point; with an attribute it is a hook class, without one a module.
        distribution: the distribution that ships it; None for a module without one.
        version: of the distribution.
        autouse: whether a hook class is on by default.
        requires: the requirements of the distribution, like ``hookbus>=0.1``.
        rivals: the distributions that provide a plugin of this name, if there are several.
        summary: one line on what the distribution does; empty if it has none.
    """

    name: str
    entry: EntryPoint
    distribution: str | None
    version: str | None
    autouse: bool = False
    requires: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    summary: str = ""

    @property
    def module(self) -> str:
        """The module that the entry point names; it may not be a valid name."""
        return self.entry.value.partition("[")[0].partition(":")[0].strip()

    @property
    def attribute(self) -> str:
        """The attribute that the entry point names; empty for the module itself."""
        return self.entry.value.partition("[")[0].partition(":")[2].strip()

    @property
    def is_class(self) -> bool:
        """Whether the entry point names a hook class."""
        return bool(self.attribute)

    @property
    def autoloads(self) -> bool:
        """Whether it is on by default; a module that was only named is not installed."""
        return self.distribution is not None and (self.autouse or not self.is_class)

    @property
    def shipped_by(self) -> str | None:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}" if self.distribution else None

    @property
    def aliases(self) -> set[str]:
        """Other names that find it: of its module, its class and its distribution."""
        others = (self.module, self.entry.value, self.distribution or "")
        return {canonical_name(other) for other in others} - {self.name, ""}


@attrs.frozen
class Catalog:
    """The plugins that can be named.

    Attributes:
        plugins: by name, sorted.
    """

    plugins: Mapping[str, Installed]
    _aliases: Mapping[str, tuple[str, ...]] = attrs.field(init=False)

    @_aliases.default
    def _by_alias(self) -> Mapping[str, tuple[str, ...]]:
        found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        for name, plugin in self.plugins.items():
            for alias in plugin.aliases:
                found[alias] += (name,)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.plugins)

    def name_of(self, spelled: str) -> str:
        """Return the one name of the plugin that *spelled* means, known or not.

        Raises:
            UsageError: it can mean several plugins.
        """
        name = canonical_name(spelled)
        if name in self.plugins:
            return name
        candidates = self._aliases.get(name, ())
        if len(candidates) > 1:
            raise UsageError(f"{spelled!r} can mean {' or '.join(candidates)}; name one")
        return candidates[0] if candidates else name

    def find(self, spelled: str) -> Installed | None:
        """Return the plugin that *spelled* means, or None."""
        return self.plugins.get(self.name_of(spelled))

    def did_you_mean(self, spelled: str) -> str:
        """Return ``"; did you mean 'nan-tensor'?"`` for a name close to that of a plugin.

        A class name is close to its plugin: ``NanTensorHook`` is.
        """
        return did_you_mean(name_from_class(spelled), self)

    def of_class(self, cls: type) -> Installed | None:
        """Return the plugin whose entry point leads to a class, or None.

        This imports nothing: since the class exists, its module is imported already.
        """
        names = cls.__module__, cls.__qualname__
        for plugin in self.plugins.values():
            if (plugin.module, plugin.attribute) == names:
                return plugin
            module = sys.modules.get(plugin.module)
            if module is not None and vars(module).get(plugin.attribute) is cls:
                return plugin
        return None

    def with_modules(self, names: Iterable[str]) -> Catalog:
        """Return this catalog with those of *names* added that are importable modules.

        A module whose name is taken gets a number, in the order of *names*.
        """
        plugins = dict(self.plugins)
        for text in dict.fromkeys(names):
            spelled = canonical_name(text)
            known = spelled in self.plugins or spelled in self._aliases
            plugin = None if known else module_named(text)
            if plugin is not None:
                name = unique_name(plugin.name, plugins)
                plugins[name] = attrs.evolve(plugin, name=name)
        return self if len(plugins) == len(self.plugins) else Catalog(plugins)


def installed_plugins() -> Catalog:
    """Return all installed plugins, whatever order their distributions are found in."""
    return _catalog(*_installation())


def _installation() -> tuple[Any, Any]:
    """Return what changes as soon as something else is installed.

    Each session asks for plugins and codecs, so the answers are kept while no folder of
    ``sys.path`` has changed: pip changes a folder that it installs into. importlib.metadata
    keeps its own lists of distributions by the same sign.
    """
    return tuple(map(id, sys.meta_path)), tuple(map(_state_of, sys.path))


def _state_of(folder: str) -> tuple[str, int, int]:
    try:
        found = Path(folder).stat()
    except (OSError, ValueError):  # it is not there, or its name cannot be
        return folder, 0, 0
    return folder, found.st_ino, found.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _catalog(finders: Any, path: Any) -> Catalog:  # noqa: ARG001 (they identify the answer)
    every = entry_points(GROUP, AUTOUSE_GROUP)
    autouse = {canonical_name(e.name) for e in every if e.group == AUTOUSE_GROUP}
    found: defaultdict[str, list[Installed]] = defaultdict(list)
    for entry in every:
        if entry.group == GROUP:
            name = canonical_name(entry.name)
            found[name].append(_described(name, entry, name in autouse))
    return Catalog({name: _one(found[name]) for name in sorted(found)})


def _described(name: str, entry: EntryPoint, autouse: bool) -> Installed:
    shipped: Distribution | None = entry.dist
    if shipped is None:
        return Installed(name, entry, None, None, autouse)
    about = _headers(shipped)
    requires = about.get_all("Requires-Dist") or shipped.requires or ()
    return Installed(
        name,
        entry,
        about["Name"],
        about["Version"],
        autouse,
        tuple(requires),
        summary=(about.get_all("Summary") or [""])[0],
    )


def _headers(distribution: Distribution) -> Message:
    """Return the metadata of a distribution, without the long text that may follow it.

    The text takes the most time: reading a README line by line, for each plugin.
    """
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    return message_from_string(text.partition("\n\n")[0])


def entry_points(*groups: str) -> list[EntryPoint]:
    """Return the entry points in some groups, those of all installed distributions."""
    return list(_entry_points(groups, *_installation()))


@functools.lru_cache(maxsize=4)
def _entry_points(groups: Any, finders: Any, path: Any) -> tuple[EntryPoint, ...]:  # noqa: ARG001 (as above)
    # Imported late: it takes as long as importing pluggy and attrs, and no entry point is
    # looked up before a session starts.
    from importlib.metadata import entry_points

    found = entry_points()
    return tuple(entry for group in groups for entry in found.select(group=group))


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution.

    Raises:
        ModuleNotFoundError: the distribution is not installed.
    """
    from importlib.metadata import version

    return version(distribution)


def module_named(text: str) -> Installed | None:
    """Return the plugin that *text* names as ``module`` or ``module:attribute``, if any.

    >>> module_named("no.such.module") is None
    True
    """
    module, _, attribute = text.partition(":")
    words = [*module.split("."), *(attribute.split(".") if attribute else ())]
    if not all(map(str.isidentifier, words)) or spec_of(module) is None:
        return None
    from importlib.metadata import EntryPoint

    name = name_from_class(attribute) if attribute else canonical_name(module)
    return Installed(name, EntryPoint(name, text, GROUP), None, None)


def spec_of(module: str) -> ModuleSpec | None:
    """Find a module without importing it or the packages around it."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    names = module.split(".")
    for depth in range(len(names)):
        name = ".".join(names[: depth + 1])
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((candidate for candidate in found if candidate is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or ()
    return spec


def _one(found: list[Installed]) -> Installed:
    """Return one record for all plugins of one name."""
    found.sort(key=lambda plugin: (plugin.shipped_by or "", plugin.entry.value))
    kinds = {(p.distribution, p.entry.value) for p in found}
    if len(kinds) == 1:
        return found[0]
    rivals = tuple(p.shipped_by or p.entry.value for p in found)
    return attrs.evolve(found[0], rivals=rivals)
