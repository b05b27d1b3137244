"""Tests that the pages of the API show the code as it is."""

from __future__ import annotations

import importlib.util
import inspect
import re
from typing import Any

import griffe
import pytest

import hookbus
import hookbus.testing
from tests.support.pages import ROOT
from tests.support.site import Page

pytestmark = pytest.mark.site

API = ROOT / "docs" / "reference" / "api"
EXTENSION = ROOT / "docs" / "site" / "docstrings.py"
DIRECTIVES = [
    (page.stem, path)
    for page in sorted(API.glob("*.md"))
    for path in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
]
PATHS = [path for _, path in DIRECTIVES]


def at_run_time(path: str) -> Any:
    """Return the object that a directive names."""
    found = hookbus
    for name in path.split(".")[1:]:
        found = getattr(found, name)
    return found


def is_made(path: str) -> bool:
    """Return whether a directive is about a class that programs make objects of."""
    real = at_run_time(path)
    if not inspect.isclass(real) or getattr(real, "_is_protocol", False):
        return False
    return not issubclass(real, (Exception, int))


@pytest.fixture(scope="module")
def package() -> Any:
    """Return the package as griffe reads it for the site."""
    loader = griffe.GriffeLoader(
        search_paths=[ROOT, ROOT / "plugins" / "hookbus-estimator"],
        extensions=griffe.load_extensions(EXTENSION),
    )
    loader.load("hookbus_estimator")  # hookbus lists its names
    found = loader.load("hookbus")
    loader.resolve_aliases(implicit=True, external=True)
    return found


@pytest.fixture(scope="module")
def markdown() -> Any:
    """Return the function that turns docstrings into Markdown."""
    spec = importlib.util.spec_from_file_location("docstrings", EXTENSION)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.markdown


def read(package: Any, path: str) -> Any:
    """Return an object as griffe has read it."""
    found = package[path.partition(".")[2]]
    return found.final_target if found.is_alias else found


@pytest.mark.parametrize(("page", "path"), DIRECTIVES, ids=PATHS)
def test_a_directive_becomes_a_heading_with_its_text(
    site: dict[str, Page], package: Any, page: str, path: str
) -> None:
    """The first line of each docstring is on the page, below an anchor with the name."""
    shown = site[f"reference/api/{page}/"]
    assert path in shown.ids
    first = read(package, path).docstring.value.split("\n\n")[0]
    plain = re.sub(r"<[^>]+>|[`*]", "", first)
    assert " ".join(plain.split()) in shown.text


@pytest.mark.parametrize("path", [path for path in PATHS if is_made(path)])
def test_a_class_is_shown_with_the_arguments_that_it_has(package: Any, path: str) -> None:
    """The signature, even that of an attrs class, is the one of the class at run time."""
    shown = read(package, path).all_members.get("__init__")
    expected = [
        (each.name, each.kind is each.KEYWORD_ONLY, each.default is not each.empty)
        for each in inspect.signature(at_run_time(path)).parameters.values()
    ]
    assert [
        (each.name, each.kind.name == "keyword_only", each.default is not None)
        for each in (list(shown.parameters)[1:] if shown else ())
    ] == expected


def test_no_docstring_shows_the_marks_of_another_language(site: dict[str, Page]) -> None:
    """Roles, doctests and literal blocks have become links and blocks."""
    for url, page in site.items():
        if url.startswith("reference/api/"):
            without_source = re.sub(r"\"\"\".*?\"\"\"", "", page.text)
            assert not re.search(r":(?:class|meth|func|attr|mod):", without_source), url


def test_roles_and_examples_become_markdown(markdown: Any) -> None:
    """A role becomes a link where its target is shown, and an example a block."""
    text = "See :meth:`run` and :class:`~hookbus.a.Node`::\n\n    x = 1\n\n>>> 1\n1\n\nEnd."
    assert markdown(text, "hookbus.Session") == (
        'See <autoref optional identifier="hookbus.Session.run">`run`</autoref> and '
        '<autoref optional identifier="hookbus.a.Node">`Node`</autoref>:\n\n    x = 1\n\n'
        "```pycon\n>>> 1\n1\n```\n\nEnd.\n"
    )
