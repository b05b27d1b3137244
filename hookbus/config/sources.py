"""How file, environment and command line are put together, the weakest first."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.config import files
from hookbus.config.files import ConfigFile, Entry
from hookbus.config.keys import FLAGS, arguments, boolean, listed, value_of
from hookbus.config.parser import (
    NO_FLAGS,
    CommandFlags,
    ParsedFlags,
    PluginFlag,
    PluginOption,
    Precedence,
    Switch,
    lacks_value,
    parse_switch,
    read_flags,
)
from hookbus.config.settings import Setting
from hookbus.discovery import Catalog, installed_plugins
from hookbus.errors import UsageError, did_you_mean

PLUGINS = "HOOKBUS_PLUGINS"
ADDOPTS = "HOOKBUS_ADDOPTS"
NO_AUTOLOAD = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
ENVIRONMENT = {
    PLUGINS: "plugins to switch on or off, like nan-tensor,no:progress",
    ADDOPTS: "flags that are put before those of the command line",
    NO_AUTOLOAD: "true: plugins that are on when found stay off unless named",
}
"""The environment variables that hookbus reads, and what each does."""


def said_by(environ: Mapping[str, str]) -> list[ParsedFlags]:
    """Read the variables, the weaker first.

    Raises:
        UsageError: one cannot be understood.
    """
    return [_environment_addopts(environ), _plugins(environ)]


def _environment_addopts(environ: Mapping[str, str]) -> ParsedFlags:
    try:
        flags = arguments(environ.get(ADDOPTS, ""))
    except ValueError as error:
        raise UsageError(f"{ADDOPTS}={environ[ADDOPTS]!r}: {error}") from None
    said = read_flags(flags, Precedence.ENVIRONMENT, ADDOPTS)
    if said.rest:
        raise UsageError(f"{ADDOPTS} has {said.rest[0]!r}, which is no flag")
    return said


def _plugins(environ: Mapping[str, str]) -> ParsedFlags:
    words = [
        parse_switch(word, f"{PLUGINS}={word}", Precedence.ENVIRONMENT)
        for word in listed(environ.get(PLUGINS, ""))
    ]
    text = environ.get(NO_AUTOLOAD, "")
    try:
        off = bool(text.strip()) and boolean(text)
    except ValueError as error:
        raise UsageError(f"{NO_AUTOLOAD}={text!r}: {error}") from None
    keys = {"autoload": (not off, f"{NO_AUTOLOAD}={text}")} if text.strip() else {}
    return ParsedFlags(Precedence.ENVIRONMENT, tuple(words), keys=keys)


def slips(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable whose name is nearly that of one of ours."""
    ours = [n for n in environ if n.startswith("HOOKBUS_") and n not in ENVIRONMENT]
    hints = {name: did_you_mean(name, ENVIRONMENT) for name in ours}
    return [f"the variable {n} is not read{hint}" for n, hint in hints.items() if hint]


def setting_of_flag(
    flag: PluginFlag, place: Precedence, catalog: Catalog, own: CommandFlags = NO_FLAGS
) -> Setting:
    """Return what ``--NAME VALUE`` or ``--NAME-SETTING VALUE`` sets.

    Raises:
        UsageError: no plugin has such a flag, or it lacks its value.
    """
    spelled = re.sub("[_.]", "-", flag.name.lstrip("-")).lower()
    name = longest(spelled, catalog) if flag.name.startswith("--") else None
    if name is None:
        known = [*own.switches, *own.valued, *FLAGS, *(f"--{plugin}" for plugin in catalog)]
        where = "" if own.mixed else "flags stand before the script; "
        raise UsageError(
            f"unrecognized flag {flag.source}{did_you_mean(flag.name, known)} "
            f"({where}see {own.command} --help)"
        )
    if flag.value is None:
        raise UsageError(lacks_value(flag.name, flag.source, flag.following))
    field = spelled[len(name) + 1 :].replace("-", "_")
    return Setting(name, field, flag.value, flag.source, place)


def setting_of_option(option: PluginOption, place: Precedence, catalog: Catalog) -> Setting:
    """Return what ``-o NAME.SETTING=VALUE`` or a key in a plugin's section sets.

    Raises:
        UsageError: there is no such plugin.
    """
    if catalog.find(option.plugin) is None:
        raise UsageError(
            f"{option.source}: no plugin called {option.plugin!r} is installed"
            f"{did_you_mean(option.plugin, catalog)}"
        )
    name = catalog.name_of(option.plugin)
    field = option.key.replace("-", "_")
    return Setting(name, field, option.value, option.source, place)


def looks_like_ours(arguments: Iterable[str], catalog: Catalog) -> str | None:
    """Return the first of a script's arguments that is spelled like a flag of hookbus."""
    own = {*FLAGS, "-p"}  # many scripts have a -c and a -o of their own
    for argument in arguments:
        name = argument.partition("=")[0]
        plugins = name.startswith("--") and longest(name[2:], catalog) is not None
        if name in own or plugins:
            return argument
    return None


def longest(spelled: str, names: Iterable[str]) -> str | None:
    """Return the longest name that *spelled* is or begins with.

    >>> longest("stop-at-step-last", ["stop", "stop-at-step"])
    'stop-at-step'
    """
    fits = [n for n in names if spelled == n or spelled.startswith(f"{n}-")]
    return max(fits, key=len, default=None)


@attrs.frozen
class Gathered:
    """What was said in all places, sorted by kind.

    Attributes:
        words: about plugins, in each place in the order in which they count.
        settings: of plugins.
        keys: hookbus' own, name to (value, source) of the strongest place.
        file: the config file; None without one.
    """

    words: tuple[Switch, ...]
    settings: tuple[Setting, ...]
    keys: Mapping[str, tuple[Any, str]]
    file: ConfigFile | None


def gather(
    command: ParsedFlags, environ: Mapping[str, str], directory: Path | None
) -> Gathered:
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
    implied = [Switch(s.plugin, True, s.source, s.place, implied=True) for s in given]
    sections = _sections(file, catalog)
    return Gathered((*words, *implied), (*sections, *given), keys, file)


def _file(places: Iterable[ParsedFlags], directory: Path | None) -> ConfigFile | None:
    for said in places:
        if said.file is not None:
            return files.read((directory or Path()) / said.file, named=True)
    return files.find(directory) if directory is not None else None


def _said_in(file: ConfigFile | None) -> list[ParsedFlags]:
    """Return hookbus' own keys of a file."""
    own = [entry for entry in file.entries if not entry.section] if file else []
    keys = {e.key: (value_of(e.key, e.value, e.source), _told(e)) for e in own}
    return [ParsedFlags(Precedence.FILE, keys=keys)]


def _told(entry: Entry) -> str:
    """Return where a key was said; a short value is told with it."""
    short = entry.value in ("true", "false")
    return f"{entry.source}: {entry.key} = {entry.value}" if short else entry.source


def _with_addopts(places: Sequence[ParsedFlags]) -> list[ParsedFlags]:
    """Put in the flags of the strongest ``addopts``, before what else its place said."""
    giving = [said for said in places if "addopts" in said.keys]
    found: list[ParsedFlags] = []
    for said in places:
        if giving and said is giving[-1]:
            found.append(_addopts(said))
        found.append(said)
    return found


def _addopts(said: ParsedFlags) -> ParsedFlags:
    flags, source = said.keys["addopts"]
    added = read_flags(flags, said.place, source)
    if added.rest:
        raise UsageError(f"{source}: addopts has {added.rest[0]!r}, which is no flag")
    for key in ("addopts", "-c"):
        if key in added.keys or (key == "-c" and added.file is not None):
            raise UsageError(f"{source}: addopts cannot hold {key}")
    return added


def _strongest_keys(places: Iterable[ParsedFlags]) -> dict[str, tuple[Any, str]]:
    keys: dict[str, tuple[Any, str]] = {}
    for said in places:
        keys |= said.keys
    return keys


def _words(said: ParsedFlags, keys: Mapping[str, tuple[Any, str]]) -> Iterable[Switch]:
    """Return what a place says about plugins; ``plugins`` only if no stronger one does."""
    yield from said.words
    listed = said.keys.get("plugins")
    if listed is not None and listed is keys["plugins"]:
        names, source = listed
        for name in names:
            yield parse_switch(name, f"{source}: plugins = {name}", said.place)


def _catalog(words: Sequence[Switch]) -> Callable[[], Catalog]:
    """Return what reads the metadata of all plugins when it is first needed."""
    named = [word.plugin for word in words if word.on]
    return functools.cache(lambda: installed_plugins().with_modules(named))


def _settings(said: ParsedFlags, catalog: Callable[[], Catalog]) -> Iterable[Setting]:
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
    options = [PluginOption(e.section, e.key, e.value, e.source) for e in file.entries]
    return [setting_of_option(o, Precedence.FILE, catalog()) for o in options if o.plugin]


def _check_contradictions(
    words: Sequence[Switch], settings: Sequence[Setting], catalog: Callable[[], Catalog]
) -> None:
    """Refuse ``--NAME-SETTING`` beside a last word of ``-p no:NAME``.

    In one command line that is a slip; elsewhere the setting waits for its plugin.
    """
    here = [setting for setting in settings if setting.place is Precedence.COMMAND]
    if not here:
        return
    spoken = [word for word in words if word.place is Precedence.COMMAND]
    last = {catalog().name_of(word.plugin): word for word in spoken}
    for setting in here:
        word = last.get(setting.plugin)
        if word is not None and not word.on:
            raise UsageError(
                f"{setting.source} sets plugin {setting.plugin!r}, which {word.source} "
                "switches off; drop one of the two"
            )
