"""Compares the forms of arrays with those that they had when they were tracked.

A step may change the dtype or the shape of an array, say the moments of an optimizer that
begin in half precision. A program that starts again has the first form, and has to accept
the later one in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from hookbus.tracked.containers import is_array
from hookbus.tracked.leaves import changed, leaves, path_to

Forms: TypeAlias = Mapping[str, tuple[list[int], str]]
"""The shape and the dtype of arrays, by name."""


def forms_of(name: str, state: Any) -> Forms:
    """Return the forms of all arrays in a state."""
    return {path: _form(each) for path, each in leaves(name, state) if is_array(each)}


def changed_forms(before: Forms, now: Forms) -> Forms:
    """Return the first forms of the arrays that have another one now."""
    return {name: form for name, form in before.items() if now.get(name, form) != form}


def with_first_forms(name: str, state: Any, forms: Forms) -> Any:
    """Return a state to compare with that of a program that starts.

    Its arrays that have changed their form are replaced by descriptions of the first one.
    """
    writes = []
    for inside, (shape, dtype) in forms.items():
        path = path_to(state, inside[len(name) :])
        if path is not None:
            writes.append((path, _FirstForm(tuple(shape), dtype)))
    return changed(state, writes)


@attrs.frozen(eq=False)
class _FirstForm:
    """Stands for an array in a comparison of forms."""

    shape: tuple[int, ...]
    dtype: str

    def __setitem__(self, key: Any, value: Any) -> None:  # as arrays have it
        raise TypeError("only the form of this array is known")


def _form(array: Any) -> tuple[list[int], str]:
    return [*map(int, array.shape)], str(array.dtype)
