"""Odd values: what a program can pass where a name, a fetch or a state is expected."""

from __future__ import annotations

from typing import Any


class Untrue(str):
    """A name that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise OSError("compared")

    __hash__ = str.__hash__


class Unreadable:
    """An object of which nothing can be read, not even its text."""

    def __hash__(self) -> int:
        return hash("w")

    def __eq__(self, other: object) -> bool:
        raise OSError("compared")

    def __repr__(self) -> str:
        raise OSError("shown")

    @property
    def is_node(self) -> bool:
        raise OSError("read")


def nested(levels: int, inside: Any = 0) -> dict[str, Any]:
    """Return a dict in a dict in a dict, so many."""
    for _ in range(levels):
        inside = {"in": inside}
    return inside
