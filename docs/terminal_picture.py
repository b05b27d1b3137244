"""Draws the terminal in the README: runs its first `hookbus run`, and writes an SVG.

    python docs/terminal_picture.py

Takes the script and the command from README.md, and runs the command on a terminal of its
own. Needs the packages of tests/requirements.txt, and a POSIX system.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "run.svg"
COLUMNS, LINES = 120, 40


def example() -> tuple[str, str]:
    """Return the script in the README, and the first command that runs it."""
    text = README.read_text("utf-8")
    script = re.search(r'^```python title="train.py"\n(.*?)^```', text, re.M | re.S)
    command = re.search(r"^\$ (hookbus run .+ train\.py)$", text, re.M)
    if script is None or command is None:
        raise SystemExit(f"{README} has no train.py, or does not run it")
    return script[1], command[1]


def run(script: str, command: str) -> bytes:
    """Run the command in an empty folder; return all that it writes to its terminal."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with tempfile.TemporaryDirectory() as folder, os.fdopen(primary, "rb", 0) as screen:
        Path(folder, "train.py").write_text(script, "utf-8")
        child = subprocess.Popen(
            command.split(), stdout=secondary, stderr=secondary, cwd=folder, env=env
        )
        os.close(secondary)
        written = b"".join(iter(lambda: _read(screen), b""))
        if child.wait() != 0:
            raise SystemExit(f"{command} failed:\n{written.decode()}")
    return written


def _read(screen: io.RawIOBase) -> bytes:
    """Return the next output; nothing when the last process has closed the terminal."""
    try:
        return screen.read(65536) or b""
    except OSError:  # Linux reports the end of a terminal as an error
        return b""


def lines_of(written: bytes) -> list[Text]:
    """Return the lines that a terminal shows in the end, with their colors."""
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.ByteStream(screen).feed(written)
    lines = []
    for row in range(screen.cursor.y):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        spans = itertools.groupby(cells, key=_style)
        line = Text.assemble(*(("".join(c.data for c in part), s) for s, part in spans))
        line.rstrip()
        lines.append(line)
    return lines


def _style(cell: pyte.screens.Char) -> str:
    """Return rich's words for the style of a character."""
    name = cell.fg
    if re.fullmatch(r"[0-9a-f]{6}", name):
        name = f"#{name}"
    name = re.sub(r"^bright", "bright_", name.replace("brown", "yellow"))
    return f"bold {name}" if cell.bold else name


def svg(command: str, lines: list[Text]) -> str:
    """Return a picture of the command and the lines."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {command}", style="bold"))
    for line in lines:
        console.print(line, soft_wrap=True)
    picture: str = console.export_svg(title="hookbus", theme=MONOKAI, unique_id="hookbus")
    return picture


def main() -> None:
    """Write the picture."""
    script, command = example()
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(command, lines_of(run(script, command))), "utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
