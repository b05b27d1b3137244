"""Who may write into a directory of checkpoints: one session at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hookbus.errors import UsageError

try:
    import fcntl
except ImportError:  # where there is none, two writers cannot be told apart
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".writing"
_held: set[Path] = set()
_taking = threading.Lock()


class DirectoryLock:
    """Held by the session that saves into a directory.

    The lock is the process's own: it is gone when the process dies, however it dies, and a
    forked child, like a data loader's worker that outlives it, does not keep it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            UsageError: another session saves into the directory.
            OSError: the directory takes no files.
        """
        with _taking:  # the system's lock does not tell threads apart
            if self._directory in _held:
                raise self._taken("another session of this process")
            self._descriptor = self._locked()
            _held.add(self._directory)

    def _locked(self) -> int:
        """Lock the file against other processes, and write down whose it is."""
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
        """Give the lock back."""
        if self._descriptor is not None:
            _held.discard(self._directory)
            os.close(self._descriptor)
            self._descriptor = None

    def _taken(self, by: str) -> UsageError:
        return UsageError(
            f"{by} saves checkpoints into {self._directory}; two would take each other's "
            "for their own: wait for it to end, or give another checkpoint_dir"
        )
