"""Keeps the records of a run in a file, and notes which of them were sent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal

import attrs

from hookbus.errors import CheckpointError
from hookbus.tracking.records import Record

_FORMAT = 1


class Newest:
    """The newest step of each value, by which records that are repeated are recognized.

    A resumed training repeats the steps behind its checkpoint, with the same values.

    Attributes:
        steps: the newest step by :meth:`Record.key`.
        params: the newest hyperparameters.
    """

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.params: dict[str, Any] = {}

    def new_in(self, record: Record) -> Record | None:
        """Return a record with its new values only; None if there are none."""
        if record.kind in ("outcome", "rollback"):
            return record
        if record.kind == "params":
            unknown = object()
            known = {
                n for n, v in record.values.items() if self.params.get(n, unknown) == v
            }
        else:
            steps = self.steps
            known = {
                n for n in record.values if steps.get(record.key(n), -1) >= record.step
            }
        if not known:
            return record
        new = {name: value for name, value in record.values.items() if name not in known}
        return attrs.evolve(record, values=new) if new else None

    def note(self, record: Record) -> None:
        """Note the values of a record. Behind a roll-back, the steps after it are new."""
        if record.kind == "rollback":
            self.steps = {name: min(at, record.step) for name, at in self.steps.items()}
        elif record.kind == "params":
            self.params.update(record.values)
        elif record.kind != "outcome":
            self.steps |= dict.fromkeys(map(record.key, record.values), record.step)


class Journal:
    """The records of a run in a file that any kill leaves readable.

    Beside the file is another one with the extension ``.sent``, which tells how many of the
    records have arrived.

    Args:
        path: the file, which is created if needed; so is its folder.
        run: the id of the run, for a new file.

    Attributes:
        run: the id of the run: that of the file, if there was one.
        is_new: whether the file was created.
        path: the file.
        newest: the newest values that were in it.
        unsent: the records that were not sent, the oldest first.
        doubtful: how many of them, from the first on, may have been sent when the program
            was killed.

    Raises:
        OSError: the file cannot be read or written.
        CheckpointError: it is not a journal.
    """

    def __init__(self, path: Path, run: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.run, self.newest, self.path = run, Newest(), path
        lines = whole_lines(path)
        self.is_new = not lines
        records = self._read(lines)
        marks = path.with_suffix(".sent")
        sent, under_way = _marks_in(whole_lines(marks))
        self.unsent, self.doubtful = records[sent:], under_way
        self._sent = sent
        self._file, self._marks = path.open("a"), marks.open("a")
        if self.is_new:
            self._write(self._file, json.dumps({"journal": _FORMAT, "run": run}))

    def _read(self, lines: list[str]) -> list[Record]:
        if not lines:
            return []
        try:
            head = json.loads(lines[0])
            if head["journal"] != _FORMAT:
                raise ValueError(f"its format is {head['journal']}")
            self.run = str(head["run"])
            records = [Record.from_json(line) for line in lines[1:]]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path} is no journal of records ({error}): move it away, or use "
                "another directory"
            ) from error
        for record in records:
            self.newest.note(record)
        return records

    def add(self, record: Record) -> None:
        """Append a record.

        Raises:
            OSError: the file cannot be written.
        """
        self._write(self._file, record.to_json())

    def mark(self, word: Literal["sending", "sent"], count: int) -> None:
        """Note that the next records are on their way, or that they have arrived.

        Raises:
            OSError: the file cannot be written.
        """
        if word == "sent":
            self._sent += count
        self._write(self._marks, f"{word} {self._sent} {count}")

    def put_aside(self) -> None:
        """Close the files, and give them names with the id of their run."""
        self.close()
        for path in (self.path, self.path.with_suffix(".sent")):
            path.rename(path.with_stem(f"{path.stem}.{self.run}"))

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._marks.close()

    def _write(self, file: IO[str], line: str) -> None:
        file.write(f"{line}\n")
        file.flush()


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file; cut off one that a kill has left unfinished.

    A file that does not exist has none.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    return data[:end].decode(errors="replace").splitlines()


def _marks_in(lines: Iterable[str]) -> tuple[int, int]:
    """Return how many records were sent, and how many more were on their way."""
    sent, under_way = 0, 0
    for line in lines:
        word, number, count = line.split()
        sent, under_way = int(number), int(count) if word == "sending" else 0
    return sent, under_way
