"""What the environment variables say."""

from __future__ import annotations

from collections.abc import Mapping

from hookbus.config.grammar import Said, read_flags
from hookbus.config.keys import arguments, boolean, listed
from hookbus.errors import UsageError, did_you_mean
from hookbus.places import Place
from hookbus.selection import parse_word

PLUGINS = "HOOKBUS_PLUGINS"
ADDOPTS = "HOOKBUS_ADDOPTS"
NO_AUTOLOAD = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
ENVIRONMENT = {
    PLUGINS: "plugins to switch on or off, like nan-tensor,no:progress",
    ADDOPTS: "flags that are put before those of the command line",
    NO_AUTOLOAD: "true: plugins that are on when found stay off unless named",
}
"""The environment variables that hookbus reads, and what each does."""


def said_by(environ: Mapping[str, str]) -> list[Said]:
    """Read the variables, the weaker first.

    Raises:
        UsageError: one cannot be understood.
    """
    return [_addopts(environ), _plugins(environ)]


def _addopts(environ: Mapping[str, str]) -> Said:
    try:
        flags = arguments(environ.get(ADDOPTS, ""))
    except ValueError as error:
        raise UsageError(f"{ADDOPTS}={environ[ADDOPTS]!r}: {error}") from None
    said = read_flags(flags, Place.ENVIRONMENT, ADDOPTS)
    if said.rest:
        raise UsageError(f"{ADDOPTS} has {said.rest[0]!r}, which is no flag")
    return said


def _plugins(environ: Mapping[str, str]) -> Said:
    words = [
        parse_word(word, f"{PLUGINS}={word}", Place.ENVIRONMENT)
        for word in listed(environ.get(PLUGINS, ""))
    ]
    text = environ.get(NO_AUTOLOAD, "")
    try:
        off = bool(text.strip()) and boolean(text)
    except ValueError as error:
        raise UsageError(f"{NO_AUTOLOAD}={text!r}: {error}") from None
    keys = {"autoload": (not off, f"{NO_AUTOLOAD}={text}")} if text.strip() else {}
    return Said(Place.ENVIRONMENT, tuple(words), keys=keys)


def slips(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable whose name is nearly that of one of ours."""
    ours = [n for n in environ if n.startswith("HOOKBUS_") and n not in ENVIRONMENT]
    hints = {name: did_you_mean(name, ENVIRONMENT) for name in ours}
    return [f"the variable {n} is not read{hint}" for n, hint in hints.items() if hint]
