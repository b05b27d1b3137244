"""Reads the files in which a run tells its values, also while it writes them.

Each reader goes on where it was, so reading again costs what is new.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from hookbus.errors import summary_of
from hookbus.tracking import Record
from hookbus.validation import number_in
from hookbus_live.series import Series

METRICS = "metrics.jsonl"
JOURNALS = "tracking"
EVENTS = "*tfevents*"
_CHUNK = 2**18
_PLAIN = ("step", "time")


@attrs.define(eq=False)
class Values:
    """The contents of files: points by name, hyperparameters, and faults.

    Attributes:
        series: the points of each value.
        params: the hyperparameters.
        outcome: how the training has ended; None while it goes on.
        problems: the faults of the files, in words.
        count: how many points were read.
    """

    series: dict[str, Series] = attrs.field(factory=dict)
    params: dict[str, Any] = attrs.field(factory=dict)
    outcome: Mapping[str, Any] | None = None
    problems: list[str] = attrs.field(factory=list)
    count: int = 0

    def add(self, name: str, step: float, time: float, value: float) -> None:
        """Add a point."""
        series = self.series.get(name)
        if series is None:
            series = Series()
            self.series = {**self.series, name: series}  # a thread may be reading it
        series.add(step, time, value)
        self.count += 1


class Source(Protocol):
    """Reads one kind of files of a run."""

    values: Values

    def refresh(self) -> bool:
        """Read new contents; return whether there were any."""


class Lines:
    """Reads the lines of a file that grows.

    The last line may be unfinished; it is read when it is whole. A line of a program that
    was killed may end in the middle, and is left out.

    Args:
        path: the file.
        take: gets the object of each line; raises ValueError, KeyError or TypeError for one
            that is no line of such a file.
        forget: is called if the file begins anew.
    """

    def __init__(
        self, path: Path, take: Callable[[Any], object], forget: Callable[[], object]
    ) -> None:
        self.path, self._take, self._forget = path, take, forget
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._bad = 0

    @property
    def problem(self) -> str | None:
        """The fault of the file, or None."""
        if not self._bad:
            return None
        lines = "1 line" if self._bad == 1 else f"{self._bad} lines"
        return f"{self.path.name}: {lines} could not be read and were left out"

    def refresh(self) -> bool:
        """Read the lines that are new; return whether there were some."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        file_id = found.st_dev, found.st_ino
        if file_id != self._file_id or found.st_size < self._offset:
            if self._file_id is not None:
                self._forget()
            self._file_id, self._offset, self._bad = file_id, 0, 0
        if found.st_size == self._offset:
            return False
        before = self._offset
        with self.path.open("rb") as file:
            file.seek(self._offset)
            rest = b""
            while chunk := file.read(_CHUNK):
                whole, end, rest = (rest + chunk).rpartition(b"\n")
                self._offset += len(whole) + len(end)
                self._read(whole)
        return self._offset > before

    def _read(self, data: bytes) -> None:
        lines = [line for line in data.decode(errors="replace").split("\n") if line.strip()]
        try:
            found = json.loads(f"[{','.join(lines)}]")  # all at once takes half the time
        except ValueError:
            found = [*map(_parsed, lines)]
        for each in found:
            try:
                self._take(each)
            except (ValueError, KeyError, TypeError, AttributeError):
                self._bad += 1


def _parsed(line: str) -> Any:
    """Return the object of a line; None if it is no JSON, which no reader takes."""
    with contextlib.suppress(ValueError):
        return json.loads(line)
    return None


class MetricsFile:
    """Reads ``metrics.jsonl``: an object a line, with the step, the time and numbers."""

    def __init__(self, directory: Path) -> None:
        self.values = Values()
        self._lines = Lines(directory / METRICS, self._take, self._forget)

    def refresh(self) -> bool:
        """Read new contents; return whether there were any."""
        is_new = self._lines.refresh()
        self.values.problems = [p for p in [self._lines.problem] if p]
        return is_new

    def _take(self, line: Mapping[str, Any]) -> None:
        step, time = line["step"], line.get("time", math.nan)
        for name, value in line.items():
            if name in _PLAIN:
                continue
            number = value if value.__class__ is float else _number_of(value)
            if number is not None:
                self.values.add(name, step, time, number)

    def _forget(self) -> None:
        self.values = Values()


class Journals:
    """Reads the journals of trackers, which hold the records of a run."""

    def __init__(self, directory: Path) -> None:
        self.values = Values()
        self._folder = directory / JOURNALS
        self._lines: Lines | None = None

    def refresh(self) -> bool:
        """Read new contents; return whether there were any."""
        if self._lines is None:
            # All journals of a run tell the same, and those put aside are of other runs.
            newest = max(self._folder.glob("*.jsonl"), key=_age, default=None)
            if newest is None:
                return False
            self._lines = Lines(newest, self._take, self._forget)
        is_new = self._lines.refresh()
        self.values.problems = [p for p in [self._lines.problem] if p]
        return is_new

    def _take(self, line: Mapping[str, Any]) -> None:
        if "journal" in line:
            return
        record, values = Record(**line), self.values
        if record.kind == "params":
            values.params.update(record.values)
        elif record.kind == "outcome":
            values.outcome = {**record.values, "step": record.step}
        else:
            values.outcome = None
        for name, value in record.scalars.items():
            values.add(name, record.step, record.time, value)

    def _forget(self) -> None:
        self.values = Values()


class EventFiles:
    """Reads TensorBoard's event files, with TensorBoard's own reader."""

    def __init__(self, directory: Path) -> None:
        self.values = Values()
        self._directory = directory
        self._loaders: dict[Path, Any] = {}
        self._sizes: dict[Path, int] = {}
        self._counts: Counter[Path] = Counter()

    def refresh(self) -> bool:
        """Read new contents; return whether there were any."""
        is_new, problems = False, []
        for path in sorted(self._directory.glob(EVENTS)):
            try:
                size = path.stat().st_size if path.is_file() else 0
                if size != self._sizes.get(path, 0):
                    self._sizes[path] = size
                    is_new = True
                    self._read(path)
            except ImportError:
                problems.append(
                    f"{path.name} is not shown: TensorBoard reads such files; install it "
                    "with pip install tensorboard"
                )
                continue
            except Exception as error:  # whatever TensorBoard raises for a damaged file
                problems.append(f"{path.name} cannot be read: {summary_of(error)}")
                continue
            if size and not self._counts[path]:
                problems.append(f"{path.name} is no event file, or is damaged: it has none")
        self.values.problems = problems
        return is_new

    def _read(self, path: Path) -> None:
        loader = self._loaders.get(path)
        if loader is None:
            # It takes long to import, and a run may have no such file.
            from tensorboard.backend.event_processing.event_file_loader import (
                LegacyEventFileLoader,
            )

            loader = self._loaders[path] = LegacyEventFileLoader(os.fspath(path))
        for event in loader.Load():
            self._counts[path] += 1
            for value in event.summary.value:
                number = _scalar_of(value)
                if number is not None:
                    self.values.add(value.tag, event.step, event.wall_time, number)


def _number_of(value: Any) -> float | None:
    """Return a number of a line; null stands for one that is not finite."""
    return math.nan if value is None else number_in(value)


def _scalar_of(value: Any) -> float | None:
    """Return the number of a summary; None for a picture, a text, and the like."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.tensor_shape.dim:
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if numbers:
            return float(numbers[0])
    if tensor.tensor_content and tensor.dtype in (1, 2):
        from tensorboard.util.tensor_util import make_ndarray

        return float(make_ndarray(tensor))
    return None


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def sources_of(directory: Path) -> Iterator[Source]:
    """Yield the readers of a directory; of two values of one name the first one counts."""
    yield MetricsFile(directory)
    yield Journals(directory)
    yield EventFiles(directory)
