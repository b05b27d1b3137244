"""Locks a directory of checkpoints, so that one session at a time writes into it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from hookbus.checkpoint.files import cannot_write
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
            CheckpointDirectoryError: no file can be created, written or locked there.
        """
        with _taking:  # the system's lock does not distinguish threads
            if self._directory in _held:
                raise self._taken("another session of this process")
            try:
                self._descriptor = self._locked()
            except OSError as error:
                raise cannot_write(self._directory, error) from error
            _held.add(self._directory)

    def _locked(self) -> int:
        """Lock the file against other processes, and write the process id into it."""
        path = self._directory / LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if fcntl is not None:
                self._lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise  # the file system may have no locks
            who = os.read(descriptor, 32).decode(errors="replace").strip()
            raise self._taken(f"process {who or 'unknown'}") from None

    def renew(self) -> None:
        """Take the lock again if its file was removed, alone or with the directory.

        Raises:
            UsageError: another session saves into the new directory.
            CheckpointDirectoryError: the directory cannot be created or written.
        """
        if self._descriptor is not None and not self._is_on_disk(self._descriptor):
            self.release()
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(self._directory, error) from error
            self.take()

    def _is_on_disk(self, descriptor: int) -> bool:
        try:
            there = (self._directory / LOCK_NAME).stat()
        except FileNotFoundError:
            return False
        except OSError:  # the disk may be back later
            return True
        return os.path.samestat(os.fstat(descriptor), there)

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
