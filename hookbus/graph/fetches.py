"""Flattens nested fetches, merges those of several askers, and unites their feeds."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, TypeAlias

import attrs

from hookbus.errors import FeedConflictError, FetchTypeError, GraphError
from hookbus.graph.node import Node

Split: TypeAlias = Callable[[Sequence[Any]], Any]
"""Takes the values of all merged fetches and returns one asker's own structure."""

Stage: TypeAlias = tuple[Split, Split]
"""Builds a container, and picks the values that belong into it."""

_OTHER_DICTS = (OrderedDict, defaultdict)


class Structure(tuple[Any, ...]):
    """The structure of a nesting: hashable, and equal for equal requests.

    It holds the class of a container, a detail that distinguishes two containers of that
    class (the keys of a dict), and then the structure of each part, left to right (dict
    keys sorted). It is a tuple because each run that fetches a nesting makes, hashes and
    compares one.

    Attributes:
        order: the keys of a dict as they were given; comparisons ignore it.
    """

    order: tuple[Any, ...]


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


def structure_of(fetches: Any) -> Hashable:
    """Return the structure of *fetches*: a name or node is its own structure.

    Raises:
        FetchTypeError: a leaf is neither a node nor a name, or the nesting has no end.
    """
    try:
        return _structure(fetches)
    except RecursionError:
        raise FetchTypeError("a fetch is nested too deeply, or contains itself") from None
    except _NoFetchError as error:
        raise FetchTypeError(
            f"cannot fetch {fetches!r}: {error} is not a fetch; a fetch is a node, a "
            "node's name, or a list, tuple, dict or attrs class of these"
        ) from None


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


def merge(requests: Iterable[tuple[str, Hashable]]) -> Merge:
    """Merge the structures that parties request, so that each leaf is evaluated once.

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
            places.setdefault(leaf, len(places))
            askers.setdefault(leaf, {})[party] = None
    splits = tuple(_split(structure, places) for structure in structures)
    return Merge(tuple(places), askers, splits)


def _structure(fetch: Any) -> Hashable:
    cls = type(fetch)
    if cls is dict or cls in _OTHER_DICTS:
        return _structure_of_dict(fetch)
    if cls is list or cls is tuple:
        parts, detail = fetch, None
    elif is_leaf(fetch):
        return fetch  # type: ignore[no-any-return]
    else:
        parts, detail = _parts_of(fetch)
    return Structure(
        (cls, detail, *[p if p.__class__ is str else _structure(p) for p in parts])
    )


def _structure_of_dict(fetch: Any) -> Structure:
    cls = type(fetch)
    order = tuple(fetch)
    keys = order if cls is OrderedDict else _sorted(order)
    detail = (keys, fetch.default_factory) if cls is defaultdict else (keys,)
    parts = [p if (p := fetch[key]).__class__ is str else _structure(p) for key in keys]
    structure = Structure((cls, detail, *parts))
    structure.order = order
    return structure


def _sorted(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort keys: mixed types by type first; keys without an order keep theirs."""
    try:
        return _sorted_alike(keys)
    except TypeError:
        pass
    try:
        return tuple(sorted(keys, key=lambda key: (type(key).__qualname__, key)))
    except TypeError:
        return keys


@lru_cache  # every run has the same keys
def _sorted_alike(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(keys))


def _parts_of(fetch: Any) -> tuple[Iterable[Any], Any]:
    """Return the parts of a rarer container, and the detail for its structure."""
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


def _split(structure: Hashable, places: dict[Any, int]) -> Split:
    """Compile the split of one asker; *places* maps each leaf to its value's index."""
    if not isinstance(structure, Structure):
        return itemgetter(places[structure])
    stages = _stages(structure, places)
    if len(stages) == 1:
        ((build, pick),) = stages
        return lambda values: build(pick(values))

    def split(values: Sequence[Any]) -> Any:
        made = [*values]
        for build, pick in stages:
            made.append(build(pick(made)))
        return made[-1]

    return split


def _stages(structure: Structure, places: dict[Any, int]) -> list[Stage]:
    """Return the stages that build a structure, inner containers first.

    Each container is appended to the values, where the one around it picks it up. There is
    no recursion, so every depth that structure_of accepts can be built.
    """
    containers = [structure]
    for container in containers:  # it grows by the containers found inside
        containers += [part for part in container[2:] if isinstance(part, Structure)]
    containers.reverse()
    made = {id(container): len(places) + n for n, container in enumerate(containers)}
    stages = []
    for container in containers:
        build, parts = _builder(container)
        found = [made[id(p)] if isinstance(p, Structure) else places[p] for p in parts]
        stages.append((build, _picker(found)))
    return stages


def _picker(places: Sequence[int]) -> Split:
    """Return a function that picks the values at *places*, always as a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    start = places[0] if places else 0
    return itemgetter(slice(start, start + len(places)))


def _builder(structure: Structure) -> tuple[Split, Sequence[Hashable]]:
    """Return the builder of a container, and the structures of its parts in its order."""
    cls, detail, *parts = structure
    if cls is list or cls is tuple:
        return cls, parts
    if cls is deque:
        return lambda values: deque(values, detail), parts
    if issubclass(cls, dict):
        return _dict_builder(structure)
    if _is_namedtuple(cls):
        return lambda values: cls(*values), parts
    return _record_builder(cls), parts


def _dict_builder(structure: Structure) -> tuple[Split, Sequence[Hashable]]:
    cls, (keys, *factory), *parts = structure
    order = structure.order
    by_key = dict(zip(keys, parts, strict=True))
    ordered = [by_key[key] for key in order]
    make = partial(cls, *factory)
    # The lengths are equal; checking them would take as long as all the rest.
    return lambda values: make(zip(order, values)), ordered  # noqa: B905


def _record_builder(record: Any) -> Split:
    names = tuple(field.name for field in attrs.fields(record))

    def build(values: Iterable[Any]) -> Any:
        # Not through __init__: its converters and validators expect names and nodes, and
        # these are values.
        instance = record.__new__(record)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(instance, name, value)
        return instance

    return build


def unite_feeds(
    parties: Iterable[tuple[str, Mapping[Node | str, Any] | None]],
    resolve: Callable[[Node | str, str], Node],
) -> dict[str, Any]:
    """Return the feeds of all parties by the name of the node.

    Args:
        parties: the name of each party and its feeds, by node or name.
        resolve: returns the node of a feed for a named asker.

    Raises:
        FeedConflictError: two parties feed one node.
        GraphError: the feeds of a party are not a dict.
    """
    united: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for who, feeds in parties:
        if feeds is not None and not isinstance(feeds, Mapping):
            raise GraphError(
                f"the feeds of {who} are a {type(feeds).__name__}; give a dict from node "
                "or name to value"
            )
        for key, value in (feeds or {}).items():
            name = resolve(key, f"the feeds of {who}").name
            if name in united:
                raise FeedConflictError(
                    f"Same tensor is fed by two parties: {name!r} by {owners[name]} and "
                    f"{who}; leave it to one of them"
                )
            united[name] = value
            owners[name] = who
    return united
