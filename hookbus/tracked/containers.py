"""Takes containers apart and puts them together, also those of libraries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus.library.lookup import libraries

PLAIN = (type(None), bool, int, float, complex, str, bytes)


def take_apart(value: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a container by key, field or index; None if it has no parts.

    >>> take_apart((1.5, "a"))
    {0: 1.5, 1: 'a'}
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple) and is_named(value):
        named: Any = value
        fields: Mapping[str, Any] = named._asdict()
        return fields
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    if isinstance(value, PLAIN) or is_array(value):
        return None
    found = (library.parts(value) for library in libraries().values())
    return next((parts for parts in found if parts is not None), None)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the values in a tree that have no parts."""
    parts = take_apart(value)
    if parts is None:
        yield value
    else:
        for part in parts.values():
            yield from leaves_of(part)


def put_together(value: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a container like *value*, which cannot be changed, with other parts."""
    if isinstance(value, tuple):
        kind: Any = type(value)
        return kind._make(parts.values()) if is_named(value) else tuple(parts.values())
    for library in libraries().values():
        if library.parts(value) is not None:
            return library.put_together(value, parts)
    raise AssertionError("only what has been taken apart is put together")


def is_fixed(value: Any) -> bool:
    """Return whether the fields of a container are those of its class.

    Args:
        value: a container, which :func:`take_apart` takes apart.
    """
    if isinstance(value, tuple):
        return is_named(value)
    return not isinstance(value, dict | list | deque)


def is_named(value: tuple[Any, ...]) -> bool:
    """Return whether a tuple is a named one."""
    return hasattr(value, "_make")


def is_array(value: Any) -> bool:
    """Return whether *value* is an array of any library, not a scalar or a class."""
    # Of the class: some containers answer any name.
    return all(hasattr(type(value), part) for part in ("dtype", "shape", "__setitem__"))


def is_writable(array: Any) -> bool:
    """Return whether the elements of an array can be changed through NumPy's protocol."""
    return bool(getattr(getattr(array, "flags", None), "writeable", False))
