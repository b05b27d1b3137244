"""Draws terminals: runs commands of pages, and writes an SVG for each picture.

    python docs/terminal_picture.py

Takes the files and the commands from the pages, and runs each command on its own terminal.
Needs the packages of tests/requirements.txt, and a POSIX system.
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

import attrs
import pyte
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, LINES = 120, 40


@attrs.frozen
class Picture:
    """A picture of commands in a page.

    Attributes:
        name: the name of the SVG.
        page: the page that has the files and the commands.
        first: the beginning of the first command that runs.
        hidden: the number of commands that run first, and are not shown.
        shown: the number of commands that are shown.
    """

    name: str
    page: Path
    first: str
    hidden: int = 0
    shown: int = 1

    @property
    def path(self) -> Path:
        """The place of the picture."""
        return IMAGES / self.name


PICTURES = (
    Picture("run.svg", ROOT / "README.md", "hookbus run --stop-at-step"),
    Picture(
        "resume.svg",
        ROOT / "docs" / "tutorial" / "follow-one-run.md",
        "hookbus run --logging-tensor",
        hidden=2,
        shown=2,
    ),
)


def drawn(picture: Picture) -> str:
    """Run the commands of a picture in an empty folder; return the SVG."""
    text = picture.page.read_text("utf-8")
    files = re.findall(r'^```\w+ title="([^"\n]+)"\n(.*?)^```', text, re.M | re.S)
    commands = re.findall(r"^\$ (hookbus .+?)(?:; echo .+)?$", text, re.M)
    begins = [command.startswith(picture.first) for command in commands]
    if True not in begins:
        raise SystemExit(f"{picture.page} has no command {picture.first!r}")
    count = picture.hidden + picture.shown
    commands = commands[begins.index(True) :][:count]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files:
            Path(folder, name).write_text(content, "utf-8")
        screens = [lines_of(run(command, folder)) for command in commands]
    return svg(list(zip(commands, screens, strict=True))[picture.hidden :])


def run(command: str, folder: str) -> bytes:
    """Run a command in a folder; return its output, with ``~`` for the folder."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with os.fdopen(primary, "rb", 0) as screen:
        child = subprocess.Popen(
            command.split(), stdout=secondary, stderr=secondary, cwd=folder, env=env
        )
        os.close(secondary)
        written = b"".join(iter(lambda: _read(screen), b""))
        child.wait()
    return written.replace(folder.encode(), b"~")


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


def svg(shown: list[tuple[str, list[Text]]]) -> str:
    """Return a picture of commands, each with its lines."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for command, lines in shown:
        console.print(Text(f"$ {command}", style="bold"))
        for line in lines:
            console.print(line, soft_wrap=True)
    picture: str = console.export_svg(title="hookbus", theme=MONOKAI, unique_id="hookbus")
    return picture


def main() -> None:
    """Write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    for picture in PICTURES:
        picture.path.write_text(drawn(picture), "utf-8")
        print(f"wrote {picture.path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
