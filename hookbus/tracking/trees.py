"""Restores trees of dicts, lists and tuples in place, and compares their forms."""

from __future__ import annotations

import operator
from typing import Any

from hookbus.checkpoint.codec import MOST_LEVELS
from hookbus.errors import UsageError
from hookbus.library import Faults, library_of
from hookbus.tracking.layout import overlaps
from hookbus.tracking.leaves import parts_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def restored_in_place(here: Any, saved: Any) -> Any:
    """Return *saved* as *here*, whose arrays, dicts and lists stay the same objects.

    Values that cannot be changed, like numbers, are replaced in their dict or list.
    """
    if is_array(here) and _is_writable(here):
        here[...] = saved
        return here
    if isinstance(here, dict):
        for key, value in saved.items():
            here[key] = restored_in_place(here[key], value) if key in here else value
        return here
    if isinstance(here, list | tuple) and isinstance(saved, list | tuple):
        both = map(restored_in_place, here, saved)
        items = [*both, *saved[len(here) :]]
        if isinstance(here, tuple):
            kind: Any = type(here)
            return kind._make(items) if _is_named(here) else tuple(items)
        here[:] = items
        return here
    library = library_of(saved)
    return saved if library is None else library.placed(saved, here)


def plain(state: Any, levels: int = MOST_LEVELS) -> Any:
    """Return a state with tuples in place of named ones, whose classes no codec knows.

    Parts without named tuples stay the same objects, and so do parts that are too deep.
    """
    if not isinstance(state, dict | list | tuple) or not levels:
        return state
    if isinstance(state, dict):
        parts = {key: plain(part, levels - 1) for key, part in state.items()}
        return parts if any(parts[key] is not state[key] for key in parts) else state
    items = [plain(part, levels - 1) for part in state]
    if _is_named(state):
        return tuple(items)
    if not any(map(operator.is_not, items, state)):
        return state
    return tuple(items) if isinstance(state, tuple) else items


def _is_named(part: Any) -> bool:
    return hasattr(part, "_make") and isinstance(part, tuple)


def faults_of(path: str, here: Any, saved: Any) -> Faults:
    """Yield why *saved* cannot be restored into *here*.

    Everything that is here must be in the checkpoint, with the same shape and dtype. A dict
    or list may have grown during the training.
    """
    if is_array(here):
        if _form(here) != _form(saved):
            yield f"{path!r} is {_form(here)} here and {_form(saved)} in the checkpoint"
    elif isinstance(here, dict | list | tuple):
        kinds = (dict,) if isinstance(here, dict) else (list, tuple)
        if not isinstance(saved, kinds):
            yield f"{path!r} is {_form(here)} here and {_form(saved)} in the checkpoint"
            return
        known = saved.keys() if isinstance(saved, dict) else range(len(saved))
        for key, value in parts_of(here):
            if key in known:
                yield from faults_of(f"{path}.{key}", value, saved[key])
            elif isinstance(here, dict) or not _is_plain(value):
                yield f"'{path}.{key}' is not in the checkpoint"


def check_trackable(
    name: str, thing: Any, path: str = "", inside: tuple[int, ...] = ()
) -> None:
    """Raise UsageError unless *thing* can be restored in place, with everything in it."""
    if is_array(thing):
        if not inside and not _is_writable(thing):
            raise untrackable(name, thing, path)
        if _is_writable(thing) and overlaps(thing.shape, thing.strides, thing.itemsize):
            raise UsageError(
                f"cannot track {name!r}: the elements of '{name}{path}' share memory, as "
                "those of broadcast_to() do, so that a state cannot be written into it: "
                "give a copy of the array"
            )
    elif isinstance(thing, dict | list | tuple) and id(thing) not in inside:
        if len(inside) == MOST_LEVELS:
            raise UsageError(
                f"cannot track {name!r}: it has more than {MOST_LEVELS} levels"
            )
        for key, value in parts_of(thing):
            check_trackable(name, value, f"{path}.{key}", (*inside, id(thing)))
    elif not inside or not _is_plain(thing):
        raise untrackable(name, thing, path)


def untrackable(name: str, thing: Any, path: str = "") -> UsageError:
    """Return the error of a thing, or of its part at a path, that cannot be restored."""
    what = f"{name!r}: '{name}{path}'" if path else f"{name!r}, which"
    if isinstance(thing, dict | list):
        why = "contains itself"
    elif hasattr(getattr(thing, "flags", None), "writeable") and is_array(thing):
        why = "is a read-only array"
    else:
        why = f"is of type {type(thing).__name__}"
    return UsageError(
        f"cannot track {what} {why} and cannot be restored in place: give an array, a dict "
        "or list of arrays and numbers, an object with state_dict and load_state_dict, a "
        "NumPy Generator, or a pair of functions (get, set)"
    )


def is_all_plain(value: Any) -> bool:
    """Return whether a dict or list holds numbers, strings and such, and no array."""
    if isinstance(value, dict | list | tuple):
        return all(is_all_plain(part) for _, part in parts_of(value))
    return isinstance(value, _PLAIN)


def is_array(value: Any) -> bool:
    """Return whether *value* is an array of any library, not a scalar or a class."""
    return all(hasattr(value, part) for part in ("dtype", "shape", "__setitem__"))


def _is_writable(array: Any) -> bool:
    return bool(getattr(getattr(array, "flags", None), "writeable", False))


def _is_plain(value: Any) -> bool:
    """Return whether *value* is a number, a string, or None: it has no parts."""
    return isinstance(value, _PLAIN) or (hasattr(value, "dtype") and not is_array(value))


def _form(value: Any) -> str:
    if is_array(value):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"a {type(value).__name__}"
