"""Decides which plugins are on, and why, before any is imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from hookbus.config.config import Config
from hookbus.config.declared import unknown_field
from hookbus.config.parser import Precedence, Switch, joined
from hookbus.config.settings import no_such_setting
from hookbus.config.sources import slips
from hookbus.discovery import (
    CORE,
    Catalog,
    Installed,
    canonical_name,
    installed_plugins,
    version_of,
)
from hookbus.errors import UsageError, spelled
from hookbus.logs import log
from hookbus.plugin.requirements import counts, requirement_in


@attrs.frozen
class Verdict:
    """The decision about one plugin, with its reason.

    Attributes:
        name: the plugin's name.
        on: whether it takes part.
        why: the reason in words.
        installed: its metadata; None where it is not installed.
        decisive: the switch that decided; None if the default did.
        words: all switches of it, the strongest last.
        default: the default in words.
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
        """Whether it is switched off by name; then its objects in code are as well."""
        return self.decisive is not None and not self.on

    @property
    def given(self) -> str:
        """Every switch and setting that switches it on, as the user wrote them."""
        if self.decisive is None:
            return self.why
        ordered = sorted(self.words, key=lambda word: (word.place, word.implied))
        return joined(dict.fromkeys(word.source for word in ordered if word.on))


@attrs.frozen
class Selection:
    """The decisions about every plugin that is installed or named.

    Attributes:
        catalog: the plugins that can be named.
        verdicts: by name, sorted.
        warnings: likely mistakes that do not stop a run.
    """

    catalog: Catalog
    verdicts: Mapping[str, Verdict]
    warnings: tuple[str, ...] = ()

    @property
    def on(self) -> list[Verdict]:
        """The verdicts about plugins that are on."""
        return [verdict for verdict in self.verdicts.values() if verdict.on]

    def named(self, word: str) -> Verdict:
        """Return the verdict about the plugin that a word of the user means.

        Raises:
            UsageError: no such plugin is installed.
        """
        verdict = self.verdicts.get(self.catalog.name_of(word))
        if verdict is None:
            every = f"; installed plugins: {_listed(self.catalog)}"
            hint = self.catalog.hint(word) or every
            raise UsageError(f"no plugin called {spelled(word)} is installed{hint}")
        return verdict


def decide(
    catalog: Catalog,
    words: Iterable[Switch],
    config: Config,
    own: Callable[[str], bool] = lambda _: False,
) -> Selection:
    """Decide about every plugin that is installed or named.

    The strongest place that names a plugin decides: there its last ``-p`` counts, and
    without a ``-p`` any setting of it.

    Args:
        catalog: the plugins that can be named.
        words: the switches, those of one place in their order.
        config: whether plugins are on by default, and whether a name to switch off that is
            not installed is an error in every place; on the command line it always is.
        own: returns whether a name may be that of a hook in the program itself, which can
            be switched off although it is not installed.

    Raises:
        UsageError: a plugin to switch on is not installed, or one to switch off is not
            and that is an error; or a name is ambiguous or that of a part of hookbus.
    """
    given: dict[str, list[Switch]] = {name: [] for name in catalog}
    for word in words:
        given.setdefault(_name_of(catalog, word), []).append(word)
    off = "" if config.autoload else config.autoload_source or "autoload is off"
    verdicts, warnings = {}, []
    for name in sorted(given):
        verdict = _verdict(name, catalog.plugins.get(name), given[name], off)
        verdicts[name] = verdict
        if verdict.installed is None and (verdict.on or not own(name)):
            warnings += _missing(catalog, verdict, config.strict)
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
    # The sort is stable: implied switches come first in a place, the others keep order.
    ordered = tuple(sorted(words, key=lambda word: (word.place, not word.implied)))
    last = ordered[-1]
    return Verdict(name, last.on, last.source, plugin, last, ordered, default)


def _default(plugin: Installed | None, off: str) -> tuple[bool, str]:
    """Return whether a plugin is on by default, and why; *off* is the reason if not."""
    if plugin is None:
        return False, "not installed"
    if not plugin.autoloads:
        return False, "not switched on"
    return not off, off or ("autouse" if plugin.autouse else "found")


def _missing(catalog: Catalog, verdict: Verdict, strict: bool) -> list[str]:
    """Raise for a name that is not installed, or return a warning."""
    word = verdict.decisive
    assert word is not None
    if verdict.name in CORE:
        how = "is always on" if verdict.on else "cannot be disabled"
        raise UsageError(f"{word.source}: {word.plugin!r} is part of hookbus and {how}")
    if verdict.on:
        raise UsageError(word.missing or _unknown(word, catalog))
    if any(other.on for other in verdict.words):
        return []  # not a slip: a weaker place switches on a plugin that is not installed
    message = _unknown(word, catalog)
    if strict or word.place is Precedence.COMMAND:
        raise UsageError(message)
    return [message]


def _unknown(word: Switch, catalog: Catalog) -> str:
    close = catalog.hint(word.plugin)
    if "," in word.plugin and word.source.startswith("-p"):
        close = "; one -p takes one name"
    if word.on:
        hint = close or f"; installed plugins: {_listed(catalog)}"
        return f"{word.source}: no plugin or module called {spelled(word.plugin)}{hint}"
    if word.source.startswith("-p") and "pip" not in close:
        close = close.replace(" '", " '-p no:")
    hint = close or ", and no hook of the program has that name yet"
    return f"{word.source}: no plugin called {spelled(word.plugin)} is installed{hint}"


def _listed(catalog: Catalog) -> str:
    return ", ".join(catalog) or "none"


def check_required(
    required: Iterable[tuple[str, str]], verdicts: Mapping[str, Verdict]
) -> None:
    """Check that all required distributions are installed.

    Args:
        required: each requirement, like ``hookbus-x>=0.2``, and where it is given.
        verdicts: a distribution whose plugins are switched off counts as missing.

    Raises:
        UsageError: some are missing; the message names all of them.
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
    wanted = requirement_in(text)
    if wanted is None:
        raise UsageError(
            f"{source}: required_plugins: {text!r} is not a requirement; write NAME or "
            "NAME>=VERSION"
        )
    if not counts(wanted):
        return None
    plugins = _plugins_of(wanted.name, verdicts)
    found = _version_of(wanted.name, plugins)
    if found is None:
        return "not installed"
    if not wanted.specifier.contains(found, prereleases=True):
        return f"installed: {found}"
    off = [v for v in plugins if not v.on and (v.blocked or v.why != "not switched on")]
    return f"off: {off[0].why}" if off and len(off) == len(plugins) else None


def _version_of(name: str, plugins: Sequence[Verdict]) -> str | None:
    plugin = plugins[0].installed if plugins else None
    if plugin is not None and plugin.version:
        return plugin.version
    try:
        return version_of(name)
    except ModuleNotFoundError:
        return None


def _plugins_of(name: str, verdicts: Mapping[str, Verdict]) -> list[Verdict]:
    """Return the plugins of a distribution, which the name of its plugin finds as well."""
    wanted = canonical_name(name)
    shipped = [
        verdict
        for verdict in verdicts.values()
        if verdict.installed is not None
        and canonical_name(verdict.installed.distribution or "") == wanted
    ]
    return shipped or [v for n, v in verdicts.items() if n == wanted and v.installed]


def select(
    config: Config,
    words: Iterable[Switch] = (),
    catalog: Catalog | None = None,
    showing: bool = False,
    own: Callable[[str], bool] = lambda _: False,
) -> Selection:
    """Decide about every plugin; import none.

    Args:
        config: the switches and settings that are given outside the code.
        words: the switches that the code gives.
        catalog: the installed plugins, by default looked up.
        showing: whether a missing distribution is a warning, for commands that only show.
        own: returns whether a name may be that of a hook in the program itself.

    Raises:
        UsageError: a name is unknown, or a required distribution is missing.
    """
    every = (*words, *config.words)
    catalog = catalog or installed_plugins()
    catalog = catalog.with_modules(w.plugin for w in every if w.on)
    selection = decide(catalog, every, config, own)
    warnings = [*slips(os.environ), *selection.catalog.faults, *selection.warnings]
    warnings += _idle_slips(selection, config)
    try:
        check_required(config.required, selection.verdicts)
    except UsageError as error:
        if not showing:
            raise
        warnings.append(str(error))
    for warning in warnings:
        _warn_once(warning)
    return selection


def _idle_slips(selection: Selection, config: Config) -> Iterator[str]:
    """Yield a warning for each setting that a plugin which is off certainly lacks.

    A plugin that is on refuses the setting; this one is not imported.
    """
    for name, verdict in selection.verdicts.items():
        settings = () if verdict.on else config.settings_of(name)
        for setting in settings:
            known = verdict.installed and unknown_field(verdict.installed, setting.field)
            if known:
                yield no_such_setting(setting, setting.field, known)


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning once, although the command and each session repeat the decision."""
    log.warning(message)
