"""Finds and reads checkpoints without changing anything on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.checkpoint.codec import load_codec
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus.errors import CheckpointError, NoGoodCheckpointError


@attrs.frozen
class CheckpointInfo:
    """A checkpoint on disk.

    Attributes:
        path: its directory, like ``runs/digits/ckpt-120``.
        global_step: the step of the checkpoint.
        ended: how the session that saved it ended, like ``completed``; None if it had not
            ended when it saved, or was killed.
    """

    path: Path
    global_step: int
    ended: str | None = None


def latest_checkpoint(directory: str | Path) -> CheckpointInfo | None:
    """Return the newest good checkpoint in *directory*, or None if there is none.

    It changes nothing there, and may be called while another process saves. A good
    checkpoint has an unaltered manifest, and its files have the sizes in it. The contents
    are verified only when a session restores it.

    Raises:
        CheckpointError: the directory cannot be read.
        UsageError: another version of hookbus wrote the newest one.

    >>> latest_checkpoint("no/such/directory") is None
    True
    """
    try:
        for found in Store(directory).found():
            with contextlib.suppress(CheckpointError):  # its owner may be removing it
                ended = found.manifest(contents=False).ended
                return CheckpointInfo(found.path, found.step, ended)
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoints in {directory}: {error}"
        ) from error
    return None


@attrs.frozen(eq=False)
class Restored:
    """The contents of a checkpoint."""

    path: Path
    state: Mapping[str, Any]
    manifest: Manifest


def read_checkpoint(path: str | Path) -> Restored:
    """Read the checkpoint at *path*.

    Raises:
        NoGoodCheckpointError: it is missing or damaged.
    """
    path = Path(path)
    try:
        manifest = Manifest.read(path)
        manifest.verify(path)
    except CheckpointError as error:
        raise NoGoodCheckpointError(f"cannot restore {path}: {error}") from error
    return Restored(path, load_codec(manifest.codec)[1].read(path), manifest)


def variables_at(source: str | Path) -> Mapping[str, Any]:
    """Return the variables of a checkpoint, or of the newest one in a directory.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    found = latest_checkpoint(source)
    path = found.path if found is not None else Path(source)
    if found is None and not (path / "manifest.json").is_file():
        raise CheckpointError(f"there is no checkpoint in {str(source)!r}")
    restored = read_checkpoint(path)
    variables: Mapping[str, Any] = restored.state["variables"]
    return {**variables, "global_step": restored.manifest.global_step}
