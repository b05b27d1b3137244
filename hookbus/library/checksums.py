"""Makes checksums of values, also of those of libraries, and of some values of a pass."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus.errors import CheckpointError
from hookbus.library.lookup import PLAIN, is_plain_array, library_of

_PLAIN = tuple(PLAIN)


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
    elif is_plain_array(value):
        yield repr((str(value.dtype), value.shape)).encode()
        yield value.tobytes()
    else:
        raise _UnknownError


class Checksums:
    """The checksums of some values of one pass: of the numbers 1, 2, 4, 8 and so on.

    The values are counted from 1. Each checksum is taken when the value is pulled, because
    the program may change a batch in place. A state also has that of the last value, if
    no code can have changed it since.

    Args:
        state: a position of the input, of which the checksums are compared with those of
            the values that come now; or an empty one. Older positions have only ``first``.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        noted = {int(number): each for number, each in state.get("checksums", {}).items()}
        first = state.get("first")
        self._before = noted if first is None else {**noted, 1: first}
        self._noted = {n: each for n, each in self._before.items() if _is_power_of_2(n)}

    def forget(self) -> None:
        """Compare no further value, and forget those that are not read again."""
        self._before, self._noted = {}, {}

    @property
    def compares(self) -> bool:
        """Whether there are values to compare."""
        return bool(self._before)

    def note(self, number: int, value: Any) -> bool:
        """Take the checksum of a value; return whether it differs from the one before."""
        checksum, before = digest_of(value), self._before.get(number)
        if not _is_power_of_2(number):
            pass
        elif checksum is None:
            self._noted.pop(number, None)
        else:
            self._noted[number] = checksum
        return before not in (None, checksum)

    def next_after(self, number: int) -> int:
        """Return the number of the next value to note."""
        power = 1 << number.bit_length()
        if not self._before:
            return power
        return min([power, *(each for each in self._before if each > number)])

    def state(self, number: int, last: int | None) -> dict[str, Any]:
        """Return the checksums of the values up to a number, for a position.

        *last* is that of the value of this number, if it is known.
        """
        noted = {n: each for n, each in self._noted.items() if n <= number}
        if last is not None:
            noted[number] = last
        first = noted.pop(1, None)
        state: dict[str, Any] = {} if first is None else {"first": first}
        if noted:
            state["checksums"] = {str(n): each for n, each in noted.items()}
        return state


def is_fixed(value: Any) -> bool:
    """Return whether no code can change a value.

    That holds for numbers, text, bytes, scalars of NumPy and tuples of these.

    >>> is_fixed((1, ("a", None))), is_fixed((1, [])), is_fixed({})
    (True, False, False)
    """
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple):
            parts.extend(part)
        elif type(part) not in PLAIN and not _is_numpy_scalar(part):
            return False
    return True


def _is_numpy_scalar(value: Any) -> bool:
    is_numpy = type(value).__module__ == "numpy" and hasattr(value, "dtype")
    return is_numpy and not hasattr(value, "__setitem__")


def _is_power_of_2(number: int) -> bool:
    return number & (number - 1) == 0
