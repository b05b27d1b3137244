"""Which plugins are on and why, decided from metadata and text before any import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from hookbus.errors import UsageError, did_you_mean
from hookbus.installed import CORE, Catalog, Installed
from hookbus.places import Place


@attrs.frozen
class Word:
    """One thing said about one plugin.

    Attributes:
        plugin: as it was spelled.
        on: whether it was switched on or off.
        source: where it was said, as the user would write it, like ``-p no:progress``.
        place: how strong that place is.
        implied: whether it is a setting that was given, which switches its plugin on.
        missing: what to say if the plugin is not installed, instead of the usual.
    """

    plugin: str
    on: bool
    source: str
    place: Place
    implied: bool = False
    missing: str = ""


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
    decisive: Word | None = None
    words: tuple[Word, ...] = ()
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


def parse_word(text: str, source: str, place: Place) -> Word:
    """Read ``NAME`` or ``no:NAME``.

    >>> parse_word("no:progress", "-p no:progress", Place.COMMAND).on
    False

    Raises:
        UsageError: the name is empty.
    """
    text = text.strip()
    on = not text.startswith("no:")
    name = text.removeprefix("no:").strip()
    if not name:
        raise UsageError(f"{source}: the plugin name is empty")
    return Word(name, on, source, place)


def decide(
    catalog: Catalog,
    words: Iterable[Word],
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
    said: dict[str, list[Word]] = {name: [] for name in catalog}
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


def _name_of(catalog: Catalog, word: Word) -> str:
    try:
        return catalog.name_of(word.plugin)
    except UsageError as error:
        raise UsageError(f"{word.source}: {error}") from None


def _verdict(
    name: str, plugin: Installed | None, words: Sequence[Word], off: str
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
    if strict or word.place is Place.COMMAND:
        raise UsageError(message)
    return [message]


def _unknown(word: Word, catalog: Catalog) -> str:
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
