"""Notices values that the loop replaces, and does not put back where they are saved.

An array of JAX cannot change. If none in a tracked object was replaced between two saves,
the loop may compute new ones and keep them in variables of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from hookbus.library.lookup import library_of
from hookbus.logs import log
from hookbus.tracked.leaves import leaves


class WriteBacks:
    """Compares the arrays of two saves, until one of them has changed.

    Objects that stay the same for long, like a target network, are nothing special next to
    others that change.
    """

    def __init__(self) -> None:
        self._step = 0
        self._before: list[weakref.ref[Any]] | None = None
        self._is_done = False

    def note(self, states: Mapping[str, Any], step: int) -> None:
        """Compare the states of a save with those of the save before."""
        before = self._before
        if self._is_done or (before is not None and step == self._step):
            return
        found = {
            name: [value for _, value in leaves(name, state) if _is_fixed(value)]
            for name, state in states.items()
        }
        arrays = [array for each in found.values() for array in each]
        self._before, self._is_done = [weakref.ref(array) for array in arrays], not arrays
        if before is not None:
            self._is_done = True
            both = zip(before, arrays, strict=False)
            if len(before) == len(arrays) and all(ref() is array for ref, array in both):
                _warn([name for name, each in found.items() if each], step - self._step)
        self._step = step


def _warn(names: Sequence[str], steps: int) -> None:
    log.warning(
        "no array of the tracked objects was replaced",
        names=", ".join(names),
        steps=steps,
        why="the checkpoint holds what the program has put there, and nothing that it "
        "computes in variables of its own",
        hint=f"held = session.hold({names[0]}={names[0]}), then held.{names[0]} = ...; "
        "do not track values that stay the same",
    )


def _is_fixed(value: Any) -> bool:
    """Return whether a value is an immutable array that each step replaces.

    A key may serve for a whole epoch.
    """
    library = library_of(value)
    if library is None or not library.is_immutable(value):
        return False
    return str(value.dtype).lstrip("b").startswith(("float", "complex"))
