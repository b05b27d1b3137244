"""Whose setting a flag or a key is: the longest installed plugin name that fits."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hookbus.config.grammar import NONE, Flag, Option, Own, lacks_value
from hookbus.config.keys import FLAGS
from hookbus.config.settings import Setting
from hookbus.errors import UsageError, did_you_mean
from hookbus.installed import Catalog
from hookbus.places import Place


def setting_of_flag(flag: Flag, place: Place, catalog: Catalog, own: Own = NONE) -> Setting:
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


def setting_of_option(option: Option, place: Place, catalog: Catalog) -> Setting:
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
