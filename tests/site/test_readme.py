"""Tests that the README reads well as the description of the project on PyPI."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from readme_renderer import markdown

from tests.support.pages import REPOSITORY, ROOT

pytestmark = pytest.mark.site

RAW = REPOSITORY.replace("github.com", "raw.githubusercontent.com")


class Targets(HTMLParser):
    """Collects the targets of links and pictures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keep one target."""
        named = dict(attributes)
        if tag == "a" and (target := named.get("href")):
            self.links.append(target)
        if tag == "img":
            self.pictures.append(named.get("src") or "")


@pytest.fixture(scope="module")
def rendered() -> str:
    """Return the HTML that PyPI makes."""
    html = markdown.render((ROOT / "README.md").read_text("utf-8"), variant="GFM")
    assert html
    return html


def test_the_readme_can_be_rendered(rendered: str) -> None:
    """Tables and code are there, and no mark of Markdown is left over."""
    assert "<table" in rendered
    assert "<pre" in rendered
    assert "```" not in rendered
    assert "](" not in re.sub(r"<pre.*?</pre>", "", rendered, flags=re.DOTALL)


def test_links_and_pictures_are_absolute(rendered: str) -> None:
    """PyPI has no other files of the repository, so each target has its whole address."""
    targets = Targets(rendered)
    assert targets.links
    assert targets.pictures
    assert [t for t in targets.links if not t.startswith(("https://", "#"))] == []
    assert [t for t in targets.pictures if not t.startswith(f"{RAW}/main/")] == []


def test_addresses_in_the_repository_are_of_files_there(rendered: str) -> None:
    """A link to the repository leads to a file of it."""
    targets = Targets(rendered)
    for target in [*targets.links, *targets.pictures]:
        for start in (f"{REPOSITORY}/blob/main/", f"{RAW}/main/"):
            if target.startswith(start):
                path = target.removeprefix(start).partition("#")[0]
                assert (ROOT / path).is_file(), target
