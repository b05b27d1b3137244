"""A terminal for tests: a pseudo-terminal that a child draws on, and what it then shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from tests.support import commands

_SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
_PATIENCE = 30


@attrs.frozen
class Show:
    """Holds what a child wrote to its terminal, and to a stdout that is not one."""

    code: int
    text: str
    stdout: str

    @property
    def screen(self) -> list[str]:
        """The lines that the terminal shows in the end."""
        lines, row, column, place = [""], 0, 0, 0
        while place < len(self.text):
            sequence = _SEQUENCE.match(self.text, place)
            if sequence:
                number, command = sequence.groups()
                row -= int(number or 1) if command == "A" else 0
                if command == "K":
                    lines[row] = "" if number == "2" else lines[row][:column]
                place = sequence.end()
                continue
            letter = self.text[place]
            place += 1
            if letter == "\r":
                column = 0
            elif letter == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            else:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + letter + line[column + 1 :]
                column += 1
        return [line.rstrip() for line in lines if line.strip()]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Show]:
    """Return a function that runs ``hookbus run FLAGS SCRIPT`` on a terminal.

    Once the terminal has shown *wait_for*, the child gets the line *types* on its stdin.
    """
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def run(
        script: str,
        *flags: str,
        wait_for: str = "",
        types: str = "",
        stdout_too: bool = True,
    ) -> Show:
        Path("script.py").write_text(script, "utf-8")
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        child = subprocess.Popen(
            [sys.executable, "-m", "hookbus", "run", *flags, "script.py"],
            stdin=subprocess.PIPE,
            stdout=theirs if stdout_too else subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        try:
            with child:
                text = _watch(ours, child, wait_for, types)
                stdout = "" if child.stdout is None else child.stdout.read().decode()
        finally:
            os.close(ours)
        return Show(child.returncode, text, stdout)

    return run


def _watch(terminal: int, child: subprocess.Popen[bytes], wait_for: str, types: str) -> str:
    """Read until the child is gone; let it go on when *wait_for* has been shown."""
    seen = b""
    assert child.stdin is not None
    while True:
        if not child.stdin.closed and wait_for.encode() in seen:
            child.stdin.write(f"{types}\n".encode())
            child.stdin.close()
        if not select.select([terminal], [], [], _PATIENCE)[0]:
            child.kill()
            waits = "" if child.stdin.closed else f", and never {wait_for!r}"
            pytest.fail(f"nothing more in {_PATIENCE} seconds{waits}: {seen.decode()!r}")
        try:
            read = os.read(terminal, 65536)
        except OSError:  # the other end is closed: the child is gone
            return seen.decode()
        if not read:
            return seen.decode()
        seen += read


@pytest.fixture
def run_without_terminal() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs ``hookbus run FLAGS SCRIPT`` with pipes."""

    def run(script: str, *flags: Sequence[str]) -> subprocess.CompletedProcess[str]:
        Path("script.py").write_text(script, "utf-8")
        command = [sys.executable, "-m", "hookbus", "run", *flags, "script.py"]
        return commands.run(command)

    return run
