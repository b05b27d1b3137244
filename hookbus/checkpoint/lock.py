"""Locks a directory of checkpoints, so that one session at a time writes into it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path

from hookbus.checkpoint.files import cannot_write, create_directory
from hookbus.errors import CheckpointDirectoryError, UsageError
from hookbus.logs import log, shown
from hookbus.process.interrupts import signals_deferred

try:
    import fcntl
except ImportError:  # without it, another process cannot be noticed
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".writing"

changing: threading.RLock = threading.RLock()
"""Held while a lock is taken or released, and while the process forks."""

_held: set[Path] = set()
# Follows no link, and waits for nobody at the other end of a pipe, if the system can.
_AS_IT_IS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}
"""The errors of file systems without locks, as some network file systems are mounted."""


class DirectoryLock:
    """The lock of the session that saves into a directory.

    It is a ``flock``, which belongs to the open file. Unlike a lock of ``fcntl``, it stays
    when other code of the process opens and closes the lock file, for example to copy the
    directory. It is released when the process dies, however it dies. A forked child shares
    the open file, so it calls :meth:`abandon_after_fork`; a new program inherits nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._descriptor: int | None = None

    @signals_deferred
    def take(self) -> None:
        """Take the lock.

        If the file system has no locks, a warning says so.

        Raises:
            UsageError: another session saves into the directory.
            CheckpointDirectoryError: no file can be created or written there, or something
                else stands in the place of the lock file.
        """
        with changing:
            if self._directory in _held:
                raise self._taken("another session of this process")
            try:
                while self._descriptor is None:
                    self._descriptor = self._locked()
            except OSError as error:
                raise cannot_write(self._directory, error) from error
            _held.add(self._directory)

    def _locked(self) -> int | None:
        """Lock the file and write the process id into it; None if it was removed."""
        path = self._directory / LOCK_NAME
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _AS_IT_IS
        with contextlib.suppress(FileNotFoundError):
            self._check_own(path.lstat())
        descriptor = os.open(path, flags, 0o666)
        try:
            self._check_own(os.fstat(descriptor))
            if fcntl is not None:
                self._lock(descriptor)
            if not self._is_on_disk(descriptor):  # removed before it was locked
                os.close(descriptor)
                return None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check_own(self, found: os.stat_result) -> None:
        """Refuse what leads to another file, before anything is written.

        Raises:
            CheckpointDirectoryError: the lock file is a link, has a further name, or is no
                regular file.
        """
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise CheckpointDirectoryError(
                f"{self._directory / LOCK_NAME} is not an ordinary file, but a link or "
                "something else, and saving could overwrite what it leads to: remove it, "
                "unless a session saves into this directory now"
            )

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                log.warning(
                    "cannot lock the checkpoint directory; let no other session save there",
                    directory=shown(self._directory),
                    why=error.strerror,
                )
                return
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            who = os.read(descriptor, 32).decode(errors="replace").strip()
            raise self._taken(f"process {who or 'unknown'}") from None

    @property
    def is_lost(self) -> bool:
        """Whether the lock file is gone, or another one is in its place."""
        return self._descriptor is not None and not self._is_on_disk(self._descriptor)

    def renew(self) -> bool:
        """Take the lock again if its file is gone, alone or with the directory.

        Returns:
            Whether that was necessary.

        Raises:
            UsageError: another session saves into the new directory.
            CheckpointDirectoryError: the directory cannot be created or written.
        """
        if self._descriptor is not None:
            if not self.is_lost:
                return False
            log.warning(
                "the checkpoint directory was removed or renamed during the training; "
                "saving into a new one",
                directory=shown(self._directory),
            )
            self.release()
        try:
            create_directory(self._directory)
        except OSError as error:
            raise cannot_write(self._directory, error) from error
        self.take()
        return True

    def _is_on_disk(self, descriptor: int) -> bool:
        try:
            there = (self._directory / LOCK_NAME).lstat()
        except FileNotFoundError:
            return False
        except OSError:  # the disk may be back later
            return True
        return os.path.samestat(os.fstat(descriptor), there)

    @signals_deferred
    def release(self) -> None:
        """Release the lock."""
        with changing:
            if self._descriptor is not None and fcntl is not None:
                # A child that has just been forked may not have closed its copy yet.
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()

    def abandon_after_fork(self) -> None:
        """Close a forked child's copy of the lock; the parent keeps it."""
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held.discard(self._directory)
            os.close(descriptor)

    def _taken(self, by: str) -> UsageError:
        return UsageError(
            f"{by} is already saving checkpoints into {self._directory}, and only one "
            "session can: wait for it to end, or give another checkpoint_dir"
        )
