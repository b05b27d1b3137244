"""Keeps the records of a run in a file, and notes which of them were sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import attrs

from hookbus.errors import CheckpointError
from hookbus.tracking.line_file import LineFile
from hookbus.tracking.records import Record

_FORMAT = 1
_WITHOUT_STEPS = ("program", "params")
"""The kinds of records whose values are told again only if they have changed."""


class Newest:
    """The newest step of each value, by which records that are repeated are recognized.

    A resumed run repeats the steps after its checkpoint, with the same values.

    Attributes:
        steps: the newest step by :meth:`Record.key`.
        told: the newest values of the program and of the hyperparameters.
    """

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.told: dict[str, Any] = {}

    def new_in(self, record: Record) -> Record | None:
        """Return a record with its new values only; None without any."""
        if record.kind in ("outcome", "rollback"):
            return record
        if record.kind in _WITHOUT_STEPS:
            told, unknown = self.told, object()
            known = {
                n for n, v in record.values.items() if told.get(record.key(n), unknown) == v
            }
        else:
            steps = self.steps
            known = {
                name
                for name, key in zip(record.values, record.keys, strict=True)
                if steps.get(key, -1) >= record.step
            }
        if not known:
            return record
        new = {name: value for name, value in record.values.items() if name not in known}
        return attrs.evolve(record, values=new) if new else None

    def note(self, record: Record) -> None:
        """Note the values of a record. Behind a roll-back, the steps after it are new."""
        if record.kind == "rollback":
            self.steps = {name: min(at, record.step) for name, at in self.steps.items()}
        elif record.kind in _WITHOUT_STEPS:
            self.told |= {record.key(name): v for name, v in record.values.items()}
        elif record.kind != "outcome":
            self.steps |= dict.fromkeys(record.keys, record.step)


class Journal:
    """The records of a run in a file that any kill leaves readable.

    Beside the file is another one with the extension ``.sent``, which tells how many of the
    records have arrived.

    Args:
        path: the file, which is created if needed; so is its folder.
        run: the id of the run, for a new file.

    Attributes:
        path: the file.
        run: the id of the run: that of the file, if there was one.
        is_new: whether the file was created.
        records: the records that were in it.
        unsent: those of them that were not sent, the oldest first.
        doubtful: how many of these, from the first on, may have been sent when the program
            was killed.

    Raises:
        OSError: the file cannot be read or written.
        CheckpointError: it is not a journal.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder, "run.jsonl"), "f" * 32)
    ...     journal.add(Record("metrics", 20, {"loss": 0.5}))
    ...     journal.close()
    ...     again = Journal(journal.path, "0" * 32)
    ...     again.close()
    >>> again.run == "f" * 32, again.is_new, [record.step for record in again.unsent]
    (True, False, [20])
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path: Path = path
        self.run: str = run
        self._lines, self._marks = LineFile(path), LineFile(path.with_suffix(".sent"))
        self.is_new: bool = not self._lines.found
        self.records: list[Record] = self._read(self._lines.found)
        self.doubtful: int
        self._sent, self.doubtful = _marks_in(self._marks.found)
        self.unsent: list[Record] = self.records[self._sent :]
        if self.is_new:
            self._lines.add(json.dumps({"journal": _FORMAT, "run": run}))

    def _read(self, lines: list[str]) -> list[Record]:
        if not lines:
            return []
        try:
            head = json.loads(lines[0])
            if head["journal"] != _FORMAT:
                raise ValueError(f"its format is {head['journal']}")
            self.run = str(head["run"])
            return [Record.from_json(line) for line in lines[1:]]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path} is no journal of records ({error}): move it away, or use "
                "another directory"
            ) from error

    def add(self, record: Record) -> None:
        """Append a record.

        Raises:
            OSError: the file cannot be written.
        """
        self._lines.add(record.to_json())

    def mark(self, word: Literal["sending", "sent"], count: int) -> None:
        """Note that the next records are on their way, or that they have arrived.

        Args:
            word: ``sending`` before the records are sent, ``sent`` afterwards.
            count: the number of records.

        Raises:
            OSError: the file cannot be written.
        """
        if word == "sent":
            self._sent += count
        self._marks.add(f"{word} {self._sent} {count}")

    def put_aside(self) -> None:
        """Close the files, and give them names with the id of their run."""
        self.close()
        for path in (self._lines.path, self._marks.path):
            if path.exists():
                path.rename(path.with_stem(f"{path.stem}.{self.run}"))

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._marks.close()


def _marks_in(lines: Iterable[str]) -> tuple[int, int]:
    """Return how many records were sent, and how many more were on their way."""
    sent, under_way = 0, 0
    for line in lines:
        word, number, count = line.split()
        sent, under_way = int(number), int(count) if word == "sending" else 0
    return sent, under_way
