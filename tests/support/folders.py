"""Starts each test in an empty folder, with an environment that says nothing.

The folders are in memory, if the system has a file system for that with enough space. Tests
write thousands of checkpoints, each of which waits for the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH = 2**30
"""The bytes that have to be free in memory; a run of all tests takes a fifth of them."""


def pytest_configure() -> None:
    """Have pytest create its folders in memory, unless somebody chose another place."""
    if {"TMPDIR", "PYTEST_DEBUG_TEMPROOT"} & os.environ.keys():
        return
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)


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
        # tox fixes the order of hashes, which is another one at each start of a program.
        if name.startswith("HOOKBUS_") or name == "PYTHONHASHSEED":
            monkeypatch.delenv(name)
    monkeypatch.chdir(new_folder(tmp_path_factory, "cwd"))


def new_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Make an empty folder of a new name."""
    return Path(tempfile.mkdtemp("", f"{name}-", factory.getbasetemp()))
