"""Writes files whole or not at all, and reports a directory that cannot be written."""

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


def cannot_write(directory: Path, error: OSError) -> CheckpointDirectoryError:
    """Return the error for a directory that cannot hold checkpoints."""
    return CheckpointDirectoryError(
        f"cannot write checkpoints into {directory}: {error.strerror}; give a "
        "checkpoint_dir that can be written, or -p no:checkpoint-saver"
    )
