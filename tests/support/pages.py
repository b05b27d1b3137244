"""Reads pages of the documentation and does what they tell their readers to do.

A page is one story, told in one folder. Its fenced blocks mean:

* ``python`` with ``title="FILE"``, and any other language with one: the file's content;
* ``python``: run, in one namespace a page; ``output`` right after it: what it printed;
* ``console``: after ``$`` a command, below it its output, or nothing where the page does
  not show it. It must succeed. A ``cd``, and the activation of a virtual environment,
  count for all that comes after it.

A shown output equals the real one, word by word, up to white space, with three exceptions:

* ``...`` stands for anything, and on a line of its own for any lines, or none.
* Times do not count: the clock, a number after a key of seconds (``secs=0.012``,
  ``steps_per_sec=840``) and a decimal number before ``s``, ``ms`` or ``us``.
* In a fence with ``numbers="vary"``, a decimal number stands for any decimal number, so
  that a page shows a real loss that another machine computes a little differently.
  Decimal is a number with a point or an exponent; steps and counts stay as they are.

A library that runs blocks one by one does not fit: they depend on each other.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import os
import re
import shlex
import sys
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import attrs
from markdown_it import MarkdownIt

from tests.support import commands

ROOT = Path(__file__).parents[2]
ACTIVATE = re.compile(r"\. (\S+)/bin/activate")


def _source_of(page: Path) -> Path:
    """Return where a page's text stands: the page of a plugin is a link to its README."""
    if page.is_symlink():
        return Path(os.path.normpath(page.parent / page.readlink()))
    return page


PAGES = (ROOT / "README.md", *map(_source_of, sorted((ROOT / "docs").rglob("*.md"))))
PUBLISHES = ROOT / "docs" / "tutorial" / "first-plugin.md"
"""The page that builds a package and needs an index."""

_SITE = (ROOT / "mkdocs.yml").read_text("utf-8")
REPOSITORY = re.findall(r"^repo_url: (\S+)$", _SITE, re.MULTILINE)[0]
"""The address of the repository, by which the README links its files."""

_OF_THE_SHELL = re.compile(r"[|&;<>$`*?~#(){}]")
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
_DECIMAL = r"(?<![\w.])-?\d+(?:\.\d*(?:e[-+]?\d+)?|e[-+]?\d+)(?!\.?\d)"
"""A number with a point or an exponent, but no part of a version or of an address."""
_SECONDS = re.compile(
    rf"(\b\w*sec\w*=)\d[\d.]*(?:e[-+]?\d+)?|{_DECIMAL}(?= ?(?:s|ms|us)\b)"
)
_LEFT_OUT = re.compile(r"^\.\.\.\n|\n\.\.\.\n\Z", re.MULTILINE)
_PROGRESS = re.compile(r"^\S+ \[info +\] progress step=.*\n", re.MULTILINE)
"""The line that a run without a terminal shows after some seconds."""


@attrs.frozen
class Block:
    """A fenced block of a page."""

    place: str
    language: str
    title: str | None
    text: str
    varies: bool

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command of a console block with the output that is shown for it."""
        text = self.text.replace("\\\n", "")  # a command may go on in the next line
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        return [(p.partition("\n")[0], p.partition("\n")[2]) for p in parts]


@functools.cache
def blocks_of(page: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    found = []
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="(.+)"', rest)
            place = f"{page.relative_to(ROOT)}:{(token.map or [0])[0] + 1}"
            varies = 'numbers="vary"' in rest
            name = title[1] if title else None
            found.append(Block(place, language, name, token.content, varies))
    return found


@attrs.define
class Reader:
    """Follows a page in the current folder.

    Attributes:
        environment: the variables that its commands get.
        timeout: the seconds that a command may take.
        forks: whether simple commands of hookbus are run by this Python, in forks.
    """

    environment: Mapping[str, str]
    timeout: float = 120
    forks: bool = False
    names: dict[str, object] = attrs.field(factory=lambda: {"__name__": "page"})
    printed: str = ""

    def follow(self, block: Block, exempt: Container[str] = ()) -> None:
        """Do what one block says, but for commands that are exempt."""
        shown = block.text if block.language == "output" else ""
        what = f"{block.place}: the python block before it"
        compare(what, shown, self.printed, varies=block.varies)
        self.printed = ""
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, "utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out, _importing(Path.cwd()):
                exec(compile(block.text, block.place, "exec"), self.names)
            self.printed = out.getvalue()
        elif block.language == "console":
            for command, output in block.commands:
                if command not in exempt:
                    self._run(block, command, output)

    def _run(self, block: Block, command: str, shown: str) -> None:
        if command.startswith("cd "):
            os.chdir(command.removeprefix("cd "))
            return
        if activation := ACTIVATE.fullmatch(command):
            scripts = Path(activation[1]).resolve(strict=True) / "bin"
            path = f"{scripts}{os.pathsep}{self.environment['PATH']}"
            self.environment = {**self.environment, "PATH": path}
            return
        words = shlex.split(command)
        programs = {"hookbus": ["-m", "hookbus"], "python": []}
        simple = words[0] in programs and not _OF_THE_SHELL.search(command)
        limits = {"env": self.environment, "timeout": self.timeout, "together": True}
        if self.forks and simple:
            python = [sys.executable, *programs[words[0]], *words[1:]]
            done = commands.run(python, libraries=commands.EXAMPLES, **limits)
        else:
            done = commands.run_new(["bash", "-c", command], **limits)
        what = f"{block.place}: {command}"
        assert done.returncode == 0, f"{what}\n{done.stdout}"
        if shown:
            compare(what, shown, done.stdout, varies=block.varies)


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Import from a folder, as Python does where it is started there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or os.sep).is_relative_to(folder):
                del sys.modules[name]  # another page may have a file of this name


def compare(what: str, shown: str, real: str, *, varies: bool = False) -> None:
    """Fail with both texts unless the page shows the real output.

    Args:
        what: the place and the command, for the message.
        shown: the output in the page.
        real: the output that came.
        varies: whether decimal numbers may differ.
    """
    checker = doctest.OutputChecker()
    if _PROGRESS.search(shown) is None:  # a slow machine also shows this line
        real = _PROGRESS.sub("", real)
    want, got = (_without_numbers(text, varies) for text in (shown, real))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    fits = checker.check_output(_LEFT_OUT.sub("...", want), got, options)
    assert fits, f"{what}\n--- the page shows\n{shown}\n--- it was\n{real}"


def _without_numbers(text: str, varies: bool) -> str:
    text = _CLOCK.sub("00:00:00", text)
    text = _SECONDS.sub(lambda found: f"{found[1] or ''}0.0", text)
    return re.sub(_DECIMAL, "0.0", text) if varies else text
