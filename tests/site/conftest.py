"""The pages of the built site. ``tox -e docs`` builds it before these tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support.site import Page, read_all

if find_spec("mkdocs") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def site() -> dict[str, Page]:
    """Return all pages of the site, by address."""
    return read_all()
