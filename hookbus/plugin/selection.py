"""Which plugins are on and why, decided from metadata and text before any import."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from hookbus.config.config import Config
from hookbus.config.parser import Precedence, Switch
from hookbus.config.sources import slips
from hookbus.discovery import (
    CORE,
    Catalog,
    Installed,
    canonical_name,
    installed_plugins,
    version_of,
)
from hookbus.errors import UsageError, did_you_mean
from hookbus.logs import log
from hookbus.plugin.requirements import _counts, _requirement


@attrs.frozen
class Verdict:
    """What was decided about one plugin, and the reason.

    Attributes:
        name: the plugin's name.
        on: whether it takes part.
        why: the reason in words.
        installed: its metadata; None where it is not installed.
        decisive: the word that decided; None where a default did.
        words: all that was said about it, the strongest last.
        default: what counts where nothing is said, in words.
    """

    name: str
    on: bool
    why: str
    installed: Installed | None
    decisive: Switch | None = None
    words: tuple[Switch, ...] = ()
    default: str = ""

    @property
    def blocked(self) -> bool:
        """Whether it was switched off by name; then its objects in code are, too."""
        return self.decisive is not None and not self.on


@attrs.frozen
class Selection:
    """What was decided about every plugin that is installed or spoken of.

    Attributes:
        catalog: the plugins that can be named.
        verdicts: by name, sorted.
        warnings: what looks like a mistake and is none that stops a run.
    """

    catalog: Catalog
    verdicts: Mapping[str, Verdict]
    warnings: tuple[str, ...] = ()

    @property
    def on(self) -> list[Verdict]:
        """The verdicts about plugins that take part."""
        return [verdict for verdict in self.verdicts.values() if verdict.on]


def decide(
    catalog: Catalog,
    words: Iterable[Switch],
    autoload: bool = True,
    autoload_source: str = "",
    strict: bool = False,
    own: Callable[[str], bool] = lambda _: False,
) -> Selection:
    """Decide about every plugin that is installed or spoken of.

    The strongest place in which a plugin is spoken of decides; there the last ``-p``
    word does, and where there is none, a setting that was given.

    Args:
        catalog: the plugins that can be named.
        words: what was said, inside each place in the order in which it was said.
        autoload: whether module and autouse plugins are on when nobody speaks of them.
        autoload_source: what switched autoload off, for the reason.
        strict: whether a name to switch off that is not installed is an error in every
            place; on the command line it always is.
        own: says whether a hook of the program itself may bear a name; it can be switched
            off by that, though it is installed nowhere.

    Raises:
        UsageError: a plugin to switch on is not installed, or one to switch off is not
            and that is an error; a part of hookbus was named, or an ambiguous name.
    """
    said: dict[str, list[Switch]] = {name: [] for name in catalog}
    for word in words:
        said.setdefault(_name_of(catalog, word), []).append(word)
    off = "" if autoload else autoload_source or "autoload is off"
    verdicts, warnings = {}, []
    for name in sorted(said):
        verdict = _verdict(name, catalog.plugins.get(name), said[name], off)
        verdicts[name] = verdict
        if verdict.installed is None:
            missing = verdict.on or not own(name)
            warnings += _missing(catalog, verdict, strict) if missing else []
    return Selection(catalog, verdicts, tuple(warnings))


def _name_of(catalog: Catalog, word: Switch) -> str:
    try:
        return catalog.name_of(word.plugin)
    except UsageError as error:
        raise UsageError(f"{word.source}: {error}") from None


def _verdict(
    name: str, plugin: Installed | None, words: Sequence[Switch], off: str
) -> Verdict:
    on, default = _default(plugin, off)
    if not words:
        return Verdict(name, on, default, plugin, default=default)
    # Stable: inside a place what is implied comes first, and the order stays.
    ordered = tuple(sorted(words, key=lambda word: (word.place, not word.implied)))
    last = ordered[-1]
    return Verdict(name, last.on, last.source, plugin, last, ordered, default)


def _default(plugin: Installed | None, off: str) -> tuple[bool, str]:
    """Say whether a plugin is on that nobody speaks of, and why; *off* says why not."""
    if plugin is None:
        return False, "not installed"
    if not plugin.autoloads:
        return False, "not switched on"
    return not off, off or ("autouse" if plugin.autouse else "found")


def _missing(catalog: Catalog, verdict: Verdict, strict: bool) -> list[str]:
    """Refuse a name that is not installed, or return the warning that it deserves."""
    word = verdict.decisive
    assert word is not None
    if verdict.name in CORE:
        how = "is always on" if verdict.on else "cannot be disabled"
        raise UsageError(f"{word.source}: {word.plugin!r} is part of hookbus and {how}")
    if verdict.on:
        raise UsageError(word.missing or _unknown(word, catalog))
    if any(other.on for other in verdict.words):
        return []  # it is no slip: somebody weaker wants a plugin that is not here
    message = _unknown(word, catalog)
    if strict or word.place is Precedence.COMMAND:
        raise UsageError(message)
    return [message]


def _unknown(word: Switch, catalog: Catalog) -> str:
    close = did_you_mean(word.plugin, catalog)
    if "," in word.plugin and word.source.startswith("-p"):
        close = "; one -p takes one name"
    if word.on:
        listed = ", ".join(catalog) or "none"
        hint = close or f"; installed plugins: {listed}"
        return f"{word.source}: no plugin or module called {word.plugin!r}{hint}"
    if word.source.startswith("-p"):
        close = close.replace(" '", " '-p no:")
    hint = close or ", and no hook of the program is called so yet"
    return f"{word.source}: no plugin called {word.plugin!r} is installed{hint}"


def check_required(
    required: Iterable[tuple[str, str]], verdicts: Mapping[str, Verdict]
) -> None:
    """See to it that all distributions are there which a config file requires.

    Args:
        required: each requirement, like ``hookbus-x>=0.2``, and where it was said.
        verdicts: one whose plugins are switched off counts as missing.

    Raises:
        UsageError: some are missing; all are named.
    """
    missing: dict[str, list[str]] = {}
    for text, source in required:
        lack = _lack(text, source, verdicts)
        if lack:
            missing.setdefault(source, []).append(f"{text} ({lack})")
    if missing:
        listed = [f"{source}: {', '.join(texts)}" for source, texts in missing.items()]
        raise UsageError(f"required plugins missing: {'; '.join(listed)}")


def _lack(text: str, source: str, verdicts: Mapping[str, Verdict]) -> str | None:
    wanted = _requirement(text)
    if wanted is None:
        raise UsageError(
            f"{source}: required_plugins: {text!r} is no requirement; write NAME or "
            "NAME>=VERSION"
        )
    if not _counts(wanted):
        return None
    found = _version_of(wanted.name, verdicts)
    if found is None:
        return "not installed"
    if not wanted.specifier.contains(found, prereleases=True):
        return f"installed: {found}"
    return _off(wanted.name, verdicts)


def _version_of(name: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """Return the version of a distribution, which a plugin's name stands for, too."""
    plugin = _plugins_of(name, verdicts)[:1]
    if plugin and plugin[0].installed is not None and plugin[0].installed.version:
        return plugin[0].installed.version
    try:
        return version_of(name)
    except ModuleNotFoundError:
        return None


def _plugins_of(name: str, verdicts: Mapping[str, Verdict]) -> list[Verdict]:
    wanted = canonical_name(name)
    shipped = [
        verdict
        for verdict in verdicts.values()
        if verdict.installed is not None
        and canonical_name(verdict.installed.distribution or "") == wanted
    ]
    return shipped or [v for n, v in verdicts.items() if n == wanted and v.installed]


def _off(name: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """Say why none of a distribution's plugins takes part, where that was said."""
    plugins = _plugins_of(name, verdicts)
    off = [v for v in plugins if not v.on and (v.blocked or v.why != "not switched on")]
    return f"off: {off[0].why}" if plugins and len(off) == len(plugins) else None


def select(
    config: Config,
    words: Iterable[Switch] = (),
    catalog: Catalog | None = None,
    showing: bool = False,
    own: Callable[[str], bool] = lambda _: False,
) -> Selection:
    """Decide about every plugin; nothing is imported.

    Args:
        config: what was said outside the code.
        words: what the code says.
        catalog: what is installed, by default looked up.
        showing: whether it is only for a look, and a distribution that is missing no error.
        own: says whether a hook of the program itself may bear a name.

    Raises:
        UsageError: a name is unknown, or a distribution is missing that is required.
    """
    every = (*words, *config.words)
    catalog = catalog or installed_plugins()
    catalog = catalog.with_modules(w.plugin for w in every if w.on)
    selection = decide(
        catalog, every, config.autoload, config.autoload_source, config.strict, own
    )
    warnings = [*slips(os.environ), *selection.warnings]
    try:
        check_required(config.required, selection.verdicts)
    except UsageError as error:
        if not showing:
            raise
        warnings.append(str(error))
    for warning in warnings:
        _warn_once(warning)
    return selection


@functools.cache
def _warn_once(message: str) -> None:
    """Warn; the command and each of its sessions decide anew about the same words."""
    log.warning(message)
