"""Notices values that the loop replaces, and does not put back where they are saved.

An array of JAX cannot change. If none in a tracked object was replaced between two saves,
the loop may compute new ones and keep them in variables of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from hookbus.library import library_of
from hookbus.logs import log
from hookbus.tracking.leaves import leaves


class WriteBacks:
    """Compares the arrays of two saves, for each object until one of its arrays changes."""

    def __init__(self) -> None:
        self._step = 0
        self._before: dict[str, list[weakref.ref[Any]]] = {}
        self._known: set[str] = set()

    def note(self, states: Mapping[str, Any], step: int) -> None:
        """Compare the states of a save with those of the save before."""
        if step == self._step and self._before:
            return
        for name in states.keys() - self._known:
            arrays = [value for _, value in leaves(name, states[name]) if _is_fixed(value)]
            before = self._before.get(name)
            self._before[name] = [weakref.ref(array) for array in arrays]
            if not arrays or before is None:
                continue
            self._known.add(name)
            both = zip(before, arrays, strict=False)
            if len(before) == len(arrays) and all(ref() is array for ref, array in both):
                log.warning(
                    "no array of a tracked object was replaced",
                    name=name,
                    steps=step - self._step,
                    why="the checkpoint holds what the program has put there, and nothing "
                    "that it computes in variables of its own",
                    hint=f"held = session.hold({name}={name}), then held.{name} = ...; an "
                    "object that stays the same need not be tracked",
                )
        self._step = step


def _is_fixed(value: Any) -> bool:
    """Return whether a value is an immutable array that each step replaces.

    A key may serve for a whole epoch.
    """
    library = library_of(value)
    if library is None or not library.is_immutable(value):
        return False
    return str(value.dtype).lstrip("b").startswith(("float", "complex"))
