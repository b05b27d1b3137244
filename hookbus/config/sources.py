"""Reads the environment variables, and turns flags and options into settings of plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hookbus.config.declared import declared_settings, is_switch, longest, owner_of
from hookbus.config.keys import FLAGS, Entry, arguments, boolean, listed
from hookbus.config.parser import (
    NO_FLAGS,
    CommandFlags,
    ParsedFlags,
    PluginFlag,
    Precedence,
    lacks_value,
    parse_switch,
    read_flags,
)
from hookbus.config.settings import ON_ERROR, Alone, Setting
from hookbus.discovery import Catalog, published, to_install
from hookbus.errors import UsageError, clipped, did_you_mean, spelled

_PREFIX = "HOOKBUS_"
PLUGINS = "HOOKBUS_PLUGINS"
ADDOPTS = "HOOKBUS_ADDOPTS"
NO_AUTOLOAD = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
ENVIRONMENT = {
    PLUGINS: "plugins to switch on or off, like nan-tensor,no:progress",
    ADDOPTS: "flags to add before those on the command line",
    NO_AUTOLOAD: "true: keep plugins off that are on by default, unless named",
}
"""The environment variables that hookbus reads, each with its effect."""


def flags_of_environment(environ: Mapping[str, str]) -> list[ParsedFlags]:
    """Read the environment variables; return the flags in them, the weaker first.

    Raises:
        UsageError: one is invalid.
    """
    return [_environment_addopts(environ), _plugins(environ)]


def _environment_addopts(environ: Mapping[str, str]) -> ParsedFlags:
    try:
        flags = arguments(environ.get(ADDOPTS, ""))
    except ValueError as error:
        raise UsageError(f"{ADDOPTS}={spelled(environ[ADDOPTS])}: {error}") from None
    parsed = read_flags(flags, Precedence.ENVIRONMENT, ADDOPTS, is_switch=is_switch)
    if parsed.rest:
        raise UsageError(f"{ADDOPTS} has {spelled(parsed.rest[0])}, which is not a flag")
    return parsed


def _plugins(environ: Mapping[str, str]) -> ParsedFlags:
    words = tuple(
        parse_switch(word, clipped(f"{PLUGINS}={word}"), Precedence.ENVIRONMENT)
        for word in listed(environ.get(PLUGINS, ""))
    )
    text = environ.get(NO_AUTOLOAD, "")
    try:
        off = bool(text.strip()) and boolean(text)
    except ValueError as error:
        raise UsageError(f"{NO_AUTOLOAD}={spelled(text)}: {error}") from None
    keys = {"autoload": (not off, f"{NO_AUTOLOAD}={text}")} if text.strip() else {}
    return ParsedFlags(Precedence.ENVIRONMENT, words=words, keys=keys)


def slips(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like one of hookbus and is not read."""
    known = [name.removeprefix(_PREFIX) for name in ENVIRONMENT]
    every = f"; hookbus reads {', '.join(ENVIRONMENT)}"
    warnings = []
    for name in environ:
        if name.startswith(_PREFIX) and name not in ENVIRONMENT:
            close = did_you_mean(name.removeprefix(_PREFIX), known)
            hint = close.replace(" '", f" '{_PREFIX}") or every
            warnings.append(f"the variable {name} is not read{hint}")
    return warnings


def setting_of_flag(
    flag: PluginFlag, place: Precedence, catalog: Catalog, own: CommandFlags = NO_FLAGS
) -> Setting:
    """Return the setting that ``--NAME VALUE`` or ``--NAME-SETTING VALUE`` gives.

    A boolean setting may stand alone, or as ``--no-NAME-SETTING``.

    Raises:
        UsageError: no plugin has such a flag, or it lacks its value.
    """
    name, field, negated = None, "", False
    if flag.name.startswith("--"):
        name, field, negated = owner_of(flag.name, catalog)
    if name is None:
        known = [*own.switches, *own.valued, *FLAGS, *(f"--{plugin}" for plugin in catalog)]
        where = "" if own.mixed else "flags stand before the script; "
        missing, _, _ = owner_of(flag.name, published())
        hint = to_install(missing or "") or did_you_mean(flag.name, known)
        raise UsageError(
            f"unrecognized flag {flag.bare}{hint} ({where}see {own.command} --help)"
        )
    value: Any = flag.value
    if negated or value is None:
        value = _alone(flag, negated, name)
        declared = declared_settings(catalog.plugins[name])
        if field == ON_ERROR or (declared and not declared.may_be_boolean(field)):
            raise UsageError(value.otherwise)
    return Setting(name, field, value, flag.source, place)


def _alone(flag: PluginFlag, negated: bool, plugin: str) -> Alone:
    """Return the value of a flag that stands alone, as only that of a boolean may.

    Raises:
        UsageError: it is negated and has a value.
    """
    if not negated:
        return Alone(True, lacks_value(flag.name, flag.source, flag.following))
    if flag.value is not None:
        raise UsageError(f"{flag.source}: a flag with --no- takes no value")
    return Alone(
        False,
        f"{flag.source}: only settings that are true or false have a flag with --no-; to "
        f"switch the plugin off, write -p no:{plugin}",
    )


def setting_of_entry(entry: Entry, place: Precedence, catalog: Catalog) -> Setting:
    """Return the setting that ``-o NAME.SETTING=VALUE`` or a key in a section gives.

    Raises:
        UsageError: there is no such plugin.
    """
    if catalog.find(entry.plugin) is None:
        raise UsageError(
            f"{entry.source}: no plugin called {spelled(entry.plugin)} is installed"
            f"{catalog.hint(entry.plugin)}"
        )
    name = catalog.name_of(entry.plugin)
    field = entry.key.replace("-", "_")
    return Setting(name, field, entry.value, entry.source, place)


def looks_like_ours(arguments: Iterable[str], catalog: Catalog) -> str | None:
    """Return the first of a script's arguments that looks like a flag of hookbus."""
    own = {*FLAGS, "-p"}  # many scripts have flags -c and -o themselves
    for argument in arguments:
        name = argument.partition("=")[0]
        plugins = name.startswith("--") and longest(name[2:], catalog) is not None
        if name in own or plugins:
            return argument
    return None
