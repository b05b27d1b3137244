"""Takes pytrees apart, one level at a time, and puts them together.

The objects of flax.nnx are pytrees as well, but they change in place: a module stays the
same object, and its variables get new values. A variable counts as its value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from hookbus import UsageError


def parts_of(value: Any) -> dict[str, Any] | None:
    """Return the parts of a node by name; None for a leaf, and for what is no pytree.

    The functions in a module of equinox are left out: each program makes them anew.

    Raises:
        UsageError: two parts have one name.
    """
    if jax.tree_util.all_leaves([value]):
        return None
    parts: dict[str, Any] = {}
    for key, part in _children(value):
        name = _name_of(key)
        if name in parts:
            raise UsageError(
                f"a {type(value).__name__} has two parts named {name!r}: {[*parts]}; a "
                "checkpoint names each part, so give them other keys"
            )
        parts[name] = _content(part)
    if _changes_in_place(value):
        return {name: part for name, part in parts.items() if not _is_note(part)}
    if _is_of(value, "equinox"):
        return {name: part for name, part in parts.items() if not _is_function(part)}
    return parts


def put_together(value: Any, parts: Mapping[str, Any]) -> Any:
    """Return a node like *value* with other parts; those that are not given stay.

    An object of flax.nnx gets the parts itself.
    """
    if _changes_in_place(value):
        for key, part in _children(value):
            if _name_of(key) in parts:
                _put(value, key, part, parts[_name_of(key)])
        return value
    every = [_like(part, parts.get(_name_of(key), part)) for key, part in _children(value)]
    tree = jax.tree.structure(value, is_leaf=lambda part: part is not value)
    return tree.unflatten(every)


def variables_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables of flax.nnx in a tree, each with its name."""
    if _is_variable(value):
        yield name, value
    elif not jax.tree_util.all_leaves([value]):
        for key, part in _children(value):
            yield from variables_in(f"{name}.{_name_of(key)}", part)


def _children(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a node, each with its key."""
    found, _ = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda part: part is not value
    )
    return [(path[0], part) for path, part in found]


def _is_note(part: Any) -> bool:
    """Return whether flax.nnx keeps its own notes there, without any array."""
    return _is_of(part, "flax") and not jax.tree.leaves(part)


def _name_of(key: Any) -> str:
    if isinstance(key, GetAttrKey):
        return str(key.name)
    if isinstance(key, DictKey | FlattenedIndexKey):
        return str(key.key)
    return str(key.idx if isinstance(key, SequenceKey) else key)


def _content(part: Any) -> Any:
    """Return a part with the values of its variables in their place."""
    if not any(map(_is_variable, _leaves(part))):
        return part
    return jax.tree.map(
        lambda each: each.get_raw_value() if _is_variable(each) else each,
        part,
        is_leaf=_is_whole,
    )


def _like(old: Any, new: Any) -> Any:
    """Return a part with variables where the old one has them."""
    if not _is_variable(old):
        return new
    return new if _is_variable(new) else old.replace(new)


def _put(value: Any, key: Any, old: Any, new: Any) -> None:
    """Put a part into an object of flax.nnx."""
    if any(map(_is_variable, _leaves(old))):
        places, tree = jax.tree.flatten(old, is_leaf=_is_whole)
        for place, each in zip(places, tree.flatten_up_to(new), strict=True):
            if _is_variable(place):
                place.set_raw_value(each)
    elif new is not old:
        if isinstance(key, GetAttrKey):
            setattr(value, key.name, new)
        else:
            value[key.idx if isinstance(key, SequenceKey) else key.key] = new


def _leaves(part: Any) -> list[Any]:
    return [*jax.tree.leaves(part, is_leaf=_is_whole)]


def _is_whole(value: Any) -> bool:
    """Return whether an object of flax.nnx is not to be taken apart with others."""
    return _is_variable(value) or _changes_in_place(value)


def _changes_in_place(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree)


def _is_variable(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Variable)


def _is_of(value: Any, library: str) -> bool:
    """Return whether a class of a library is among those of a value."""
    return any(base.__module__.partition(".")[0] == library for base in type(value).__mro__)


def _is_function(part: Any) -> bool:
    return callable(part) and jax.tree_util.all_leaves([part])
