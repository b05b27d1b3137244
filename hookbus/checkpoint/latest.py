"""Which checkpoint of a directory is the newest good one, for whoever only looks."""

from __future__ import annotations

from pathlib import Path

import attrs

from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Found, Store
from hookbus.errors import CheckpointError


@attrs.frozen
class CheckpointInfo:
    """A checkpoint on disk.

    Attributes:
        path: its directory, like ``runs/digits/ckpt-120``.
        global_step: the step that it holds.
        ended: how the session ended that saved it, like ``completed``; None where it saved
            and went on, or was killed.
    """

    path: Path
    global_step: int
    ended: str | None = None


def latest_checkpoint(directory: str | Path) -> CheckpointInfo | None:
    """Return the newest good checkpoint in *directory*, None where there is none.

    It changes nothing there, and may be called while another process saves. A good one
    has an unaltered manifest, and each file in the size that stands there; the content is
    compared only when a session restores it.

    Raises:
        CheckpointError: the directory cannot be read.
        UsageError: another version of hookbus wrote the newest one.

    >>> latest_checkpoint("no/such/directory") is None
    True
    """
    try:
        for found in Store(directory).found():
            manifest = _good_manifest(found)
            if manifest is not None:
                return CheckpointInfo(found.path, found.step, manifest.ended)
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoints in {directory}: {error}"
        ) from error
    return None


def _good_manifest(found: Found) -> Manifest | None:
    """Look at one checkpoint, which its owner may just be removing."""
    try:
        manifest = Manifest.read(found.path)
        sizes = {name: (found.path / name).stat().st_size for name in manifest.files}
    except (CheckpointError, FileNotFoundError, NotADirectoryError):
        return None
    wanted = {name: record.bytes for name, record in manifest.files.items()}
    good = manifest.global_step == found.step and sizes == wanted
    return manifest if good else None
