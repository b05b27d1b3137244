"""Tests that readers reach each page of the site, and find on it the text of its source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.pages import ROOT
from tests.support.site import SITE, Page

pytestmark = pytest.mark.site

DOCS = ROOT / "docs"
SOURCES = sorted(DOCS.rglob("*.md"))
PROJECT = {
    "README.md": "project/readme/",
    "CONTRIBUTING.md": "project/contributing/",
    "SECURITY.md": "project/security/",
    "CHANGELOG.md": "project/changelog/",
}
"""Pages from outside of docs/, with their addresses."""
WRITTEN = [
    *(p for p in SOURCES if p.parent.name != "api" or p.name == "index.md"),
    *(ROOT / name for name in PROJECT if name != "CONTRIBUTING.md"),  # it has a diagram
]
"""Pages of which every line is written by hand."""
COUNTED = ("h1", "h2", "h3", "li", "table", "tr", "td", "pre", "img")


def address(source: Path) -> str:
    """Return the address of the page that a file becomes."""
    if source.parent == ROOT:
        return PROJECT[source.name]
    place = source.relative_to(DOCS).with_suffix("").as_posix()
    return re.sub(r"(^|/)index$", r"\1", place).rstrip("/") + "/" * (place != "index")


PAGES = [*SOURCES, *(ROOT / name for name in PROJECT)]
ids = [str(page.relative_to(ROOT)) for page in PAGES]


def test_the_site_has_the_pages_of_the_repository(site: dict[str, Page]) -> None:
    """Each page is on the site, and the site has no others."""
    assert {address(source) for source in PAGES} | {"404.html"} == {*site}


def test_every_page_is_two_clicks_from_the_start(site: dict[str, Page]) -> None:
    """Links in the text and the tabs lead there; menus that scripts open do not count."""
    reached = {""}
    for _ in range(2):
        for url in list(reached):
            page = site[url]
            clicks = [link for link in page.links if link.place in ("article", "tabs")]
            reached |= {led[0] for link in clicks if (led := page.led(link))} & {*site}
    assert {*site} - reached == {"404.html"}


@pytest.mark.parametrize("source", PAGES, ids=ids)
def test_links_lead_somewhere(site: dict[str, Page], source: Path) -> None:
    """A link inside the site leads to a file, and its anchor to a place in that page."""
    page = site[address(source)]
    for link in page.links:
        if (led := page.led(link)) is None:
            continue
        path, anchor = led
        assert path in site or (SITE / path).is_file(), link
        if anchor and path in site:
            assert anchor in site[path].ids, link


@pytest.mark.parametrize("source", PAGES, ids=ids)
def test_nothing_is_loaded_from_another_server(site: dict[str, Page], source: Path) -> None:
    """Fonts, scripts, styles and pictures are parts of the site."""
    page = site[address(source)]
    loaded = [link for link in page.links if link.tag != "a"]
    assert [link for link in loaded if page.led(link) is None] == []


@pytest.mark.parametrize("source", PAGES, ids=ids)
def test_a_page_has_its_text_without_scripts(site: dict[str, Page], source: Path) -> None:
    """The words of each heading, list and table are in the HTML of the page."""
    page = site[address(source)]
    assert len(page.text.split()) >= 50
    for token in MarkdownIt().enable("table").parse(source.read_text("utf-8")):
        if token.type == "inline" and not token.content.startswith(":::"):
            words = [c.content for c in token.children or () if c.type == "text"]
            assert all(" ".join(text.split()) in page.text for text in words), token.content


@pytest.mark.parametrize("source", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_has_the_form_of_its_source(site: dict[str, Page], source: Path) -> None:
    """Lists, tables and blocks are those that the repository shows.

    The dialects of Markdown differ: here a list right after a paragraph would be text.
    """
    expected = Counter(tags(MarkdownIt().enable("table").parse(source.read_text("utf-8"))))
    found = Counter(site[address(source)].tags)
    assert {t: found[t] for t in COUNTED} == {t: expected[t] for t in COUNTED}


def tags(tokens: list[Token]) -> Iterator[str]:
    """Yield the element of each token that begins one."""
    for token in tokens:
        if token.type in ("fence", "code_block"):
            yield "pre"
        elif token.nesting >= 0:
            yield token.tag
        yield from tags(token.children or [])
