"""Writes files whole or not at all; creates and syncs directories."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from hookbus.errors import CheckpointDirectoryError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces *path* at the end of the block.

    If the block raises, *path* stays as it is, and the temporary file is removed.
    """
    unfinished = path.with_name(f".hookbus-{os.getpid()}-{threading.get_ident()}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def create_directory(directory: Path) -> None:
    """Create a directory and the missing ones above it, so that a crash keeps them.

    Raises:
        OSError: one of them cannot be created.
    """
    if directory.is_dir():
        return
    create_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # one may write where one may not read
        sync(directory.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are safe on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(directory: Path, error: OSError) -> CheckpointDirectoryError:
    """Return the error for a directory that cannot hold checkpoints."""
    return CheckpointDirectoryError(
        f"cannot write checkpoints into {directory}: {error.strerror}; give a "
        "checkpoint_dir that can be written, or -p no:checkpoint-saver"
    )
