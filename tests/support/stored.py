"""Writes checkpoints into a directory without a session."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hookbus.checkpoint.files import CheckpointFiles
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus.saving.writing import Draft, Writing


def write(
    store: Store, manifest: Manifest, fill: Callable[[CheckpointFiles], None]
) -> Path:
    """Write a checkpoint as a session does, with the files that *fill* writes."""
    codec: Any = SimpleNamespace(write=lambda _, files: fill(files))
    writing = Writing(Draft({}, manifest, 0, time.monotonic()), store, codec)
    writing.begin()
    writing.fill()
    return writing.complete().path
