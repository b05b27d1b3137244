"""Appends lines to a file that neither a kill nor a full disk leaves broken."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from hookbus.checkpoint.files import replacing


class LineFile:
    r"""A file to which whole lines are appended. Each can be read as soon as it is added.

    A line that a kill has left unfinished is cut off when the file is opened again.

    Args:
        path: the file; it is created with its first line, and its folder at once.

    Attributes:
        path: the file.
        found: the lines that were in it.

    Raises:
        OSError: the file cannot be read, or its folder cannot be created.

    >>> from tempfile import mkdtemp
    >>> file = LineFile(Path(mkdtemp(), "new", "a.txt"))
    >>> file.add("one")
    >>> _ = file.path.write_text("one\ntw")
    >>> LineFile(file.path).found
    ['one']
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: int | None = None
        data = path.read_bytes() if path.exists() else b""
        self._size = data.rfind(b"\n") + 1
        if self._size < len(data):
            os.truncate(path, self._size)
        self.found: list[str] = data[: self._size].decode(errors="replace").splitlines()

    def add(self, line: str) -> None:
        """Append a line.

        Raises:
            OSError: it cannot be written; then the file is as before.
        """
        data = f"{line}\n".encode()
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.write(self._file, data) < len(data):
                raise OSError(f"no room for a line in {self.path}")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def replace(self, lines: Iterable[str]) -> None:
        """Exchange all lines at once.

        Raises:
            OSError: the file cannot be written; then it is as before.
        """
        self.close()
        data = "".join(f"{line}\n" for line in lines).encode()
        with replacing(self.path) as new:
            new.write_bytes(data)
        self._size = len(data)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
