"""What every command's command line has in common: plugin flags, and help for them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hookbus.config import Config
from hookbus.config.grammar import Own, Said, read_flags
from hookbus.config.keys import KEYS
from hookbus.errors import UsageError
from hookbus.places import Place

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
) -> tuple[Said, Config]:
    """Read the command line of a command that runs no script.

    Args:
        command: how it is called, for messages.
        arguments: what stands behind its name.
        switches: its own flags without a value.
        most: how many arguments it takes that are no flags.

    Raises:
        UsageError: a flag is unknown or lacks its value, or there are more arguments.
    """
    own = Own(command, (*HELP, *switches), mixed=True)
    said = read_flags(arguments, Place.COMMAND, own=own)
    if len(said.rest) > most:
        known = ", ".join((*switches, "-p", "-c", "-o"))
        raise UsageError(
            f"{command} does not take {said.rest[most]!r}; it takes {known} and the other "
            f"flags of hookbus run ({command} --help)"
        )
    return said, Config.gathered(said)


def wants_help(said: Said) -> bool:
    """Say whether help was asked for."""
    return bool(said.switches.intersection(HELP))


def columns(texts: Mapping[str, str]) -> list[str]:
    """Lay out names and what each means, as lines.

    >>> columns({"-h": "show this", "-p NAME": "a plugin"})
    ['  -h       show this', '  -p NAME  a plugin']
    """
    width = max(map(len, texts), default=0)
    return [f"  {name:{width}}  {text}".rstrip() for name, text in texts.items()]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows below a head.

    >>> print(table(["name"], [["progress"]]), end="")
    NAME
    progress
    """
    cells = [[cell.upper() for cell in head], *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def own_folder_first(script: str | None = None) -> None:
    """Have modules found as under ``python script.py``, or ``python -m`` without one."""
    if sys.flags.safe_path:
        return
    with contextlib.suppress(OSError):  # the current folder may be gone
        sys.path[0] = str(Path(script).resolve().parent) if script else str(Path.cwd())
