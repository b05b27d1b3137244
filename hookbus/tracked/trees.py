"""Saves trees of containers as plain data, restores them, and compares their forms.

A dict, list or deque stays the same object when it is restored, and so does an array that
can be written. A container that cannot change, like a named tuple or a pytree of JAX, is
replaced in the container around it.
"""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from hookbus.checkpoint.codec import MOST_LEVELS
from hookbus.errors import UsageError
from hookbus.library.base import Faults
from hookbus.library.lookup import library_of
from hookbus.random_state import same
from hookbus.tracked.containers import (
    PLAIN,
    is_array,
    is_fixed,
    is_writable,
    put_together,
    take_apart,
)
from hookbus.tracked.layout import overlaps
from hookbus.tracked.leaves import parts_of

Outline: TypeAlias = "tuple[type, Mapping[Any, Outline]] | bool"
"""The classes of the containers in a tree, with their parts; whether a leaf is not None."""


def outline_of(value: Any) -> Outline:
    """Return the classes of the containers in a tree."""
    parts = take_apart(value)
    if parts is None:
        return value is not None
    return type(value), {key: outline_of(part) for key, part in parts.items()}


def plain(state: Any, name: str, outline: Outline | None, levels: int = MOST_LEVELS) -> Any:
    """Return a tree as dicts, lists and tuples, which any codec knows.

    Containers of which no part changes stay the same objects, and so do those that are too
    deep.

    Args:
        state: the tree.
        name: its name, for messages.
        outline: the containers that a program has when it starts; None for a part that it
            does not have by then.
        levels: how many levels it may have.

    Raises:
        UsageError: a named tuple, or a container of a library, is not in the outline, so
            that no program could restore it.
    """
    parts = take_apart(state) if levels else None
    if parts is None:
        return state
    known = outline[1] if isinstance(outline, tuple) else {}
    fixed = is_fixed(state)
    if fixed:
        _check_structure(state, parts, name, outline)
    made = {k: plain(v, f"{name}.{k}", known.get(k), levels - 1) for k, v in parts.items()}
    if fixed:
        return made
    if not any(map(operator.is_not, made.values(), parts.values())):
        return [*state] if isinstance(state, deque) else state
    if isinstance(state, dict):
        return made
    return tuple(made.values()) if isinstance(state, tuple) else [*made.values()]


def _check_structure(
    state: Any, parts: Mapping[Any, Any], name: str, outline: Outline | None
) -> None:
    """Check that a program that starts has the same container.

    Raises:
        UsageError: it has another one, or none.
    """
    fault = None
    if outline is None:
        fault = f"{name!r} is new, a {type(state).__name__}"
    elif not isinstance(outline, tuple) or outline[0] is not type(state):
        was = outline[0].__name__ if isinstance(outline, tuple) else "value without parts"
        fault = f"{name!r} is a {type(state).__name__}, and was a {was}"
    else:
        for key in {**outline[1], **parts}:
            is_here, was_here = key in parts, key in outline[1]
            if is_here and was_here:
                was_leaf = outline[1][key]
                if not isinstance(was_leaf, bool) or take_apart(parts[key]) is not None:
                    continue
                is_here, was_here = parts[key] is not None, was_leaf
            if is_here != was_here:
                fault = f"'{name}.{key}' is {'new' if is_here else 'gone'}"
                break
    if fault:
        raise UsageError(
            f"the structure of {name.partition('.')[0]!r} has changed since it was "
            f"tracked: {fault}. A program that starts again could not restore it: track it "
            "with all of its parts, and give a part that comes later a first value"
        )


def restored(here: Any, saved: Any, done: dict[int, Any] | None = None) -> Any:
    """Return *saved* as *here*: what can change stays the same object.

    Values that cannot be changed, like numbers, are replaced in the container around them.
    A container may be in several places, say that of the first weights and of a copy of
    them that a loop replaces later. If these places have other values in the checkpoint,
    the first one keeps it.

    Args:
        here: the tree.
        saved: its saved state.
        done: what the containers and arrays that have been restored got, by their ids.
    """
    done = {} if done is None else done
    if _can_change(here):
        if id(here) in done and not same(done[id(here)], saved):
            return made_like(here, saved)
        done[id(here)] = saved
    each = partial(restored, done=done)
    if is_array(here) and is_writable(here) and here.shape == getattr(saved, "shape", ()):
        here[...] = saved
        return here
    if isinstance(here, dict):
        here.update({k: each(here[k], v) if k in here else v for k, v in saved.items()})
        return here
    if isinstance(here, deque):
        here.clear()
        here.extend(saved)
        return here
    parts = take_apart(here)
    if parts is None:
        return _placed(here, saved)
    if is_fixed(here):
        return put_together(here, _by_field(parts, saved, each))
    return _restored_items(here, saved, each)


def _restored_items(here: Any, saved: Any, each: Any) -> Any:
    """Return the saved items in a list, or as a tuple."""
    if not isinstance(saved, list | tuple):
        return saved
    items = [*map(each, here, saved), *saved[len(here) :]]
    if isinstance(here, tuple):
        return tuple(items)
    here[:] = items
    return here


def _can_change(value: Any) -> bool:
    return is_writable(value) if is_array(value) else isinstance(value, dict | list | deque)


def made_like(like: Any, saved: Any) -> Any:
    """Return *saved* with the containers, and in the places, of *like*.

    Nothing in *like* changes but an object of a library that can only change in place.
    """
    parts = take_apart(like)
    if parts is None:
        own = copy.copy(saved) if is_array(saved) and is_writable(saved) else saved
        return _placed(like, own)
    if is_fixed(like):
        return put_together(like, _by_field(parts, saved, made_like))
    if isinstance(like, dict):
        both = {key: made_like(part, saved[key]) for key, part in parts.items()}
        return {**{key: saved[key] for key in saved}, **both}
    items = [*map(made_like, like, saved), *[*saved][len(like) :]]
    if isinstance(like, deque):
        return deque(items, like.maxlen)
    return tuple(items) if isinstance(like, tuple) else items


def placed(here: Any, saved: Any) -> Any:
    """Return a state whose values of libraries are where those of *here* are.

    No container is changed, and the classes of *saved* stay.
    """
    if not isinstance(saved, Mapping | list | tuple):
        return _placed(here, saved)
    known = dict(parts_of(here))
    parts = {key: placed(known.get(key), part) for key, part in parts_of(saved)}
    return parts if isinstance(saved, Mapping) else type(saved)(parts.values())


def _placed(here: Any, saved: Any) -> Any:
    library = library_of(here) or library_of(saved)
    return saved if library is None or here is None else library.placed(saved, here)


def _by_field(parts: Mapping[Any, Any], saved: Any, each: Any) -> dict[Any, Any]:
    """Return the fields of a container with their saved values.

    Older checkpoints have the values of a named tuple in their order.
    """
    if not isinstance(saved, Mapping):
        saved = dict(zip(parts, saved, strict=True))
    return {key: each(part, saved[key]) for key, part in parts.items()}


def faults_of(path: str, here: Any, saved: Any) -> Faults:
    """Yield why *saved* cannot be restored into *here*.

    Everything that is here must be in the checkpoint, with the same shape and dtype. A dict
    or list may have grown during the training.
    """
    parts = None if isinstance(here, deque) else take_apart(here)
    if parts is None:
        if is_array(here) and _form(here) != _form(saved):
            yield _differs(path, here, saved)
        return
    fixed = is_fixed(here)
    known = _saved_parts(here, saved, parts, fixed)
    if known is None:
        yield _differs(path, here, saved)
        return
    for key, value in parts.items():
        inside = f"{path}.{key}"
        if key not in known:
            if fixed or isinstance(here, dict) or not _is_plain(value):
                yield f"{inside!r} is not in the checkpoint"
        elif fixed and (value is None) != (known[key] is None):
            yield _differs(inside, value, known[key])
        else:
            yield from faults_of(inside, value, known[key])
    if fixed:
        for key in known.keys() - parts.keys():
            yield f"'{path}.{key}' is only in the checkpoint"


def faults_of_arrays(path: str, here: Any, saved: Any) -> Faults:
    """Yield the arrays of two states that differ in shape or dtype.

    The object knows about everything else. An array without elements may have grown.
    """
    if is_array(here):
        if is_array(saved) and 0 not in here.shape and _form(here) != _form(saved):
            yield _differs(path, here, saved)
        return
    known = dict(parts_of(saved))
    for key, value in parts_of(here):
        if key in known:
            yield from faults_of_arrays(f"{path}.{key}", value, known[key])


def _differs(path: str, here: Any, saved: Any) -> str:
    return f"{path!r} is {_form(here)} here and {_form(saved)} in the checkpoint"


def _saved_parts(
    here: Any, saved: Any, parts: Mapping[Any, Any], fixed: bool
) -> Mapping[Any, Any] | None:
    """Return the parts in the checkpoint by the keys of those here; None without any."""
    if isinstance(saved, Mapping):
        return saved if fixed or isinstance(here, dict) else None
    if isinstance(here, dict) or not isinstance(saved, list | tuple):
        return None
    if fixed and isinstance(here, tuple) and len(saved) == len(parts):
        return dict(zip(parts, saved, strict=True))
    return None if fixed else dict(enumerate(saved))


def check_trackable(
    name: str, thing: Any, path: str = "", inside: tuple[int, ...] = ()
) -> None:
    """Check that a checkpoint can hold everything in *thing*.

    Raises:
        UsageError: it cannot.
    """
    library = library_of(thing)
    why = None if library is None else library.why_not_saved(thing)
    if why is not None:
        raise UsageError(f"cannot track {name!r}: '{name}{path}' {why}")
    if is_array(thing):
        if is_writable(thing) and overlaps(thing.shape, thing.strides, thing.itemsize):
            raise UsageError(
                f"cannot track {name!r}: the elements of '{name}{path}' share memory, as "
                "those of broadcast_to() do, so that a state cannot be written into it: "
                "give a copy of the array"
            )
        return
    parts = take_apart(thing)
    if parts is None or id(thing) in inside:
        if not _is_plain(thing):
            raise untrackable(name, thing, path)
        return
    if len(inside) == MOST_LEVELS:
        raise UsageError(f"cannot track {name!r}: it has more than {MOST_LEVELS} levels")
    for key, value in parts.items():
        check_trackable(name, value, f"{path}.{key}", (*inside, id(thing)))


def untrackable(name: str, thing: Any, path: str = "") -> UsageError:
    """Return the error of a thing, or of its part at a path, that cannot be restored."""
    what = f"{name!r}: '{name}{path}'" if path else f"{name!r}, which"
    if isinstance(thing, dict | list):
        why = "contains itself"
    elif hasattr(getattr(thing, "flags", None), "writeable") and is_array(thing):
        why = "is a read-only array"
    elif isinstance(thing, type):
        why = f"is the class {thing.__name__}"
    else:
        why = f"is of type {type(thing).__name__}"
    return UsageError(
        f"cannot track {what} {why} and cannot be restored in place: give an array, a dict "
        "or list of arrays and numbers, an object with state_dict and load_state_dict, a "
        "NumPy Generator, or a pair of functions (get, set). A value that the loop "
        "replaces goes to session.hold()"
    )


def _is_plain(value: Any) -> bool:
    """Return whether *value* is a number, a string, or None: it has no parts."""
    if isinstance(value, PLAIN):
        return True
    return not isinstance(value, type) and hasattr(value, "dtype") and not is_array(value)


def _form(value: Any) -> str:
    if is_array(value):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}"
