"""Describes the checkpoints of a directory, as their manifests tell, and verifies one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hookbus import list_checkpoints, verify_checkpoint
from hookbus.errors import HookbusError, text_of

_NAME = re.compile(r"ckpt-(\d+)(\.old|\.bad)?")
_MANIFEST = "manifest.json"
_FAILED = "failed"


def is_checkpoint(name: str) -> bool:
    """Return whether a folder is named as a checkpoint is."""
    return _NAME.fullmatch(name) is not None


def checkpoints_of(directory: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Return what is known of each checkpoint, the oldest step first.

    The files have the sizes that the manifest has, unless a checkpoint is bad. The second
    result is what is wrong with the whole directory, or None.
    """
    try:
        good = {
            info.path
            for folder in (directory, directory / _FAILED)
            for info in list_checkpoints(folder)
        }
    except HookbusError as error:
        return [], text_of(error)
    found = [
        path
        for folder in (directory, directory / _FAILED)
        for path in folder.glob("ckpt-*")
        if is_checkpoint(path.name)
    ]
    rows = [_row(directory, path, path in good) for path in found]
    return sorted(rows, key=lambda row: (row["step"], row["name"])), None


def _row(directory: Path, path: Path, is_good: bool) -> dict[str, Any]:
    matched = _NAME.fullmatch(path.name)
    step = int(matched[1]) if matched else 0
    try:
        manifest = json.loads((path / _MANIFEST).read_text("utf-8"))
        size = sum(file["bytes"] for file in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest, size = {}, None
    return {
        "name": path.relative_to(directory).as_posix(),
        "step": step,
        "state": "not verified" if is_good else "bad",
        "bytes": size,
        **{
            key: manifest.get(key)
            for key in ("saved_by", "why", "saved_at", "kept", "values", "ended")
        },
    }


def verified(directory: Path, name: str) -> str:
    """Hash the files of a checkpoint; return ``good``, or what is wrong.

    Args:
        directory: the directory of the checkpoints.
        name: the name of the checkpoint in it, as :func:`checkpoints_of` gives it.
    """
    if name not in {row["name"] for row in checkpoints_of(directory)[0]}:
        return f"there is no checkpoint {name}"
    try:
        verify_checkpoint(directory / name)
    except HookbusError as error:
        return text_of(error)
    return "good"
