"""What requests ask for: which nodes a nested fetch names, and who gets what back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, cast

import attrs
import optree

from hookbus.errors import FetchTypeError

_NAMESPACE = "hookbus"

Split: TypeAlias = Callable[[Sequence[Any]], Any]
"""Takes the values of all merged fetches and returns one asker's own structure."""


@attrs.frozen
class Shape:
    """A fetch taken apart: equal for equal requests, and hashable.

    Attributes:
        leaves: the nodes and names, left to right (dict keys sorted).
        spec: how they nest.
    """

    leaves: tuple[Any, ...]
    spec: optree.PyTreeSpec


@attrs.frozen(eq=False)
class Merge:
    """The union of several askers' fetches.

    Attributes:
        leaves: each node or name once, in the order in which they were first asked for.
        askers: leaf to the parties that asked for it, in order.
        splits: one for each asker, in the order of the askers.
    """

    leaves: tuple[Any, ...]
    askers: dict[Any, dict[str, None]]
    splits: tuple[Split, ...]


def shape_of(fetches: Any) -> Hashable:
    """Take *fetches* apart: a name or node is its own shape, a nesting is a Shape.

    Raises:
        FetchTypeError: a leaf is neither a node nor a name.
    """
    if is_leaf(fetches):
        return fetches  # type: ignore[no-any-return]
    try:
        leaves, spec = optree.tree_flatten(fetches, none_is_leaf=True, namespace=_NAMESPACE)
    except RecursionError:
        raise FetchTypeError("a fetch is nested too deeply, or contains itself") from None
    records = {type(leaf) for leaf in leaves if not is_leaf(leaf)}
    if not records:
        return Shape(tuple(leaves), spec)
    for record in records:
        _register(record, fetches)
    return shape_of(fetches)


def is_leaf(fetch: Any) -> bool:
    """Say whether *fetch* names one node: a str, or an object that says it is a node."""
    return isinstance(fetch, str) or getattr(fetch, "is_node", False) is True


def leaves_of(shape: Hashable) -> tuple[Any, ...]:
    """Return the nodes and names of a shape."""
    return shape.leaves if isinstance(shape, Shape) else (shape,)


def merge(requests: Iterable[tuple[str, Hashable]]) -> Merge:
    """Unite the shapes that parties ask for; each leaf is to be evaluated once.

    >>> both = merge([("caller", "loss"), ("log", shape_of({"l": "loss", "a": "acc"}))])
    >>> both.leaves
    ('loss', 'acc')
    >>> [split([0.5, 0.9]) for split in both.splits]
    [0.5, {'l': 0.5, 'a': 0.9}]
    """
    places: dict[Any, int] = {}
    askers: dict[Any, dict[str, None]] = {}
    splits = []
    for party, shape in requests:
        for leaf in leaves_of(shape):
            places.setdefault(leaf, len(places))
            askers.setdefault(leaf, {})[party] = None
        splits.append(_split(shape, places))
    return Merge(tuple(places), askers, tuple(splits))


def _split(shape: Hashable, places: dict[Any, int]) -> Split:
    if not isinstance(shape, Shape):
        return itemgetter(places[shape])
    own = tuple(places[leaf] for leaf in shape.leaves)
    unflatten = shape.spec.unflatten
    return lambda values: unflatten([values[place] for place in own])


def _register(record: type[Any], fetches: Any) -> None:
    """Teach optree an attrs class, so that its instances can be fetched as records."""
    if not attrs.has(record):
        raise FetchTypeError(
            f"cannot fetch {fetches!r}: a fetch is a node, a node's name, or a list, "
            f"tuple, dict or attrs class of these, and {record.__name__} is none"
        )
    names = tuple(field.name for field in attrs.fields(record))

    def flatten(instance: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(instance, name) for name in names), None

    def unflatten(_: Hashable, values: Iterable[Any]) -> Any:
        # Not through __init__: its converters and validators are for names and nodes,
        # and these are values.
        instance = record.__new__(record)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(instance, name, value)
        return instance

    with contextlib.suppress(ValueError):  # another thread was here first
        optree.register_pytree_node(
            cast("Any", record), flatten, unflatten, namespace=_NAMESPACE
        )
