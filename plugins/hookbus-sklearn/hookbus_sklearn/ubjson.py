"""Reads Universal Binary JSON, in which xgboost writes its models.

xgboost itself reads beyond the memory that it has where bytes are missing or wrong.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs
import numpy as np

_NUMBERS = {
    "i": "b",
    "U": "B",
    "I": "h",
    "u": "H",
    "l": "i",
    "m": "I",
    "L": "q",
    "M": "Q",
    "d": "f",
    "D": "d",
}
_MOST_LEVELS = 50


def read(data: bytes) -> Any:
    """Return the value that the bytes stand for; numbers of one type come as an array.

    Raises:
        ValueError: they stand for none.

    >>> read(b"{i" + bytes([1]) + b"a[$U#U" + bytes([2, 5, 6]) + b"}")
    {'a': array([5, 6], dtype=uint8)}
    """
    reader = _Reader(data)
    value = reader.value(reader.mark(), 0)
    if reader.place != len(data):
        raise ValueError("bytes are left after its end")
    return value


@attrs.define
class _Reader:
    data: bytes
    place: int = 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.place:
            raise ValueError("it ends too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def mark(self) -> str:
        return chr(self.take(1)[0])

    def peeks(self, mark: str) -> bool:
        return self.data[self.place : self.place + 1] == mark.encode()

    def number(self, mark: str) -> Any:
        form = f">{_NUMBERS[mark]}"
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self) -> int:
        mark = self.mark()
        if mark not in "iUIlL":
            raise ValueError(f"{mark!r} begins no length")
        return int(self.number(mark))

    def text(self) -> str:
        return self.take(self.count()).decode()

    def value(self, mark: str, level: int) -> Any:
        if level > _MOST_LEVELS:
            raise ValueError("it has too many levels")
        if mark == "{":
            return self.mapping(level)
        if mark == "[":
            return self.array(level)
        if mark in _NUMBERS:
            return self.number(mark)
        if mark == "S":
            return self.text()
        if mark in "TFZ":
            return {"T": True, "F": False, "Z": None}[mark]
        raise ValueError(f"{mark!r} begins no value")

    def mapping(self, level: int) -> dict[str, Any]:
        found = {}
        while not self.peeks("}"):
            key = self.text()
            found[key] = self.value(self.mark(), level + 1)
        self.take(1)
        return found

    def array(self, level: int) -> Any:
        if self.peeks("$"):
            self.take(1)
            kind = self.mark()
            if self.mark() != "#" or kind not in _NUMBERS:
                raise ValueError("an array has no type and length")
            dtype = np.dtype(f">{_NUMBERS[kind]}")
            return np.frombuffer(self.take(self.count() * dtype.itemsize), dtype).astype(
                dtype.newbyteorder("=")
            )
        if self.peeks("#"):
            self.take(1)
            count = self.count()
            return [self.value(self.mark(), level + 1) for _ in range(count)]
        found = []
        while not self.peeks("]"):
            found.append(self.value(self.mark(), level + 1))
        self.take(1)
        return found
