"""Compares states, and checks whether a checkpoint can hold one."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus.library.lookup import PLAIN, library_of, on_host


def differences(one: Any, other: Any, path: str = "state") -> Iterator[tuple[str, str]]:
    """Yield each place where two nested structures differ, and how they differ.

    >>> list(differences({"n": [1, 2]}, {"n": [1, 3]}))
    [("state['n'][1]", '2 and 3')]
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            inside = f"{path}[{key!r}]"
            if key in one and key in other:
                yield from differences(one[key], other[key], inside)
            else:
                yield inside, "in one of them only"
    elif type(one) is not type(other):
        yield path, f"{_shown(one)} and {_shown(other)}"
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{place}]")
    elif not _equal(one, other):
        yield path, f"{_shown(one)} and {_shown(other)}"


def unsavable(value: Any, path: str = "state") -> Iterator[str]:
    """Yield the faults of a state: parts that a codec may refuse.

    >>> list(unsavable({"seen": {1, 2}}))
    ["state['seen'] is a set"]
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if type(key) is not str:
                yield f"{path} has the key {key!r}, which is not a str"
            yield from unsavable(entry, f"{path}[{key!r}]")
    elif type(value) in (list, tuple):
        for place, entry in enumerate(value):
            yield from unsavable(entry, f"{path}[{place}]")
    elif type(value) not in PLAIN and not (_is_array(value) or _is_packed(value)):
        yield f"{path} is a {type(value).__qualname__}"


def _is_array(value: Any) -> bool:
    """Return whether a value is a NumPy array or scalar without Python objects."""
    numpy = sys.modules.get("numpy")
    kinds = () if numpy is None else (numpy.ndarray, numpy.generic)
    return isinstance(value, kinds) and not value.dtype.hasobject


def _is_packed(value: Any) -> bool:
    """Return whether a value is one that its library packs for codecs, like a tensor."""
    library = library_of(value)
    return library is not None and library.pack(value) is not None


def _equal(one: Any, other: Any) -> bool:
    one, other = on_host([one, other])
    if hasattr(one, "tobytes") and hasattr(one, "dtype"):
        parts = (one.dtype, one.shape, one.tobytes())
        return bool(parts == (other.dtype, other.shape, other.tobytes()))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
