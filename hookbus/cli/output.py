"""Prints tables, columns and errors of the command."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

from hookbus.errors import ExitCode, PluginError, UsageError, escaped, text_of
from hookbus.logs import Stderr

_WIDEST_NAME = 26


def flush_stdout() -> None:
    """Write out what was printed; a program may have closed or removed ``sys.stdout``."""
    if sys.stdout is not None:
        with contextlib.suppress(ValueError):  # it is closed
            sys.stdout.flush()


def report(error: BaseException, text: str = "") -> int:
    """Print an error for the user, as *text* if given, and return its exit code."""
    kind = "PLUGIN ERROR" if isinstance(error, PluginError) else "ERROR"
    # A text of the user in it, or of a library, may hold what a terminal acts on.
    lines = f"{kind}: {text or text_of(error)}".split("\n")
    print("\n".join(map(escaped, lines)), file=Stderr())
    _print_notes(error)
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    return ExitCode.PLUGIN if isinstance(error, PluginError) else ExitCode.FAILED


def report_interruption(error: KeyboardInterrupt) -> int:
    """Print that the user interrupted the command, and where; return the exit code."""
    print("interrupted", file=Stderr())
    _print_notes(error)
    return ExitCode.INTERRUPTED


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        print("\n".join(map(escaped, f"  {note}".split("\n"))), file=Stderr())


def width() -> int:
    """Return the width of the terminal; 80 columns without one, or ``COLUMNS``."""
    return shutil.get_terminal_size().columns


def printable(text: str) -> str:
    r"""Return text with everything escaped that a terminal would act on, or not show.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return escaped(text.encode(encoding, "backslashreplace").decode(encoding))


def shorten(text: str, most: int) -> str:
    """Return text with an ellipsis in place of everything beyond *most* characters.

    >>> shorten("stop-at-checkpoint-step", 12)
    'stop-at-c...'
    """
    return text if len(text) <= most else f"{text[: max(most - 3, 0)].rstrip()}..."


def columns(texts: Mapping[str, str]) -> list[str]:
    """Lay out names and their descriptions as lines that fit the terminal.

    >>> columns({"-h": "show this help", "-p NAME": "switch a plugin on"})
    ['  -h       show this help', '  -p NAME  switch a plugin on']
    """
    column = min(max(map(len, texts), default=0), _WIDEST_NAME) + 4
    lines = []
    for name, text in texts.items():
        head = f"  {printable(name)}"
        words = printable(" ".join(text.split()))
        wrapped = textwrap.wrap(words, max(width() - column, 20), break_on_hyphens=False)
        if wrapped and len(head) + 2 <= column:
            head = f"{head:{column}}{wrapped.pop(0)}"
        lines += [head, *(" " * column + line for line in wrapped)]
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows below a head.

    >>> print(table(["name"], [["progress"]]), end="")
    NAME
    progress
    """
    cells = [[cell.upper() for cell in head], *([*map(printable, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"
