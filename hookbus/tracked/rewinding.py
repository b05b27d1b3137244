"""Takes the part of a state with which programs draw and count, and puts it back.

While a resumed program goes through its passes again, the code between them draws and
counts as it did. So the keys, counters and generators among what is tracked have to be as
they were then. The weights of a model, which are much larger, wait for the place of the
checkpoint.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Mapping
from typing import Any

from hookbus.library.lookup import library_of
from hookbus.tracked.containers import PLAIN, is_array
from hookbus.tracked.leaves import parts_of

_MOST_NUMBERS = 1024
"""A longer list or array is data: the state of a generator has up to 625 numbers."""
_FLOATS = ("f", "c")


def drawn_part(state: Any, *, counts: bool) -> Any:
    """Return the part of a state with which a program draws, as plain data.

    It has the keys and whole numbers in arrays, and with *counts* all numbers, strings and
    lists of these. None if there is no such part.
    """
    if counts and _is_countable(state):
        return {"whole": copy.deepcopy(state)}
    if is_array(state):
        return {"whole": _copied(state)} if _draws(state) else None
    found = {str(key): drawn_part(part, counts=counts) for key, part in parts_of(state)}
    found = {key: part for key, part in found.items() if part is not None}
    return {"parts": found} if found else None


def with_part(state: Any, part: Mapping[str, Any] | None, *, counts: bool = True) -> Any:
    """Return a state with a part that :func:`drawn_part` returned in place of its own.

    Without *counts* only the arrays of that part count.
    """
    if not part:
        return state
    if "whole" in part:
        whole = part["whole"]
        return copy.deepcopy(whole) if counts or not _is_countable(whole) else state
    inside = part["parts"]
    both = {
        key: with_part(each, inside.get(str(key)), counts=counts)
        for key, each in parts_of(state)
    }
    if isinstance(state, Mapping):
        return both
    if isinstance(state, list | tuple):
        return [*both.values()] if type(state) is list else tuple(both.values())
    return state


_copies: dict[int, tuple[weakref.ref[Any], Any]] = {}
"""The copies of immutable arrays, by the ids of these, and the arrays while they live."""


def _copied(array: Any) -> Any:
    """Return a copy of an array, which stays when a step donates the memory of the array.

    An array that cannot change has one copy, so that two captured states with it are the
    same, and nobody has to wait for its elements to compare them.
    """
    library = library_of(array)
    if library is None or not library.is_immutable(array):
        return copy.deepcopy(array)
    known = _copies.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    key, made = id(array), copy.deepcopy(array)
    _copies[key] = weakref.ref(array, lambda _: _copies.pop(key, None)), made
    return made


def _is_countable(state: Any) -> bool:
    """Return whether a state has numbers and strings alone, and not very many."""
    if isinstance(state, list | tuple) and len(state) > _MOST_NUMBERS:
        return False
    if isinstance(state, dict | list | tuple):
        return all(_is_countable(part) for _, part in parts_of(state))
    return isinstance(state, PLAIN) or (hasattr(state, "dtype") and not is_array(state))


def _draws(array: Any) -> bool:
    """Return whether an array can be a key, a counter or the state of a generator."""
    library = library_of(array)
    if library is not None and not library.is_immutable(array):
        return False
    few = math.prod(array.shape) <= _MOST_NUMBERS
    return few and getattr(array.dtype, "kind", "V") not in _FLOATS
