"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


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
