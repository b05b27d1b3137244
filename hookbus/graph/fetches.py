"""Flattens nested fetches, merges those of several askers, and unites their feeds."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import attrs

from hookbus.errors import FeedConflictError, FetchTypeError, GraphError, spelled
from hookbus.graph.node import Node, plain_name

Leaf: TypeAlias = Callable[[Any], Node | None]
"""Takes an object of a backend and returns the node that it stands for, if it does."""

Split: TypeAlias = Callable[[Sequence[Any]], Any]
"""Takes the values of all merged fetches and returns one asker's own structure."""

_OTHER_DICTS = (OrderedDict, defaultdict)

MISSING: Any = object()
"""The value of a fetch that does not exist in a run, for hooks that go without it."""


class Structure(tuple[Any, ...]):
    """The structure of a nesting: hashable, and equal for equal requests.

    Holds the class of a container, then the features that distinguish two of that class
    (the sorted keys of a dict), then the structure of each part. It is a tuple because
    every run that fetches a nesting makes, hashes and compares one.

    Attributes:
        order: the keys of a dict as they were given; comparisons ignore it.
    """

    order: tuple[Any, ...] | None


@attrs.frozen(eq=False)
class Merge:
    """The union of several askers' fetches.

    Attributes:
        leaves: each node or name once, in the order of the first request for it.
        askers: leaf to the parties that requested it, in order.
        splits: one for each asker, in the order of the askers.
    """

    leaves: tuple[Any, ...]
    askers: dict[Any, dict[str, None]]
    splits: tuple[Split, ...]


class _NoFetchError(Exception):
    """Has the class name of an object that is neither a fetch nor a container of them."""


def no_leaf(_: Any) -> Node | None:
    """Know no object of a backend."""
    return None


def structure_of(fetches: Any, leaf: Leaf = no_leaf) -> Hashable:
    """Take *fetches* apart: a name or node stands for itself, a nesting is a Structure.

    Args:
        fetches: a node, a name, or any nesting of them.
        leaf: returns the node of any other object, as :meth:`Graph.leaf` does.

    Raises:
        FetchTypeError: a leaf is neither a node nor a name, or the nesting has no end.
    """
    try:
        return _structure(fetches, leaf)
    except RecursionError:
        raise FetchTypeError("a fetch is nested too deeply, or contains itself") from None
    except _NoFetchError as error:
        raise FetchTypeError(
            f"cannot fetch {spelled(fetches)}: {error} is not a fetch; a fetch is a node, "
            "a node's name, or a list, tuple, dict or attrs class of these"
        ) from None
    except GraphError:  # a leaf of another graph
        raise
    except Exception as error:  # the user's own code, like a property of an attrs class
        raise FetchTypeError(
            f"cannot fetch {spelled(fetches)}: reading its parts raised {error!r}"
        ) from error


def is_leaf(fetch: Any) -> bool:
    """Return whether *fetch* is a name or a node, an object whose ``is_node`` is True."""
    return isinstance(fetch, str) or getattr(fetch, "is_node", False) is True


def leaves_of(structure: Hashable) -> tuple[Any, ...]:
    """Return the nodes and names of a structure."""
    leaves = []
    waiting = [structure]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Structure):
            waiting += part[:1:-1]  # its parts, the first one on top
        else:
            leaves.append(part)
    return tuple(leaves)


def with_dicts(structure: Hashable, names: Mapping[Any, Sequence[str]]) -> Hashable:
    """Return a structure with a dict, name to value, in place of some of its leaves.

    Args:
        structure: the structure.
        names: the keys of the dict for each leaf to replace, which are also its leaves.
    """
    if not isinstance(structure, Structure):
        if structure not in names:
            return structure
        return _structure({name: name for name in names[structure]}, no_leaf)
    parts = [with_dicts(part, names) for part in structure[2:]]
    changed = Structure((*structure[:2], *parts))
    changed.order = structure.order
    return changed


def merge(
    requests: Iterable[tuple[str, Hashable]], start: int = 0, skips: bool = False
) -> Merge:
    """Merge the structures that parties request, so that each leaf is evaluated once.

    Args:
        requests: each party's name and its structure.
        start: the place of the first leaf's value among the values that are split.
        skips: whether values may be MISSING: a dict loses such a key, and None takes the
            place of such a value elsewhere.

    >>> both = merge([("caller", "loss"), ("log", structure_of({"l": "loss", "a": "acc"}))])
    >>> both.leaves
    ('loss', 'acc')
    >>> [split([0.5, 0.9]) for split in both.splits]
    [0.5, {'l': 0.5, 'a': 0.9}]
    """
    places: dict[Any, int] = {}
    askers: dict[Any, dict[str, None]] = {}
    structures = []
    for party, structure in requests:
        structures.append(structure)
        for leaf in leaves_of(structure):
            places.setdefault(leaf, start + len(places))
            askers.setdefault(leaf, {})[party] = None
    count = start + len(places)
    splits = tuple(_split(structure, places, count, skips) for structure in structures)
    return Merge(tuple(places), askers, splits)


def _structure(fetch: Any, leaf: Leaf) -> Hashable:
    cls = fetch.__class__
    order = None
    if cls is list or cls is tuple:
        parts, detail = fetch, None
    elif cls is dict or cls in _OTHER_DICTS:
        order = tuple(fetch)
        try:
            keys = order if cls is OrderedDict else tuple(sorted(order))
        except TypeError:
            keys = _sorted_by_type(order)
        detail = (keys, fetch.default_factory) if cls is defaultdict else (keys,)
        parts = [fetch[key] for key in keys]
    elif isinstance(fetch, str):
        return plain_name(fetch)
    elif is_leaf(fetch):
        return fetch  # type: ignore[no-any-return]
    else:
        native = leaf(fetch)
        if native is not None:
            return native
        parts, detail = _parts_of(fetch)
    structure = Structure(
        (cls, detail, *[p if p.__class__ is str else _structure(p, leaf) for p in parts])
    )
    structure.order = order
    return structure


def _sorted_by_type(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort keys of several types; leave keys without an order as they are."""
    with contextlib.suppress(TypeError):
        return tuple(sorted(keys, key=lambda key: (type(key).__qualname__, key)))
    return keys


def _parts_of(fetch: Any) -> tuple[Iterable[Any], Any]:
    """Return the parts of a rarer container, and its other distinguishing features."""
    cls = type(fetch)
    if _is_namedtuple(cls):
        return fetch, None
    if cls is deque:
        return fetch, fetch.maxlen
    if attrs.has(cls):
        return [getattr(fetch, field.name) for field in attrs.fields(cls)], None
    raise _NoFetchError(cls.__name__)


def _is_namedtuple(cls: type[Any]) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_make")


def _split(shape: Hashable, places: dict[Any, int], count: int, skips: bool) -> Split:
    """Compile the split of one asker; *places* holds the place of each leaf's value.

    All of them are among the first *count* values. Inner containers are built first and put
    behind these, where the outer ones pick them up. Nothing here is recursive, so a
    structure can be built again however deep it is.
    """
    if not isinstance(shape, Structure):
        pick_one = itemgetter(places[shape])
        return (lambda values: _or_none(pick_one(values))) if skips else pick_one
    containers = [shape]
    for container in containers:  # it grows by the containers found inside
        containers += [part for part in container[2:] if isinstance(part, Structure)]
    containers.reverse()
    made = {id(container): count + n for n, container in enumerate(containers)}
    stages = []
    for container in containers:
        parts = container[2:]
        if container.order is not None:
            by_key = dict(zip(container[1][0], parts, strict=True))
            parts = tuple(by_key[key] for key in container.order)
        found = [made[id(p)] if isinstance(p, Structure) else places[p] for p in parts]
        pick = picker(found)
        stages.append(_skipping(container, pick) if skips else _builder(container, pick))
    if len(stages) == 1:
        return stages[0]

    def split(values: Sequence[Any]) -> Any:
        built = [*values[:count]]
        for build in stages:
            built.append(build(built))
        return built[-1]

    return split


def picker(places: Sequence[int]) -> Split:
    """Return a function that picks the values at *places*; always as a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    start = places[0] if places else 0
    return itemgetter(slice(start, start + len(places)))


def _skipping(shape: Structure, pick: Split) -> Split:
    """Return a function that rebuilds a container without the values that are MISSING."""
    cls, detail, *_ = shape
    if not issubclass(cls, dict):
        return _builder(shape, lambda values: [*map(_or_none, pick(values))])
    make, keys = partial(cls, *detail[1:]), shape.order or ()

    def build(values: Sequence[Any]) -> Any:
        parts = zip(keys, pick(values), strict=True)
        return make((key, part) for key, part in parts if part is not MISSING)

    return build


def _or_none(value: Any) -> Any:
    return None if value is MISSING else value


def _builder(shape: Structure, pick: Split) -> Split:
    """Return a function that picks the parts of a container and rebuilds it."""
    cls, detail, *_ = shape
    if cls is list or cls is tuple:
        return lambda values: cls(pick(values))
    if cls is deque:
        return lambda values: deque(pick(values), detail)
    if issubclass(cls, dict):
        make, keys = partial(cls, *detail[1:]), shape.order or ()
        # The lengths are equal; checking that would take as long as all the rest.
        return lambda values: make(zip(keys, pick(values)))  # noqa: B905
    if _is_namedtuple(cls):
        return lambda values: cls(*pick(values))
    names = tuple(field.name for field in attrs.fields(cls))

    def build(values: Sequence[Any]) -> Any:
        # Not through __init__: its converters and validators are for names and nodes,
        # and these are values.
        instance = cls.__new__(cls)
        for name, value in zip(names, pick(values), strict=True):
            object.__setattr__(instance, name, value)
        return instance

    return build


def unite_feeds(
    parties: Iterable[tuple[str, Mapping[Node | str, Any] | None]],
    resolve: Callable[[Node | str, str], Node],
    blame: Callable[[BaseException, str], None] | None = None,
) -> dict[str, Any]:
    """Return the feeds of all parties by the name of the node.

    Args:
        parties: each party's name and its feeds, by node or name.
        resolve: finds a node for the party that it is given.
        blame: takes an error and the party that caused it, before the error is raised.

    Raises:
        FeedConflictError: two parties feed one node.
        GraphError: feeds are not a mapping, or a name belongs to no node.
    """
    united: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for who, feeds in parties:
        try:
            if not isinstance(feeds, Mapping | None):
                raise GraphError(
                    f"the feeds of {who} are a {type(feeds).__name__}; give a dict from "
                    "node or name to value"
                )
            for key, value in (feeds or {}).items():
                name = resolve(key, f"the feeds of {who}").name
                if name in united:
                    raise FeedConflictError(
                        f"Same tensor is fed by two parties: {name!r} by {owners[name]} "
                        f"and {who}; leave it to one of them",
                        name,
                    )
                united[name], owners[name] = value, who
        except (GraphError, FeedConflictError) as error:
            if blame is not None:
                blame(error, who)
            raise
    return united
