"""Writes and reads files in the format of safetensors, piece by piece.

The library safetensors takes all arrays at once, and scrambles any that is not in C order
(safetensors issue 825). This module writes the format itself, nearly without copies, and
reads only files that the library accepts.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import numpy as np
from safetensors import safe_open

from hookbus import PluginError

_RAW = "U8"
_NATIVE: Mapping[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "bfloat16": ("BF16", 2),
    **{f"int{8 * size}": (f"I{8 * size}", size) for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": (f"U{8 * size}", size) for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": (f"F{8 * size}", size) for size in (2, 4, 8)},
}
"""The dtypes that safetensors 0.4.1 and later read: its own name, and the size in bytes.

One array of a dtype that a tool does not know would make the whole file unreadable to it.
"""
_PIECE = 2**20
"""The bytes of an array that is not dense are copied together up to this number."""


@attrs.frozen(eq=False)
class StoredArray:
    """An array as a file holds it.

    Attributes:
        dtype: its dtype there.
        shape: its shape there.
        nbytes: the number of its bytes.
        pieces: returns its bytes, piece by piece.
    """

    dtype: str
    shape: Sequence[int]
    nbytes: int
    pieces: Callable[[], Iterator[Any]]

    @classmethod
    def of(
        cls,
        dtype: str | None,
        shape: Sequence[int],
        nbytes: int,
        pieces: Callable[[], Iterator[Any]],
    ) -> StoredArray:
        """Store an array natively, or as raw bytes if safetensors has no such *dtype*."""
        native, size = _NATIVE.get(dtype or "", (_RAW, 0))
        if math.prod(shape) * size == nbytes and size:
            return cls(native, shape, nbytes, pieces)
        return cls(_RAW, [nbytes], nbytes, pieces)


METADATA = "__metadata__"
"""The name in a header that no array can have."""


def is_native(dtype: str | None) -> bool:
    """Return whether safetensors has a name for a dtype, given by that of NumPy."""
    return dtype in _NATIVE


def write_arrays(
    arrays: Mapping[str, StoredArray],
    file: BinaryIO,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays in the format of safetensors, those with the largest elements first.

    With that order, and a header of a multiple of 8 bytes, every element is aligned.
    """
    sizes = dict(_NATIVE.values())
    order = sorted(arrays, key=lambda key: (-sizes[arrays[key].dtype], key))
    header: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    end = 0
    for key in order:
        stored, start = arrays[key], end
        end += stored.nbytes
        header[key] = {
            "dtype": stored.dtype,
            "shape": [*stored.shape],
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for key in order:
        nbytes = sum(map(file.write, arrays[key].pieces()))
        if nbytes != arrays[key].nbytes:
            raise PluginError(
                f"the plugin of its library packs {key} into {nbytes} bytes, and announced "
                f"{arrays[key].nbytes}"
            )


def pieces_of(ordered: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the bytes of an array in C order; only parts in another order are copied."""
    if not ordered.nbytes:
        return
    if ordered.flags.c_contiguous or ordered.nbytes <= _PIECE:
        yield np.ascontiguousarray(ordered).reshape(-1).view(np.uint8)
    elif ordered[0].nbytes > _PIECE:
        for part in ordered:
            yield from pieces_of(part)
    else:
        rows = _PIECE // ordered[0].nbytes
        for start in range(0, len(ordered), rows):
            yield from pieces_of(ordered[start : start + rows])


@attrs.frozen(eq=False)
class ArrayFile:
    """A file that is read one array at a time.

    Attributes:
        file: the open file.
        header: the entry of each array.
        start: where the bytes of the arrays begin.
    """

    file: BinaryIO
    header: Mapping[str, Any]
    start: int

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path) -> Iterator[ArrayFile]:
        """Open a file whose header gives each byte to one array.

        Raises:
            SafetensorError: the file is damaged.
        """
        with safe_open(path, framework="np"):  # it checks the header
            pass
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            yield cls(file, json.loads(file.read(length)), 8 + length)

    def size(self, key: str) -> int:
        """Return the number of bytes of an array."""
        begin, end = self.header[key]["data_offsets"]
        return int(end - begin)

    def fill(self, target: np.ndarray[Any, Any], key: str) -> None:
        """Read the bytes of an array into one of that size."""
        self.file.seek(self.start + self.header[key]["data_offsets"][0])
        content = target.reshape(-1).view(np.uint8)
        if self.file.readinto(content) != content.nbytes:  # type: ignore[attr-defined]
            raise ValueError(f"the file ends before {key!r} does")
