"""Protects values that several hooks see from changes by one of them.

Each hook gets arrays as read-only views, and containers as copies. So a hook that computes
in place changes neither what the next hook sees nor the arrays of the training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MOST_CLASSES = 1024

SAFE: set[type] = set()
"""Classes that need no protection: compiled steps pass their values on without a call."""


def protected(value: Any) -> Any:
    """Return a value as one hook gets it.

    An array becomes a read-only view. A dict, list or tuple becomes a copy, whose parts are
    protected as well. Other objects stay as they are: numbers cannot change, and the arrays
    of some libraries cannot either.

    >>> given = {"loss": 0.5, "per_class": [0.25, 0.75]}
    >>> seen = protected(given)
    >>> seen["per_class"].append(1.0)
    >>> given
    {'loss': 0.5, 'per_class': [0.25, 0.75]}
    """
    cls = value.__class__
    if cls in SAFE:
        return value
    protect = _protection(cls)
    if protect is not None:
        return protect(value)
    if len(SAFE) >= _MOST_CLASSES:
        SAFE.clear()
    SAFE.add(cls)
    return value


@functools.lru_cache(_MOST_CLASSES)
def _protection(cls: type[Any]) -> Callable[[Any], Any] | None:
    """Return the function that protects the values of a class; None if they need none."""
    if cls is dict:
        return lambda value: {key: protected(part) for key, part in value.items()}
    if cls is list or cls is tuple:
        return lambda value: cls(map(protected, value))
    if issubclass(cls, tuple) and hasattr(cls, "_make"):
        return lambda value: cls._make(map(protected, value))
    # NumPy is no dependency. Its scalars have the flag as well, but no items to set.
    is_array = hasattr(cls, "setflags") and hasattr(cls, "__setitem__")
    return _view if is_array else None


def _view(array: Any) -> Any:
    if not array.flags.writeable:
        return array
    view = array.view()
    view.setflags(write=False)
    return view
