"""Every test starts in an empty folder, with an environment that says nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A deadline for an example would make tests depend on what else the machine does.
settings.register_profile("hookbus", deadline=None)
settings.load_profile("hookbus")


@pytest.fixture(autouse=True)
def _clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in os.environ:
        if name.startswith("HOOKBUS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
