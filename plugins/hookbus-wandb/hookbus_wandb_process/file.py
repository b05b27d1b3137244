"""Reads the rows in files of wandb, also while wandb writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

_BLOCK = 32768
_HEAD = struct.Struct("<IHB")
"""The head of a part of a record: a checksum, the length, and whether more parts follow."""
_FIRST, _MIDDLE = 2, 3


@attrs.define(eq=False)
class LogFile:
    """A file ``run-ID.wandb``: the records of a run in the format of LevelDB's log.

    Args:
        path: the file.
    """

    path: Path
    _at: int = 7  # after the head of the file

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that were written since the last call, each by name."""
        from wandb.proto.wandb_internal_pb2 import Record

        for data in self._records():
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                yield {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }

    def _records(self) -> Iterator[bytes]:
        """Yield whole records; the rest of one is read when it is there."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            data, start = file.read(), self._at
        at, record = start, b""
        while at + _HEAD.size <= start + len(data):
            left = _BLOCK - at % _BLOCK
            if left < _HEAD.size:
                at += left
                continue
            _, length, kind = _HEAD.unpack_from(data, at - start)
            begin = at - start + _HEAD.size
            if begin + length > len(data):
                return
            record += data[begin : begin + length]
            at += _HEAD.size + length
            if kind not in (_FIRST, _MIDDLE):
                self._at = at
                yield record
                record = b""
