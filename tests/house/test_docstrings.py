"""Tests that docstrings avoid phrases that make a reader stop and read again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]

FOLDERS = ("benchmarks", "docs", "examples", "hookbus", "plugins", "tests")


@attrs.frozen
class Phrase:
    """A phrase to avoid.

    Attributes:
        pattern: matches the phrase.
        bad: a docstring that has it.
        good: the docstring without it.
    """

    pattern: str
    bad: str
    good: str


# All of these are correct English, and all make a reader go back: a noun is left out, or a
# later word changes the meaning. The list has only phrases that a pattern can find. A
# docstring without them need not be plain.
PHRASES = (
    # "What the run gave" can be a value, a list or a file. A noun says which.
    Phrase(
        r"\A(?:Return|Yield|Read|Give|Get) (?:what|who|whom|which)\b",
        "Return what the run has computed.",
        "Return the values of the run.",
    ),
    # A docstring begins with its subject or with a verb, not with a clause.
    Phrase(
        r"\A(?:What|Who|Which|That)\b",
        "What a run changes.",
        "The effects of a run.",
    ),
    # In Python None is a value, and "there is none" is about something else.
    Phrase(
        r"\b(?:is|are) none\b",
        "Return the checkpoint; None if there is none.",
        "Return the checkpoint, or None without one.",
    ),
    Phrase(
        r"\b(?:[Ss]ay|[Tt]ell)s? whether\b",
        "Say whether the hook is due.",
        "Return whether the hook is due.",
    ),
    Phrase(
        r"\bwhoever\b",
        "Compile a request once, for whoever makes it.",
        "Compile a request once for all hooks.",
    ),
    # "Has not" reads as "does not have" until its verb comes.
    Phrase(
        r"\bha(?:s|ve) not\b",
        "Stops when a value has not improved for some steps.",
        "Stops when a value does not improve for some steps.",
    ),
    # The reader has to look another thing up, and to guess where the two differ.
    Phrase(
        r"(?:\A|[:.]\s+)[Tt]he same\b|\b[Dd]o(?:es)? the same\b",
        "The same without the value.",
        "The flag without its value.",
    ),
    # The last word of the sentence changes its meaning.
    Phrase(
        r", (?:too|also)(?=\s*(?:[.;:!?)]|\Z))",
        "A key can be a variable, too.",
        "A key can also be a variable.",
    ),
    Phrase(
        r"\b(?:tell|tells|told) that\b",
        "The flag *named* tells that the path has a step.",
        "The flag *named* means that the path has a step.",
    ),
    # "Training" cannot be counted. A run starts, ends and is resumed.
    Phrase(
        r"\b[Aa] training\b(?! (?:loop|op|run|session|script|set|step)s?\b)|\btrainings\b",
        "Stops a training at a step.",
        "Stops training at a step.",
    ),
)


def code() -> list[Path]:
    """Return the modules of the core and of the plugins, without tests."""
    paths = [*ROOT.glob("hookbus/**/*.py"), *ROOT.glob("plugins/*/**/*.py")]
    found = [path.relative_to(ROOT) for path in paths]
    return sorted(p for p in found if not {"tests", "build"} & {*p.parts})


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, those of variables included."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
        if isinstance(node, ast.Module | ast.ClassDef):
            for above, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(above, ast.Assign | ast.AnnAssign) and (
                    text := ast.get_docstring(ast.Module([below], []))
                ):
                    yield below.lineno, text


def stumbles(text: str) -> list[str]:
    """Return the phrases to avoid in a docstring."""
    return [found[0] for each in PHRASES if (found := re.search(each.pattern, text))]


def test_docstrings_are_in_plain_english() -> None:
    """No docstring of the core or of a plugin has a phrase to avoid."""
    paths = code()
    assert len(paths) > 150
    faults = [
        f"{path}:{line}: {phrase!r} in {text.splitlines()[0]!r}"
        for path in paths
        for line, text in docstrings(ROOT / path)
        for phrase in stumbles(text)
    ]
    assert faults == []


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.bad)
def test_a_phrase_is_found(phrase: Phrase) -> None:
    """A pattern finds its example, and no pattern finds the better sentence."""
    assert re.search(phrase.pattern, phrase.bad)
    assert stumbles(phrase.good) == []


def test_docstrings_of_variables_are_read(tmp_path: Path) -> None:
    """Docstrings of modules, classes, functions and variables are all looked at."""
    path = tmp_path / "module.py"
    path.write_text(
        '"""A."""\nx = 1\n"""B."""\nclass C:\n    """C."""\n    y = 1\n    """D."""\n'
        '    def f(self):\n        """E."""\n'
    )
    assert sorted(docstrings(path)) == [
        (1, "A."),
        (3, "B."),
        (5, "C."),
        (7, "D."),
        (9, "E."),
    ]


def test_docstrings_of_all_modules_begin_with_a_verb_or_a_noun() -> None:
    """The modules of tests, tools and examples do not begin with a clause either."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.py")]
    first = {path: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in paths}
    clause = re.compile(r"(?:What|Who|Which) ")
    assert len(first) > 400
    assert [path for path, text in first.items() if clause.match(text or "")] == []
