"""Locks a directory of checkpoints, so that one session at a time writes into it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hookbus.errors import UsageError

try:
    import fcntl
except ImportError:  # without it, another process cannot be noticed
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".writing"
_held: set[Path] = set()
_taking = threading.Lock()


class DirectoryLock:
    """The lock of the session that saves into a directory.

    It belongs to the process: it is released when the process dies, however it dies, and a
    forked child that outlives the process, like a data loader's worker, does not keep it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            UsageError: another session saves into the directory.
            OSError: no file can be created in the directory.
        """
        with _taking:  # the system's lock does not distinguish threads
            if self._directory in _held:
                raise self._taken("another session of this process")
            self._descriptor = self._locked()
            _held.add(self._directory)

    def _locked(self) -> int:
        """Lock the file against other processes, and write the process id into it."""
        path = self._directory / LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if fcntl is not None:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                who = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                raise self._taken(f"process {who or 'unknown'}") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return descriptor

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            _held.discard(self._directory)
            os.close(self._descriptor)
            self._descriptor = None

    def _taken(self, by: str) -> UsageError:
        return UsageError(
            f"{by} is already saving checkpoints into {self._directory}, and only one "
            "session can: wait for it to end, or give another checkpoint_dir"
        )
