"""How what was said in all places is put together, the weakest place first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.config import files
from hookbus.config.environment import said_by
from hookbus.config.files import ConfigFile, Entry
from hookbus.config.grammar import Option, Said, read_flags
from hookbus.config.keys import value_of
from hookbus.config.owners import setting_of_flag, setting_of_option
from hookbus.config.settings import Setting
from hookbus.errors import UsageError, did_you_mean
from hookbus.installed import Catalog, installed_plugins
from hookbus.places import Place
from hookbus.selection import Word, parse_word


@attrs.frozen
class Gathered:
    """What was said in all places, sorted by kind.

    Attributes:
        words: about plugins, in each place in the order in which they count.
        settings: of plugins.
        keys: hookbus' own, name to (value, source) of the strongest place.
        file: the config file; None without one.
    """

    words: tuple[Word, ...]
    settings: tuple[Setting, ...]
    keys: Mapping[str, tuple[Any, str]]
    file: ConfigFile | None


def gather(command: Said, environ: Mapping[str, str], directory: Path | None) -> Gathered:
    """Read the file and the environment, and add what the command line said.

    Args:
        command: what it said.
        environ: the variables.
        directory: where to look for the file; None where there is no such folder.

    Raises:
        UsageError: something cannot be understood or contradicts itself.
    """
    environment = said_by(environ)
    file = _file((command, *environment), directory)
    places = _with_addopts([*_said_in(file), *environment, command])
    keys = _strongest_keys(places)
    words = tuple(word for said in places for word in _words(said, keys))
    catalog = _catalog(words)
    given = [setting for said in places for setting in _settings(said, catalog)]
    _check_contradictions(words, given, catalog)
    implied = [Word(s.plugin, True, s.source, s.place, implied=True) for s in given]
    sections = _sections(file, catalog)
    return Gathered((*words, *implied), (*sections, *given), keys, file)


def _file(places: Iterable[Said], directory: Path | None) -> ConfigFile | None:
    for said in places:
        if said.file is not None:
            return files.read((directory or Path()) / said.file, named=True)
    return files.find(directory) if directory is not None else None


def _said_in(file: ConfigFile | None) -> list[Said]:
    """Return hookbus' own keys of a file."""
    own = [entry for entry in file.entries if not entry.section] if file else []
    keys = {e.key: (value_of(e.key, e.value, e.source), _told(e)) for e in own}
    return [Said(Place.FILE, keys=keys)]


def _told(entry: Entry) -> str:
    """Return where a key was said; a short value is told with it."""
    short = entry.value in ("true", "false")
    return f"{entry.source}: {entry.key} = {entry.value}" if short else entry.source


def _with_addopts(places: Sequence[Said]) -> list[Said]:
    """Put in the flags of the strongest ``addopts``, before what else its place said."""
    giving = [said for said in places if "addopts" in said.keys]
    found: list[Said] = []
    for said in places:
        if giving and said is giving[-1]:
            found.append(_addopts(said))
        found.append(said)
    return found


def _addopts(said: Said) -> Said:
    flags, source = said.keys["addopts"]
    added = read_flags(flags, said.place, source)
    if added.rest:
        raise UsageError(f"{source}: addopts has {added.rest[0]!r}, which is no flag")
    for key in ("addopts", "-c"):
        if key in added.keys or (key == "-c" and added.file is not None):
            raise UsageError(f"{source}: addopts cannot hold {key}")
    return added


def _strongest_keys(places: Iterable[Said]) -> dict[str, tuple[Any, str]]:
    keys: dict[str, tuple[Any, str]] = {}
    for said in places:
        keys |= said.keys
    return keys


def _words(said: Said, keys: Mapping[str, tuple[Any, str]]) -> Iterable[Word]:
    """Return what a place says about plugins; ``plugins`` only if no stronger one does."""
    yield from said.words
    listed = said.keys.get("plugins")
    if listed is not None and listed is keys["plugins"]:
        names, source = listed
        for name in names:
            yield parse_word(name, f"{source}: plugins = {name}", said.place)


def _catalog(words: Sequence[Word]) -> Callable[[], Catalog]:
    """Return what reads the metadata of all plugins when it is first needed."""
    named = [word.plugin for word in words if word.on]
    return functools.cache(lambda: installed_plugins().with_modules(named))


def _settings(said: Said, catalog: Callable[[], Catalog]) -> Iterable[Setting]:
    for flag in said.flags:
        yield setting_of_flag(flag, said.place, catalog(), said.own)
    for option in said.options:
        yield setting_of_option(option, said.place, catalog())


def _sections(file: ConfigFile | None, catalog: Callable[[], Catalog]) -> Iterable[Setting]:
    if file is None:
        return ()
    for section, source in file.sections:
        if catalog().find(section) is None:
            raise UsageError(
                f"{source}: a section for {section!r}, and no plugin of that name is "
                f"installed{did_you_mean(section, catalog())}"
            )
    options = [Option(e.section, e.key, e.value, e.source) for e in file.entries]
    return [setting_of_option(o, Place.FILE, catalog()) for o in options if o.plugin]


def _check_contradictions(
    words: Sequence[Word], settings: Sequence[Setting], catalog: Callable[[], Catalog]
) -> None:
    """Refuse ``--NAME-SETTING`` beside a last word of ``-p no:NAME``.

    In one command line that is a slip; elsewhere the setting waits for its plugin.
    """
    here = [setting for setting in settings if setting.place is Place.COMMAND]
    if not here:
        return
    spoken = [word for word in words if word.place is Place.COMMAND]
    last = {catalog().name_of(word.plugin): word for word in spoken}
    for setting in here:
        word = last.get(setting.plugin)
        if word is not None and not word.on:
            raise UsageError(
                f"{setting.source} sets plugin {setting.plugin!r}, which {word.source} "
                "switches off; drop one of the two"
            )
