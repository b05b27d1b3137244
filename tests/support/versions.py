"""Reads which versions a checkpoint names."""

from __future__ import annotations

import json
from pathlib import Path

from hookbus import latest_checkpoint


def versions_in(folder: Path) -> dict[str, str]:
    """Return the versions that the newest checkpoint in a folder names."""
    newest = latest_checkpoint(folder)
    assert newest is not None
    manifest = json.loads((newest.path / "manifest.json").read_text("utf-8"))
    versions: dict[str, str] = manifest["versions"]
    return versions
