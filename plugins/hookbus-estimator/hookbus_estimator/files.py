"""Writes files whole or not at all, and removes files and folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces *path* at the end of the block.

    If the block raises, *path* stays as it is, and the temporary file is removed.
    """
    unfinished = path.with_name(f".hookbus-{os.getpid()}-{threading.get_ident()}")
    discard(unfinished)  # a link in its place would lead the writer elsewhere
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def discard(path: Path) -> None:
    """Remove a file, a link or a directory, if the system allows it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
