"""Reads the pages of the built site, as a browser without JavaScript shows them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import attrs

from tests.support.pages import ROOT

SITE = ROOT / "build" / "site"
_EMPTY = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
_SILENT = {"script", "style", "template"}
_INLINE = {"a", "abbr", "b", "code", "em", "i", "small", "span", "strong"}


@attrs.frozen
class Link:
    """A link or a file that a page loads.

    Attributes:
        tag: the element, like ``a`` or ``img``.
        target: its address, as it stands there.
        place: ``article``, ``tabs`` of the header, or ``other``.
    """

    tag: str
    target: str
    place: str


class Page(HTMLParser):
    """A page of the site.

    Attributes:
        url: its address below that of the site, like ``how-to/jax/``.
        text: the words of its article.
        links: its links, and the files that it loads.
        ids: the anchors.
        tags: the elements of the article.
    """

    def __init__(self, url: str, html: str) -> None:
        super().__init__()
        self.url = url
        self.links: list[Link] = []
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self._text: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(html)
        self.text = " ".join("".join(self._text).split())

    @property
    def _place(self) -> str:
        return self._open[-1][1] if self._open else "other"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note an element, with its anchor and its link."""
        named = {name: value or "" for name, value in attributes}
        place = self._place
        if tag == "article":
            place = "article"
        elif tag == "nav" and "md-tabs" in named.get("class", "").split():
            place = "tabs"
        self.ids |= {named[name] for name in ("id", "name") if named.get(name)}
        if target := named.get("src") or named.get("href"):
            self.links.append(Link(tag, target, place))
        if place == "article":
            self.tags.append(tag)
            self._text += [] if tag in _INLINE else [" "]
        if tag not in _EMPTY:
            self._open.append((tag, place))

    def handle_endtag(self, tag: str) -> None:
        """Close an element, and those in it that end without an end tag."""
        while self._open and any(each == tag for each, _ in self._open):
            if self._open.pop()[0] == tag:
                break

    def handle_data(self, data: str) -> None:
        """Keep the text that is seen."""
        if self._place == "article" and self._open[-1][0] not in _SILENT:
            self._text.append(data)

    def led(self, link: Link) -> tuple[str, str] | None:
        """Return the path and the anchor of the target, or None outside the site."""
        here = f"https://site.example/{self.url}"
        whole = urlsplit(urljoin(here, link.target))
        if whole.netloc != "site.example" or whole.scheme != "https":
            return None
        return unquote(whole.path.removeprefix("/")), unquote(whole.fragment)


def url_of(path: Path) -> str:
    """Return the address of a page that lies in a file of the site."""
    where = path.relative_to(SITE).as_posix()
    return where.removesuffix("index.html")


def read_all() -> dict[str, Page]:
    """Return all pages by their addresses."""
    found = sorted(SITE.rglob("*.html"))
    assert found, f"{SITE} is empty: python3 .ci/tox.py -e docs builds it"
    return {url_of(path): Page(url_of(path), path.read_text("utf-8")) for path in found}
