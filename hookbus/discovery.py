"""Finds the installed plugins and their names in metadata; imports none of them.

Anybody may have written metadata, so only this module reads them: the files of each
distribution are read on their own, and their texts are made fit to be printed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from email import message_from_string
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.errors import UsageError, did_you_mean, escaped, spelled

if TYPE_CHECKING:
    from email.message import Message
    from importlib.metadata import Distribution, EntryPoint


def canonical_name(name: str) -> str:
    """Return the one spelling of a plugin's name.

    This spelling is in lower case with dashes, without the prefix of distributions and
    modules.

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
COMMAND_GROUP = "hookbus.command"
_GROUPS = f"{GROUP}."
"""The prefix of further groups for hookbus."""
_NAME = re.compile(r"[^\W_][\w-]*")
"""Matches the one name of a plugin."""


@attrs.frozen(eq=False)  # the catalog is kept by the identity of its distributions
class Release:
    """A distribution that has entry points for hookbus, as its metadata describe it.

    Attributes:
        name: its name.
        version: its version.
        requires: its requirements, like ``hookbus>=0.1``.
        summary: its description in one line; empty without one.
        entries: its entry points in groups of hookbus.
        faults: the errors in its other entry points, which count as missing.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    summary: str = ""
    entries: tuple[EntryPoint, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name and version, for messages."""
        return f"{self.name} {self.version}"


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
        summary: the distribution's description in one line; empty without one.
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
class InstalledCommand:
    """A command of ``hookbus`` as the metadata of its distribution describes it.

    Attributes:
        entry: its entry point, which has its name and leads to a function.
        release: the distribution that has it.
        rivals: the distributions that have a command of this name, if there are several.
    """

    entry: EntryPoint
    release: Release
    rivals: tuple[str, ...] = ()


@attrs.frozen
class Catalog:
    """The plugins that can be named.

    Attributes:
        plugins: by name, sorted.
        faults: the errors in the metadata of plugins that are left out.
    """

    plugins: Mapping[str, Installed]
    faults: tuple[str, ...] = ()
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

    def hint(self, spelled: str) -> str:
        """Return how to install a plugin of hookbus that is missing, or names that fit.

        They are close, or their plugins say the word of themselves: ``tensorboard`` leads
        to ``summary-saver``.
        """
        close = to_install(canonical_name(spelled)) or self.did_you_mean(spelled)
        if close:
            return close
        word = spelled.lower()
        fits = [
            name
            for name, plugin in self.plugins.items()
            if word in re.findall(r"\w+", plugin.summary.lower())
        ]
        return f"; did you mean {' or '.join(map(repr, fits[:3]))}?" if fits else ""

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
        unchanged = len(plugins) == len(self.plugins)
        return self if unchanged else Catalog(plugins, self.faults)


def installed_plugins() -> Catalog:
    """Return all installed plugins, in an order that ignores where they are installed."""
    return _catalog(releases())


def installed_commands() -> Mapping[str, InstalledCommand]:
    """Return the commands that distributions add to ``hookbus``, by name, sorted."""
    found: dict[str, InstalledCommand] = {}
    for entry, release in sorted(entries_of(COMMAND_GROUP), key=lambda each: each[1].label):
        command = InstalledCommand(entry, release)
        other = found.get(entry.name)
        if other is not None and other.entry.value != entry.value:
            named = other.rivals or (other.release.label,)
            command = attrs.evolve(other, rivals=(*named, release.label))
        found[entry.name] = command
    return {name: found[name] for name in sorted(found)}


def to_install(name: str) -> str:
    """Return ``"; pip install hookbus-nan-tensor"`` for a distribution of hookbus itself.

    The core's metadata list them as the requirements of its extras. The text is empty for
    any other name.

    Args:
        name: the canonical name of a plugin.

    >>> to_install("nan-tensor"), to_install("my-own")
    ('; pip install hookbus-nan-tensor', '')
    """
    return f"; pip install hookbus-{name}" if name in published() else ""


@functools.cache
def published() -> frozenset[str]:
    """Return the canonical names of the distributions that the extras of hookbus bring."""
    from importlib.metadata import requires

    named = [re.match(r"hookbus-[\w-]+", text) for text in requires("hookbus") or ()]
    return frozenset(canonical_name(found[0]) for found in named if found)


def _installation() -> tuple[Any, Any]:
    """Return a key that changes when a distribution is installed or removed.

    Each session asks for plugins and codecs, so the answers are kept while no folder of
    ``sys.path`` has changed: pip changes a folder that it installs into. importlib.metadata
    keeps its own lists of distributions on this condition.
    """
    return tuple(map(id, sys.meta_path)), tuple(map(_state_of, sys.path))


def _state_of(folder: str) -> tuple[str, int, int]:
    try:
        found = os.stat(folder or ".")  # noqa: PTH116 (each session asks, of each folder)
    except (OSError, ValueError):  # it is not there, or its name cannot be
        return folder, 0, 0
    return folder, found.st_ino, found.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _catalog(installation: tuple[Release, ...]) -> Catalog:
    found: defaultdict[str, list[Installed]] = defaultdict(list)
    faults: list[str] = []
    for release in installation:
        faults += release.faults
        mine = [(canonical_name(entry.name), entry) for entry in release.entries]
        autouse = {name for name, entry in mine if entry.group == AUTOUSE_GROUP}
        for name, entry in mine:
            if entry.group == GROUP:
                found[name].append(_described(name, entry, name in autouse, release))
    return Catalog({name: _one(found[name]) for name in sorted(found)}, tuple(faults))


def _described(name: str, entry: EntryPoint, autouse: bool, release: Release) -> Installed:
    return Installed(
        name,
        entry,
        release.name,
        release.version,
        autouse,
        release.requires,
        summary=release.summary,
    )


def releases() -> tuple[Release, ...]:
    """Return the distributions that have entry points for hookbus, each once."""
    return _releases(_installation())


def entries_of(group: str) -> list[tuple[EntryPoint, Release]]:
    """Return the entry points in a group of hookbus, each with its distribution."""
    return [(e, each) for each in releases() for e in each.entries if e.group == group]


@functools.lru_cache(maxsize=1)
def _releases(_key: Any) -> tuple[Release, ...]:
    """Read the distributions of the installation that the key identifies."""
    # Imported late: it takes as long as importing pluggy and attrs, and no distribution is
    # looked up before a session starts.
    from importlib.metadata import distribution, distributions

    found: dict[str, Release] = {}
    for every in distributions():
        entry_points = _text_of(every, "entry_points.txt")
        if GROUP not in entry_points:
            continue  # whatever is wrong with it, it has nothing to do with hookbus
        about, first = _headers(every), every
        name = about["Name"] or ""
        key = re.sub(r"[-_.]+", "-", name).lower() or f"nameless {len(found)}"
        if key in found:
            continue
        with contextlib.suppress(Exception):  # its name is not that of its folder
            first = distribution(name) if name else every  # the one that is imported
        if first.locate_file("") != every.locate_file(""):
            entry_points, about = _text_of(first, "entry_points.txt"), _headers(first)
        found[key] = _release(first, entry_points, about)
    return tuple(found.values())


def _release(found: Distribution, entry_points: str, about: Message) -> Release:
    """Describe a distribution by the texts that were read of it."""
    requires = about.get_all("Requires-Dist")
    if requires is None:
        with contextlib.suppress(Exception):  # of setuptools' older format
            requires = found.requires
    release = Release(
        _line(about["Name"]) or "a distribution without a name",
        _line(about["Version"]) or "without a version",
        tuple(map(_line, requires or ())),
        _line((about.get_all("Summary") or [""])[0]),
    )
    entries, faults = _entries(entry_points, release.label)
    return attrs.evolve(release, entries=entries, faults=faults)


def _entries(text: str, label: str) -> tuple[tuple[EntryPoint, ...], tuple[str, ...]]:
    """Return the entry points in groups of hookbus, and the errors in the others.

    Each line is read on its own; importlib.metadata gives up at the first odd one.
    """
    from importlib.metadata import EntryPoint

    entries, faults, group = [], [], ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif (group == GROUP or group.startswith(_GROUPS)) and not line.startswith("#"):
            name, equals, value = map(_line, line.partition("="))
            if equals and value and _NAME.fullmatch(canonical_name(name)):
                entries.append(EntryPoint(name, value, group))
            else:
                faults.append(
                    f"{label}: the line {spelled(_line(line))} in [{group}] of its "
                    "entry_points.txt is not NAME = MODULE or NAME = MODULE:CLASS, and is "
                    "ignored"
                )
    return tuple(entries), tuple(faults)


def _headers(distribution: Distribution) -> Message:
    """Return the metadata of a distribution, without the long text that may follow it.

    The text takes the most time: reading a README line by line, for each plugin.
    """
    text = _text_of(distribution, "METADATA") or _text_of(distribution, "PKG-INFO")
    return message_from_string(text.partition("\n\n")[0])


def _text_of(distribution: Distribution, file: str) -> str:
    """Return the text of a file of a distribution; empty if it cannot be read."""
    try:
        return distribution.read_text(file) or ""
    except UnicodeDecodeError as error:  # one odd byte is no reason to lose the rest
        return error.object.decode("utf-8", "backslashreplace")
    except Exception:  # the finder of another package may raise anything
        return ""


def _line(text: str | None) -> str:
    """Return a text of a distribution as one line that can be printed."""
    return escaped(" ".join((text or "").split()))


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
