"""How the command prints: tables, columns, errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from hookbus.errors import ExitCode, HookbusError, PluginError, UsageError


def discard(stream: TextIO) -> None:
    """Have a stream whose reader is gone take whatever is still to be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report(error: HookbusError) -> int:
    """Print an error for the user and return the exit code that it means."""
    kind = "PLUGIN ERROR" if isinstance(error, PluginError) else "ERROR"
    print(f"{kind}: {error}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(f"  {note}", file=sys.stderr)
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    return ExitCode.PLUGIN if isinstance(error, PluginError) else ExitCode.FAILED


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
