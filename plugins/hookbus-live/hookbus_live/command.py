"""Shows the runs below a folder side by side in the browser."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus import ExitCode, UsageError
from hookbus.errors import did_you_mean
from hookbus_live.requests import Asked
from hookbus_live.runs import Library, Run, directories_below
from hookbus_live.server import Server
from hookbus_live.web import application

_HOST, _MOST_PORT = "127.0.0.1", 65535
_VALUED = ("--port", "--host")
_SWITCHES = ("--open",)
HELP = """\
usage: hookbus view [flags] DIRECTORY

Show the runs in a directory and below it, side by side, in the browser:
finished ones, and those that are running. Only files are read: metrics.jsonl,
the journals of trackers, TensorBoard's event files, checkpoints and outcomes.
Ctrl-C ends it.

flags:
  --port N     the port of the page (default: one that is free)
  --host ADDR  listen at this address (default 127.0.0.1: only this machine can
               reach the page)
  --open       open the page in a browser
  -h, --help   show this help
"""


@attrs.frozen(eq=False)
class LibraryPage:
    """The runs that the page of a folder shows.

    Attributes:
        library: the runs.
    """

    library: Library

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"{self.library.root.resolve().name} - hookbus"

    @property
    def left_out(self) -> int:
        """How many runs are not shown."""
        return self.library.left_out

    @property
    def is_read_only(self) -> bool:
        """Whether the page may ask for nothing."""
        return True

    @property
    def submit(self) -> Callable[[Any], Asked] | None:
        """Takes actions: nobody would do them."""
        return None

    def all(self) -> Mapping[str, Run]:
        """Return the runs by name, and keep them up to date."""
        self.library.watched()
        return self.library.runs


def view(words: Sequence[str]) -> int:
    """Show the runs of a directory until Ctrl-C; return the exit code.

    Args:
        words: the words after ``hookbus view``.

    Raises:
        UsageError: a word is wrong, there is no training, or the port is taken.
    """
    flags, rest = _read(words)
    if "--help" in flags:
        print(HELP, end="")
        return ExitCode.OK
    if len(rest) != 1:
        raise UsageError("hookbus view takes one directory: hookbus view DIRECTORY")
    root = Path(rest[0])
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise UsageError(f"hookbus view: {str(root)!r} {what}; give a directory")
    if next(directories_below(root), None) is None:
        raise UsageError(
            f"there is no training in {str(root)!r}, or below it: none of its directories "
            "has metrics.jsonl, an event file, a journal of a tracker, an outcome or a "
            "checkpoint"
        )
    library = Library(root)
    app, host = application(LibraryPage(library)), flags.get("--host", _HOST)
    server = Server.started(app, host, _port(flags.get("--port", "0")), "hookbus view")
    library.start()
    print(f"showing {root} at {server.url} (Ctrl-C ends it)", flush=True)
    if "--open" in flags:
        webbrowser.open(server.url)
    try:
        server.wait()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        library.stop()
        server.stop()
    return ExitCode.OK


def _read(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the flags with their values, and the other words."""
    flags: dict[str, str] = {}
    rest: list[str] = []
    left = [*words]
    while left:
        word, _, value = left.pop(0).partition("=")
        if word in ("-h", "--help"):
            flags["--help"] = ""
        elif word in _SWITCHES:
            flags[word] = ""
        elif word in _VALUED:
            if not value and not left:
                raise UsageError(f"hookbus view: {word} needs a value")
            flags[word] = value or left.pop(0)
        elif word.startswith("-"):
            hint = did_you_mean(word, [*_VALUED, *_SWITCHES])
            raise UsageError(
                f"hookbus view has no flag {word!r}{hint} (hookbus view --help)"
            )
        else:
            rest.append(word + (f"={value}" if value else ""))
    return flags, rest


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _MOST_PORT:
        raise UsageError(
            f"hookbus view: --port {text}: give a number from 0 to {_MOST_PORT}"
        )
    return int(text)
