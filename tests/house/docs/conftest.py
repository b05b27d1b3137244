"""Reads the documentation's pages and does what they tell their readers to do.

A page is one story, told in one empty folder. Its fenced blocks mean:

* ``python`` with ``title="FILE"``, and any other language with one: the file's content;
* ``python``: run, in one namespace a page; ``output`` right after it: what it printed;
* ``console``: after ``$`` a command, below it what it shows (``...``: anything, times
  do not count), or nothing where that is not told. It must succeed. A ``cd`` counts for
  all that comes after it.

A library that runs blocks one by one does not fit: they depend on each other.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

import attrs
import pytest
from markdown_it import MarkdownIt

from tests.support import commands
from tests.support.environments import borrowing_environment
from tests.support.indexes import serving, wheels_of_the_core

ROOT = Path(__file__).parents[3]


def _source_of(page: Path) -> Path:
    """Return where a page's text stands: the page of a plugin is a link to its README."""
    if page.is_symlink():
        return Path(os.path.normpath(page.parent / page.readlink()))
    return page


PAGES = (ROOT / "README.md", *map(_source_of, sorted((ROOT / "docs").rglob("*.md"))))
PUBLISHES = ROOT / "docs" / "tutorial" / "first-plugin.md"
_HOOKBUS = Path(sys.executable).with_name("hookbus")
_OF_THE_SHELL = re.compile(r"[|&;<>$`*?~#(){}]")
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")


@attrs.frozen
class Block:
    """A fenced block of a page."""

    place: str
    language: str
    title: str | None
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command of a console block with the output that is shown for it."""
        text = self.text.replace("\\\n", "")  # a command may go on in the next line
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        return [(p.partition("\n")[0], p.partition("\n")[2]) for p in parts]


def blocks_of(page: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    found = []
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="(.+)"', rest)
            place = f"{page.relative_to(ROOT)}:{(token.map or [0])[0] + 1}"
            found.append(Block(place, language, title[1] if title else None, token.content))
    return found


@attrs.define
class Reader:
    """Follows a page in the current folder, with the variables that its commands get."""

    environment: Mapping[str, str]
    names: dict[str, object] = attrs.field(factory=lambda: {"__name__": "page"})
    printed: str = ""

    def follow(self, block: Block, exempt: Container[str] = ()) -> None:
        """Do what one block says, but for commands that are exempt."""
        shown = block.text if block.language == "output" else ""
        compare(f"{block.place}: the python block before it", shown, self.printed)
        self.printed = ""
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, "utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, block.place, "exec"), self.names)
            self.printed = out.getvalue()
        elif block.language == "console":
            for command, output in block.commands:
                if command not in exempt:
                    self._run(block.place, command, output)

    def _run(self, place: str, command: str, shown: str) -> None:
        if command.startswith("cd "):
            os.chdir(command.removeprefix("cd "))
            return
        words, run = ["bash", "-c", command], commands.run_new
        # A page's own environment changes, and a server has read its site-packages once.
        ours = shutil.which("hookbus", path=self.environment["PATH"]) == str(_HOOKBUS)
        if ours and command.startswith("hookbus ") and not _OF_THE_SHELL.search(command):
            words = [sys.executable, "-m", *shlex.split(command)]
            run = commands.run
        done = run(words, env=self.environment, together=True)
        assert done.returncode == 0, f"{place}: {command}\n{done.stdout}"
        if shown:
            compare(f"{place}: {command}", shown, done.stdout)


def compare(what: str, shown: str, real: str) -> None:
    """Fail with both texts unless the page shows what really came."""
    checker = doctest.OutputChecker()
    pair = [_CLOCK.sub("00:00:00", text) for text in (shown, real)]
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    fits = checker.check_output(*pair, options)
    assert fits, f"{what}\n--- the page shows\n{shown}\n--- it was\n{real}"


def _environment() -> dict[str, str]:
    """Have commands find this environment, and pip install into the page's folder."""
    site = str(Path.cwd() / ".site")
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": site,
        "PYTHONUNBUFFERED": "1",
        "PIP_TARGET": site,
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # for pip, 0 says: no isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.fixture(
    params=[
        pytest.param(page, marks=[pytest.mark.wheels] if page == PUBLISHES else [])
        for page in PAGES
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def page(request: pytest.FixtureRequest) -> Path:
    """Return each page in turn."""
    return request.param


@pytest.fixture
def root() -> Path:
    """Return the folder of the checkout."""
    return ROOT


@pytest.fixture
def pages() -> tuple[Path, ...]:
    """Return all pages."""
    return PAGES


@pytest.fixture
def blocks() -> Callable[[Path], list[Block]]:
    """Return the function that finds a page's fenced blocks."""
    return blocks_of


@pytest.fixture
def publishing(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the variables of an environment to install into, and of an index."""
    environment = borrowing_environment(tmp_path / "environment")
    with serving(wheels_of_the_core(tmp_path)) as index:
        yield environment | index


@pytest.fixture
def reader(page: Path, request: pytest.FixtureRequest) -> Reader:
    """Return a reader in an empty folder, but for a copy of the examples."""
    shutil.copytree(ROOT / "examples", "examples")
    if page == PUBLISHES:
        return Reader(request.getfixturevalue("publishing"))
    return Reader(_environment())
