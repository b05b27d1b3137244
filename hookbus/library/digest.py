"""Makes checksums of values, also of those of libraries."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus.errors import CheckpointError
from hookbus.library.lookup import library_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _UnknownError(Exception):
    """There is a part whose content cannot be read."""


def digest_of(value: Any) -> int | None:
    """Return a checksum of a value's content, or None if it cannot be read.

    Arrays, numbers, strings, values of libraries, and dicts, lists and tuples of these have
    one. It takes about as long as copying the value.

    >>> digest_of([1, "a"]) == digest_of([1, "a"]) != digest_of([1, "b"])
    True
    >>> digest_of(object()) is None
    True
    """
    checksum = 0
    try:
        for part in _content_of(value):
            checksum = zlib.crc32(part, checksum)
    except (_UnknownError, RecursionError, CheckpointError):
        return None
    return checksum


def _content_of(value: Any) -> Iterator[Any]:
    if isinstance(value, _PLAIN):
        yield repr(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, Mapping):
        yield b"{"
        for item in value.items():
            yield from _content_of(item)
    elif isinstance(value, list | tuple):
        yield b"["
        for part in value:
            yield from _content_of(part)
    else:
        yield from _content_of_array(value)


def _content_of_array(value: Any) -> Iterator[Any]:
    library = library_of(value)
    packed = None if library is None else library.pack(value)
    if packed is not None:
        yield repr((packed.dtype, packed.shape)).encode()
        yield packed.data()
    elif hasattr(value, "tobytes") and not getattr(value.dtype, "hasobject", True):
        yield repr((str(value.dtype), value.shape)).encode()
        yield value.tobytes()
    else:
        raise _UnknownError
