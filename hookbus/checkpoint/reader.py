"""How checkpoints are found and read by whoever only looks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.checkpoint.codec import load_codec
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store, StoredCheckpoint
from hookbus.errors import CheckpointError, NoGoodCheckpointError


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


def _good_manifest(found: StoredCheckpoint) -> Manifest | None:
    """Look at one checkpoint, which its owner may just be removing."""
    try:
        manifest = Manifest.read(found.path)
        sizes = {name: (found.path / name).stat().st_size for name in manifest.files}
    except (CheckpointError, FileNotFoundError, NotADirectoryError):
        return None
    wanted = {name: record.bytes for name, record in manifest.files.items()}
    good = manifest.global_step == found.step and sizes == wanted
    return manifest if good else None


@attrs.frozen(eq=False)
class Restored:
    """What came back from a checkpoint and is still to be handed out.

    Attributes:
        path: where it lies.
        state: its content.
        manifest: its description.
    """

    path: Path
    state: Mapping[str, Any]
    manifest: Manifest


def read_checkpoint(path: str | Path) -> Restored:
    """Read one checkpoint that was named.

    Raises:
        NoGoodCheckpointError: it is not there, or damaged.
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
        CheckpointError: there is none, or it is damaged.
    """
    found = latest_checkpoint(source)
    path = found.path if found is not None else Path(source)
    if found is None and not (path / "manifest.json").is_file():
        raise CheckpointError(f"there is no checkpoint in {str(source)!r}")
    restored = read_checkpoint(path)
    variables: Mapping[str, Any] = restored.state["variables"]
    return {**variables, "global_step": restored.manifest.global_step}
