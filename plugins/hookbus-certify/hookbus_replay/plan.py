"""Tells the process that replays what to do, and the command what it found: in files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class Plan:
    """The task of one process of a replay.

    Attributes:
        part: the number of the process, for its records.
        passed: the paths of the checkpoints to compare with, by step.
        last: the step to end after.
        since: when the checkpoint was saved that the replay starts from, in seconds since
            the epoch.
        break_at: the step after which the debugger opens, or None.
        report: the file for the records.
    """

    part: int
    passed: Mapping[int, str]
    last: int
    since: float
    break_at: int | None
    report: str

    def write(self, path: Path) -> None:
        """Write the plan into a file."""
        path.write_text(json.dumps(attrs.asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan; JSON makes strings of the steps."""
        fields = json.loads(path.read_text("utf-8"))
        passed = {int(step): path for step, path in fields["passed"].items()}
        return cls(**{**fields, "passed": passed})


@attrs.frozen
class Report:
    """The records of the processes of a replay, one a line.

    Each record has the number of the ``part`` that wrote it, and ``what`` it is: the
    ``start`` of a session, a ``checkpoint`` or the ``end``.
    """

    path: Path = attrs.field(converter=Path)

    def add(self, part: int, what: str, **fields: Any) -> None:
        """Append a record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "what": what, **fields}) + "\n")

    def records(self, what: str, part: int | None = None) -> list[Mapping[str, Any]]:
        """Return the records of a kind, of one part or of all."""
        return [
            record
            for record in self._all()
            if record["what"] == what and part in (None, record["part"])
        ]

    def _all(self) -> Iterator[Mapping[str, Any]]:
        if self.path.exists():
            for line in self.path.read_text("utf-8").splitlines():
                yield json.loads(line)
