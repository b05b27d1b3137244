"""What every command's command line has in common: plugin flags, and help for them."""

from __future__ import annotations

from collections.abc import Sequence

from hookbus.config.config import Config
from hookbus.config.keys import KEYS
from hookbus.config.parser import CommandFlags, ParsedFlags, Precedence, read_flags
from hookbus.errors import UsageError

HELP = ("-h", "--help")
FLAGS = {
    "-p NAME": "switch plugin NAME on; -p no:NAME switches it off, before import; "
    "repeatable, the last word wins",
    "-c FILE": "read this config file instead of the one that is found",
    "-o KEY=VALUE": "override one key of the config file; NAME.SETTING=VALUE sets plugin "
    "NAME and switches it on",
    "--disable-plugin-autoload": KEYS["autoload"].help.removeprefix("false: "),
    "--strict-plugins": KEYS["strict_plugins"].help.removeprefix("true: "),
    "--trace-plugins": KEYS["trace_plugins"].help.removeprefix("true: "),
    "--log-format FORMAT": KEYS["log_format"].help,
    "--NAME VALUE": "switch plugin NAME on and set its main setting",
    "--NAME-SETTING VALUE": "switch plugin NAME on and set one of its settings",
    "-h, --help": "show this",
}
"""The flags that every command about plugins takes, and what each does."""


def read(
    command: str,
    arguments: Sequence[str],
    switches: Sequence[str] = (),
    most: int = 0,
) -> tuple[ParsedFlags, Config]:
    """Read the command line of a command that runs no script.

    Args:
        command: how it is called, for messages.
        arguments: what stands behind its name.
        switches: its own flags without a value.
        most: how many arguments it takes that are no flags.

    Raises:
        UsageError: a flag is unknown or lacks its value, or there are more arguments.
    """
    own = CommandFlags(command, (*HELP, *switches), mixed=True)
    said = read_flags(arguments, Precedence.COMMAND, own=own)
    if len(said.rest) > most:
        known = ", ".join((*switches, "-p", "-c", "-o"))
        raise UsageError(
            f"{command} does not take {said.rest[most]!r}; it takes {known} and the other "
            f"flags of hookbus run ({command} --help)"
        )
    return said, Config.gathered(said)


def wants_help(said: ParsedFlags) -> bool:
    """Say whether help was asked for."""
    return bool(said.switches.intersection(HELP))
