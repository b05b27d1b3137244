"""Writes the numbers of a session into metrics.jsonl, each of them once."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import Checkpoints, Graph
from hookbus.tracking import LineFile, Record, RecordingHook, RunInfo

_OWN = ("step", "time")
"""The names in a row that are no numbers of the program."""


@attrs.define(eq=False)
class MetricsWriterHook(RecordingHook):
    """Writes numbers and evaluations as rows of ``metrics.jsonl``, and of ``metrics.csv``.

    It takes the numbers in the first run and then periodically, the values that other hooks
    emit as ``measured``, and evaluations. A resumed run adds only rows that are not
    there. A roll-back removes the rows of the steps that it undoes.

    Args:
        every_n_steps: global steps between two rows of numbers.
        names: the numbers to write, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.
        directory: the directory of the files; by default that of the checkpoints.
        csv: whether to write ``metrics.csv`` as well, with a row for each number.

    Raises:
        UsageError: there is no directory.

    >>> from tempfile import TemporaryDirectory
    >>> from hookbus.testing import run_steps
    >>> with TemporaryDirectory() as folder:
    ...     hook = MetricsWriterHook(every_n_steps=1, names="loss", directory=folder)
    ...     _ = run_steps(hook, values={"loss": [0.5, 0.25]})
    ...     rows = Path(folder, "metrics.jsonl").read_text().splitlines()
    >>> [json.loads(row)["loss"] for row in rows]
    [0.5, 0.25]
    """

    options: ClassVar[hookbus.HookOptions] = attrs.evolve(
        RecordingHook.options, main_setting="directory"
    )

    directory: str | None = None
    csv: bool = False
    _folder: Path = attrs.field(factory=Path, init=False)
    _rows: LineFile | None = attrs.field(default=None, init=False)
    _cells: LineFile | None = attrs.field(default=None, init=False)

    def begin(self, graph: Graph, checkpoints: Checkpoints) -> None:
        """Find the directory."""
        folder = self.directory or checkpoints.directory
        if folder is None:
            raise hookbus.UsageError(
                "metrics-writer has no directory: give --metrics-writer-directory, or the "
                "session a checkpoint_dir."
            )
        self._folder = Path(folder).absolute()  # the script may change directory
        super().begin(graph, checkpoints)

    def start(self, run: RunInfo) -> None:  # noqa: ARG002 (as the kit calls it)
        """Open the files, and learn what they have."""
        rows = self._rows = LineFile(self._folder / "metrics.jsonl")
        found = [record for line in rows.found if (record := _record_of(line)) is not None]
        self.leave_out(found)
        if self.csv:
            self._cells = LineFile(self._folder / "metrics.csv")
            self._cells.replace(_table(found))

    def take(self, record: Record) -> None:
        """Add a row, or remove those that a roll-back undoes."""
        assert self._rows is not None
        if record.kind == "rollback":
            self._undo(record.step)
        elif record.scalars:
            self._rows.add(json.dumps(_row_of(record)))
            if self._cells is not None:
                for line in _cells_of(record):
                    self._cells.add(line)

    def _undo(self, step: int) -> None:
        rows = self._rows
        assert rows is not None
        rows.close()
        kept = [line for line in LineFile(rows.path).found if _step_of(line) <= step]
        rows.replace(kept)
        if self._cells is not None:
            found = (_record_of(line) for line in kept)
            self._cells.replace(_table(record for record in found if record is not None))

    def stop(self) -> None:
        """Close the files."""
        for file in (self._rows, self._cells):
            if file is not None:
                file.close()
        hookbus.log.info("metrics written", path=str(self._folder / "metrics.jsonl"))
        self._rows = self._cells = None


def _row_of(record: Record) -> dict[str, Any]:
    """Return the row of a record. JSON has no number that is not finite: it is null."""
    own = {"step": record.step, "time": round(record.time, 3)}
    return own | {
        f"{name}_" if name in _OWN else name: value if math.isfinite(value) else None
        for name, value in record.scalars.items()
    }


def _record_of(line: str) -> Record | None:
    """Return the record of a row; None if the line is no such row."""
    try:
        row = json.loads(line)
        step, time = int(row.pop("step")), float(row.pop("time"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    values = {n.removesuffix("_") if n[:-1] in _OWN else n: v for n, v in row.items()}
    return Record("metrics", step, values, time=time)


def _step_of(line: str) -> float:
    """Return the step of a row; a line of somebody else's comes before all."""
    record = _record_of(line)
    return -math.inf if record is None else record.step


def _table(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of the table with a row for each number."""
    yield "step,time,name,value"
    for record in records:
        yield from _cells_of(record)


def _cells_of(record: Record) -> Iterator[str]:
    for name, value in record.scalars.items():
        text = io.StringIO()
        shown = "" if value is None or not math.isfinite(value) else repr(value)
        cells = (record.step, round(record.time, 3), name, shown)
        csv.writer(text, lineterminator="").writerow(cells)
        yield text.getvalue()
