"""Every rule of the conformance tables is tested, replaced with a reason, or void."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import attrs
import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/conformance.md"
TABLES = sorted((ROOT / "docs/reference/conformance").glob("*.md"))
VOID = re.compile(r"no meaning here: (\w\S* ){2,}\S+", re.IGNORECASE)


@attrs.frozen
class Row:
    """One row of a table.

    Attributes:
        page: the file it stands in.
        rule: its first cell.
        where: its second cell.
    """

    page: Path
    rule: str
    where: str

    @property
    def tests(self) -> list[str]:
        """The tests it names."""
        return re.findall(r"`((?:tests|plugins)/[^`\s]+?::\w+)(?:\[[^`]*\])?`", self.where)

    @property
    def links(self) -> list[str]:
        """The targets of its links."""
        return re.findall(r"\]\(([^)\s]+)\)", self.where)

    @property
    def is_void(self) -> bool:
        """Whether it says that the rule has no meaning here, and why."""
        return VOID.search(self.where) is not None

    def __str__(self) -> str:
        return f"{self.page.name}: {self.rule} | {self.where}"


def rows_of(page):
    """Return the rows of a page's tables; those of the form ``| Rule | Where |``."""
    found, cells, header = [], [], False
    for token in MarkdownIt().enable("table").parse(page.read_text("utf-8")):
        if token.type in ("thead_open", "thead_close"):
            header = token.type == "thead_open"
        elif token.type == "tr_open":
            cells = []
        elif token.type == "inline" and token.level >= 4:
            cells.append(token.content)
        elif token.type == "tr_close" and not header:
            assert len(cells) == 2, f"{page}: {cells}"
            found.append(Row(page, *cells))
    return found


ROWS = [row for page in TABLES for row in rows_of(page)]


def test_every_table_is_linked_from_the_page():
    """The page of conformance leads to each file of tables, and to no other."""
    linked = re.findall(r"\]\((conformance/[^)#]+)\)", PAGE.read_text("utf-8"))
    assert [PAGE.parent / name for name in linked] == TABLES


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_every_table_has_rows(page):
    """No file of tables is empty, or has lines that only look like a table."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    heads = [line for line in lines if re.fullmatch(r"\|[\s:|-]+\|", line)]
    assert rows_of(page)
    assert len(rows_of(page)) == len(lines) - 2 * len(heads)


def test_every_rule_has_one_of_the_three():
    """A row names a test, links to a reason, or says why the rule has no meaning here."""
    lacking = [str(row) for row in ROWS if not (row.tests or row.links or row.is_void)]
    assert lacking == []


@functools.cache
def found_in(path):
    """Return a module's functions: name to whether the ordinary run has them."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    marks = [n.value for n in tree.body if isinstance(n, ast.Assign) and is_marks(n)]
    return {
        node.name: not any(map(in_full_only, [*marks, *node.decorator_list]))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def is_marks(node):
    """Return whether an assignment marks all tests of its module."""
    return ast.unparse(node.targets[0]) == "pytestmark"


def in_full_only(mark):
    """Return whether a mark, or a list of them, keeps a test out of the ordinary run."""
    return re.search(r"^\[?(.*, )?pytest\.mark\.(slow|wheels|page)\b", ast.unparse(mark))


def test_every_test_is_there():
    """Each test that a row names is a function of the file that it names."""
    missing = []
    for row in ROWS:
        for test in row.tests:
            path, _, name = test.partition("::")
            if not (ROOT / path).is_file() or name not in found_in(path):
                missing.append(f"{row.page.name}: {test}")
    assert missing == []


def test_every_rule_is_tested_in_the_ordinary_run():
    """No rule is left to the full run, though of some it tries more cases."""
    left = [
        f"{row.page.name}: {test}"
        for row in ROWS
        for test in row.tests
        if not found_in(test.partition("::")[0])[test.partition("::")[2]]
    ]
    assert left == []


@functools.cache
def anchors_of(path):
    """Return the anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_reason_is_there():
    """Each link of a row leads to a page of the documentation, and to a heading of it."""
    broken = []
    for row in ROWS:
        for link in row.links:
            name, _, anchor = link.partition("#")
            page = (row.page.parent / name).resolve() if name else row.page
            if not page.is_file() or (anchor and anchor not in anchors_of(page)):
                broken.append(f"{row.page.name}: {link}")
    assert broken == []


def test_enough_rules_are_tested():
    """The tables name at least 110 tests of the folder of conformance tests."""
    named = {test for row in ROWS for test in row.tests}
    assert len({test for test in named if test.startswith("tests/tensorflow/")}) >= 110
