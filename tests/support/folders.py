"""Starts each test in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Make a folder as pytest does, which looks at all others to give it a number."""
    return new_folder(tmp_path_factory, re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def _clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in os.environ:
        if name.startswith("HOOKBUS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(new_folder(tmp_path_factory, "cwd"))


def new_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Make an empty folder of a new name."""
    return Path(tempfile.mkdtemp("", f"{name}-", factory.getbasetemp()))
