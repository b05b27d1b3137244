"""Tests that the search of the site finds pages, names and messages."""

from __future__ import annotations

import json

import pytest

import hookbus
from tests.support.site import SITE, Page

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def entries() -> list[dict[str, str]]:
    """Return the entries of the index."""
    return json.loads((SITE / "search/search_index.json").read_text("utf-8"))["docs"]


def test_every_page_can_be_found(
    site: dict[str, Page], entries: list[dict[str, str]]
) -> None:
    """Each page has an entry with text."""
    found = {entry["location"] for entry in entries if entry["text"] or entry["title"]}
    assert {*site} - {"404.html"} <= found


@pytest.mark.parametrize("name", hookbus.__all__)
def test_a_public_name_can_be_found(name: str, entries: list[dict[str, str]]) -> None:
    """Each public name is the title of an entry that leads to it."""
    anchors = {entry["location"].partition("#")[2] for entry in entries}
    assert f"hookbus.{name}" in anchors


@pytest.mark.parametrize(
    "message",
    [
        "no plugin or module called",
        "has no tracked object",
        "no checkpoint in DIR has a value",
    ],
)
def test_a_message_can_be_found(message: str, entries: list[dict[str, str]]) -> None:
    """A reader who looks for the words of an error comes to the page of messages."""
    where = {e["location"] for e in entries if message in e["text"]}
    assert any(place.startswith("reference/messages/") for place in where)
