"""Which plugins are on and why, decided from metadata and text before any import."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, EntryPoint, entry_points

import attrs

from hookbus.errors import PluginError, UsageError, did_you_mean
from hookbus.logs import log
from hookbus.names import canonical

GROUP = "hookbus"
AUTOUSE_GROUP = "hookbus.autouse"


@attrs.frozen
class Installed:
    """A plugin as its entry point's metadata describe it; nothing is imported.

    Attributes:
        name: the plugin's one name.
        entry: where its code is; with an attribute it is a hook class, else a module.
        distribution: the name of what shipped it, or None.
        version: of the distribution.
        autouse: whether a hook class is on without being asked for.
    """

    name: str
    entry: EntryPoint
    distribution: str | None
    version: str | None
    autouse: bool = False

    @property
    def is_class(self) -> bool:
        """Whether the entry point names a hook class."""
        return bool(self.entry.attr)

    @property
    def autoloads(self) -> bool:
        """Whether it is on when found."""
        return self.autouse or not self.is_class

    @property
    def shipped_by(self) -> str | None:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}" if self.distribution else None


@attrs.frozen
class Word:
    """One thing said about one plugin.

    Attributes:
        plugin: as it was spelled.
        on: whether it was switched on or off.
        source: where it was said, as the user would write it, like ``-p no:progress``.
        strict: whether a name that is not installed is an error even for off.
    """

    plugin: str
    on: bool
    source: str
    strict: bool = False


@attrs.frozen
class Verdict:
    """What was decided about one plugin, and the reason.

    Attributes:
        name: the plugin's name.
        on: whether it takes part.
        why: the reason in words.
        installed: its metadata; None where it is not installed.
        spoken: whether a word decided, not a default.
    """

    name: str
    on: bool
    why: str
    installed: Installed | None
    spoken: bool = False

    @property
    def blocked(self) -> bool:
        """Whether it was switched off by name; then its objects in code are, too."""
        return self.spoken and not self.on


def installed_plugins() -> dict[str, Installed]:
    """Return all installed plugins by name, sorted.

    Raises:
        PluginError: two distributions provide a plugin of one name.
    """
    autouse = {canonical(entry.name) for entry in entry_points(group=AUTOUSE_GROUP)}
    found: dict[str, Installed] = {}
    for entry in entry_points(group=GROUP):
        name = canonical(entry.name)
        shipped: Distribution | None = entry.dist
        plugin = Installed(
            name,
            entry,
            shipped.name if shipped else None,
            shipped.version if shipped else None,
            name in autouse,
        )
        other = found.setdefault(name, plugin)
        if other.distribution != plugin.distribution:
            raise PluginError(
                f"two distributions provide plugin {name!r}: {other.shipped_by} and "
                f"{plugin.shipped_by}; uninstall one of them"
            )
    return dict(sorted(found.items()))


def parse_word(text: str, source: str, strict: bool = False) -> Word:
    """Read ``NAME`` or ``no:NAME``.

    >>> parse_word("no:progress", "-p no:progress").on
    False

    Raises:
        UsageError: the name is empty.
    """
    text = text.strip()
    on = not text.startswith("no:")
    name = text.removeprefix("no:").strip()
    if not name:
        raise UsageError(f"{source}: the plugin name is empty")
    return Word(name, on, source, strict)


def decide(
    installed: Mapping[str, Installed],
    words: Iterable[Word],
    autoload: bool = True,
    autoload_source: str = "",
) -> dict[str, Verdict]:
    """Decide about every plugin that is installed or spoken of.

    Args:
        installed: the plugins by name.
        words: what was said, the weakest first: the last word about a plugin decides.
        autoload: whether module and autouse plugins are on when nobody speaks of them.
        autoload_source: what switched autoload off, for the reason.

    Raises:
        UsageError: a plugin to switch on is not installed, or one to switch off is not
            and the word is strict.
    """
    verdicts = {
        name: _by_default(plugin, autoload, autoload_source)
        for name, plugin in installed.items()
    }
    for word in words:
        name = canonical(word.plugin)
        plugin = installed.get(name)
        if plugin is None and not _may_be_missing(word, installed):
            continue
        verdicts[name] = Verdict(name, word.on, word.source, plugin, spoken=True)
    for verdict in verdicts.values():
        if verdict.on and verdict.installed is None:
            raise UsageError(_unknown(verdict.why, verdict.name, installed, on=True))
    return verdicts


def _by_default(plugin: Installed, autoload: bool, source: str) -> Verdict:
    if not plugin.autoloads:
        return Verdict(plugin.name, False, "not switched on", plugin)
    if not autoload:
        return Verdict(plugin.name, False, source or "autoload is off", plugin)
    why = "autouse" if plugin.autouse else "found"
    return Verdict(plugin.name, True, why, plugin)


def _may_be_missing(word: Word, installed: Mapping[str, Installed]) -> bool:
    """Say whether a word about a plugin that is not installed is to be remembered."""
    if word.on:
        return True
    message = _unknown(word.source, word.plugin, installed, on=False)
    if word.strict:
        raise UsageError(message)
    _warn_once(message)
    return True


@functools.cache
def _warn_once(message: str) -> None:
    """Warn; the command and each of its sessions decide anew about the same words."""
    log.warning(message)


def _unknown(source: str, name: str, installed: Mapping[str, Installed], on: bool) -> str:
    close = did_you_mean(canonical(name), installed)
    if not close and on:
        close = f"; installed: {', '.join(installed) or 'none'}"
    return f"{source}: no plugin called {name!r} is installed{close}"
