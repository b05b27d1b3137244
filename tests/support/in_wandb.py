"""Trains with hookbus-wandb in other processes, and reads the files that wandb writes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.support.in_mlflow import PROGRAM

EVERY = ("--wandb-every-n-steps", "1", "--checkpoint-saver-save-steps", "7")


def started(words: Sequence[str | Path], *flags: str) -> subprocess.Popen[str]:
    """Start the program, whose arguments are the words, in a new process."""
    command = ["-m", "hookbus", "run", *EVERY, *flags, str(PROGRAM), *map(str, words)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, *command], text=True, env=environment, **pipes)


@attrs.frozen
class Part:
    """The contents of one file of a run: that of one start of the program.

    Attributes:
        id: the id of the run.
        project: its project.
        rows: its rows, in their order.
        config: its config at the end.
        summary: the values that were set in the summary.
        step_metrics: the metric that each pattern has as its step.
        exit_code: the exit code; None if the run was not finished.
    """

    id: str
    project: str
    rows: list[dict[str, Any]]
    config: dict[str, Any]
    summary: dict[str, Any]
    step_metrics: dict[str, str]
    exit_code: int | None


def parts_in(folder: Path = Path()) -> list[Part]:
    """Read all files in the order in which ``wandb sync`` sends them."""
    return [_part(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def _part(path: Path) -> Part:
    from wandb.proto.wandb_internal_pb2 import Record

    name, project, exit_code = "", "", None
    rows, config, summary, steps = [], {}, {}, {}
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name, project = record.run.run_id, record.run.project
        elif kind == "history":
            rows.append(_values(record.history.item))
        elif kind == "config":
            config |= _values(record.config.update)
        elif kind == "summary":
            summary |= _values(record.summary.update)
        elif kind == "metric" and record.metric.step_metric:
            steps[record.metric.glob_name] = record.metric.step_metric
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return Part(name, project, rows, config, summary, steps, exit_code)


def _values(items: Any) -> dict[str, Any]:
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items
    }


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file as wandb does, which checks each part of them."""
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7 : at + 7 + length]
        if len(part) < length:  # the last one, of a process that was killed
            return
        assert zlib.crc32(part, zlib.crc32(bytes([kind]))) == checksum
        at, record = at + 7 + length, record + part
        if kind in (1, 4):
            yield record
            record = b""


def points_in(parts: Sequence[Part]) -> dict[str, list[tuple[int, str]]]:
    """Return the step and the value of each record, as text, by name."""
    points: dict[str, list[tuple[int, str]]] = {}
    for row in (row for part in parts for row in part.rows):
        for name, value in row.items():
            if name[0] != "_" and name != "global_step":
                points.setdefault(name, []).append((row["global_step"], str(value)))
    return points
