"""Writes files whole or not at all, and hashes those of a checkpoint.

The hashes are those of the bytes that are written, so no file is read again. Hashing takes
about as long as writing, and Python can do both at once: a thread hashes each block while
it is written. A block is a copy, so that another thread that changes an array meanwhile
cannot give a file and its hash different contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, cast

from hookbus.checkpoint.manifest import FileRecord, is_file_name
from hookbus.errors import CheckpointDirectoryError, PluginError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BLOCK = 4 * 2**20
"""The bytes of a block."""
_BLOCKS = 4
"""The blocks in memory: one is filled while others wait to be hashed."""


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
        discard(unfinished)


def discard(path: Path) -> None:
    """Remove a file, a link or a directory, if the system allows it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        with contextlib.suppress(OSError):
            path.unlink()


def check_no_link(folder: Path) -> None:
    """Refuse a link in the place of a folder that a session fills and prunes.

    Raises:
        CheckpointDirectoryError: there is one.
    """
    if folder.is_symlink():
        raise CheckpointDirectoryError(
            f"{folder} is a link, and the checkpoints where it leads may be those of "
            "another training run: remove the link, or name that folder itself"
        )


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


class CheckpointFiles:
    """The files of one checkpoint, which a codec writes.

    Args:
        directory: where the files are created, which must exist. By default nothing is
            written, and only the records are made.

    Attributes:
        directory: where they are; None if nothing is written.
        records: the size and the hash of each complete file, by its name.

    >>> files = CheckpointFiles()
    >>> with files.open("values") as file:
    ...     written = file.write(b"0123456789")
    >>> files.records["values"].bytes
    10
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self.records: dict[str, FileRecord] = {}
        self.directory: Path | None = None if directory is None else Path(directory)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Create a file that can be written once, from its beginning to its end.

        At the end of the block the file is safe on the disk and has its record. If the
        block raises an error, the file has no record.

        Args:
            name: the name of the file, without a folder.

        Raises:
            PluginError: no file of a checkpoint can have this name.
            OSError: the file cannot be written, or there is one of that name.
        """
        if not is_file_name(name) or name in self.records:
            raise PluginError(
                f"a codec cannot write a file {name!r}: give each file its own name "
                "that other systems allow, without slashes, and not that of the manifest"
            )
        with contextlib.ExitStack() as stack:
            file = _HashingFile()
            if self.directory is not None:
                path = self.directory / name
                target = stack.enter_context(path.open("xb", buffering=0))
                file = _WrittenFile(target)
            yield cast("BinaryIO", stack.enter_context(file))
            self.records[name] = file.finish()


class _HashingFile(io.BufferedIOBase):
    """Hashes its content, and stores nothing."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        if self.closed:
            raise ValueError("the file of the checkpoint is closed")
        with memoryview(data) as view:
            self._size += view.nbytes
            if view.nbytes:  # a view without elements cannot be cast
                self._take(view.cast("B"))
            return view.nbytes

    def finish(self) -> FileRecord:
        """Return the size and the hash of the content."""
        return FileRecord(self._size, self._digest.hexdigest())

    def _take(self, content: memoryview) -> None:
        self._digest.update(content)


class _WrittenFile(_HashingFile):
    """Writes its content to the disk, while a thread hashes it."""

    def __init__(self, target: io.FileIO) -> None:
        super().__init__()
        self._target = target
        self._block, self._filled = _new_block(), 0
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._full: SimpleQueue[memoryview | None] = SimpleQueue()
        self._hashing: threading.Thread | None = None

    def finish(self) -> FileRecord:
        rest = self._block[: self._filled]
        self._write(rest)
        self.close()
        self._digest.update(rest)
        os.fsync(self._target.fileno())
        return super().finish()

    def close(self) -> None:
        if self._hashing is not None:
            self._full.put(None)
            self._hashing.join()
            self._hashing = None
        super().close()

    def _take(self, content: memoryview) -> None:
        while content:
            part = content[: _BLOCK - self._filled]
            end = self._filled + len(part)
            self._block[self._filled : end] = part
            self._filled, content = end, content[len(part) :]
            if end == _BLOCK:
                self._pass_on()

    def _pass_on(self) -> None:
        """Write the block while the thread hashes it, and go on with a free one."""
        if self._hashing is None:
            for _ in range(_BLOCKS - 1):
                self._free.put(_new_block())
            self._hashing = threading.Thread(
                target=self._hash, name="hookbus-hashing", daemon=True
            )
            self._hashing.start()
        self._full.put(self._block)
        start = self._target.tell()
        self._write(self._block)
        # Linux begins to write what a program needs no more, so the sync waits less.
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                advice = os.POSIX_FADV_DONTNEED
                os.posix_fadvise(self._target.fileno(), start, _BLOCK, advice)
        self._block, self._filled = self._free.get(), 0

    def _hash(self) -> None:
        for block in iter(self._full.get, None):
            self._digest.update(block)
            self._free.put(block)

    def _write(self, content: memoryview) -> None:
        while content:
            content = content[self._target.write(content) :]


def _new_block() -> memoryview:
    """Return memory that takes up space only when it is used: most files are small."""
    return memoryview(mmap.mmap(-1, _BLOCK))
