"""Computes fingerprints of nested states, to find out whether they have changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashlib import _Hash

_PLAIN = frozenset({type(None), bool, float, complex, str, bytes})
_SMALL = 2**64


def fingerprint(state: Any) -> bytes:
    """Return a hash of a nested state: equal for equal types, numbers, texts and arrays.

    A value of a type that no rule covers makes it different from every other one, so that
    no change of such a value is overlooked.

    >>> fingerprint({"step": 1}) == fingerprint({"step": 1})
    True
    >>> fingerprint({"step": 1}) == fingerprint({"step": 1.0})
    False
    """
    digest = hashlib.sha256()
    _add(digest, state)
    return digest.digest()


def _add(digest: _Hash, value: Any) -> None:
    kind = type(value)
    if kind in _PLAIN:
        _tag(digest, "plain", repr(value))
    elif kind is int:
        _tag(digest, "int", hex(value))  # Python limits the digits of decimal numbers
    elif isinstance(value, Mapping):
        _tag(digest, "mapping", len(value))
        for key, item in value.items():
            _add(digest, key)
            _add(digest, item)
    elif isinstance(value, list | tuple):
        _tag(digest, kind.__name__, len(value))
        # The state of a generator is 625 numbers: without this, each would be a call.
        if {*map(type, value)} == {int} and -_SMALL < min(value) <= max(value) < _SMALL:
            _tag(digest, "ints", repr(value))
        else:
            for item in value:
                _add(digest, item)
    elif hasattr(value, "dtype") and hasattr(value, "tobytes"):
        _tag(digest, kind.__name__, value.dtype, tuple(value.shape))
        digest.update(value.tobytes())
    else:
        digest.update(os.urandom(32))


def _tag(digest: _Hash, *parts: object) -> None:
    """Add text that ends in a byte which no other text has."""
    digest.update(repr(parts).encode("utf-8", "surrogatepass") + b"\0")
