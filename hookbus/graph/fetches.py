"""What requests ask for and feed: nested fetches taken apart, feeds united."""

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
"""Builds a container; picks what belongs into it."""

_OTHER_DICTS = (OrderedDict, defaultdict)


class Structure(tuple[Any, ...]):
    """A nesting taken apart: equal for equal requests, and hashable.

    Holds the class of a container, what else tells two of that class apart (the keys of
    a dict), and then the shape of each part, left to right (dict keys sorted). It is a
    tuple because it is made, hashed and compared in each run that fetches a nesting.

    Attributes:
        order: the keys of a dict as they were given; plays no part in comparisons.
    """

    order: tuple[Any, ...]


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


class _NoFetchError(Exception):
    """Names the class of something that is neither a fetch nor a container of fetches."""


def structure_of(fetches: Any) -> Hashable:
    """Take *fetches* apart: a name or node is its own shape, a nesting is a Shape.

    Raises:
        FetchTypeError: a leaf is neither a node nor a name, or the nesting has no end.
    """
    try:
        return _shape(fetches)
    except RecursionError:
        raise FetchTypeError("a fetch is nested too deeply, or contains itself") from None
    except _NoFetchError as error:
        raise FetchTypeError(
            f"cannot fetch {fetches!r}: a fetch is a node, a node's name, or a list, "
            f"tuple, dict or attrs class of these, and {error} is none"
        ) from None


def is_leaf(fetch: Any) -> bool:
    """Say whether *fetch* names one node: a str, or an object that says it is a node."""
    return isinstance(fetch, str) or getattr(fetch, "is_node", False) is True


def leaves_of(shape: Hashable) -> tuple[Any, ...]:
    """Return the nodes and names of a shape."""
    leaves = []
    waiting = [shape]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Structure):
            waiting += part[:1:-1]  # its parts, the first of them on top
        else:
            leaves.append(part)
    return tuple(leaves)


def merge(requests: Iterable[tuple[str, Hashable]]) -> Merge:
    """Unite the shapes that parties ask for; each leaf is to be evaluated once.

    >>> both = merge([("caller", "loss"), ("log", structure_of({"l": "loss", "a": "acc"}))])
    >>> both.leaves
    ('loss', 'acc')
    >>> [split([0.5, 0.9]) for split in both.splits]
    [0.5, {'l': 0.5, 'a': 0.9}]
    """
    places: dict[Any, int] = {}
    askers: dict[Any, dict[str, None]] = {}
    shapes = []
    for party, shape in requests:
        shapes.append(shape)
        for leaf in leaves_of(shape):
            places.setdefault(leaf, len(places))
            askers.setdefault(leaf, {})[party] = None
    splits = tuple(_split(shape, places) for shape in shapes)
    return Merge(tuple(places), askers, splits)


def _shape(fetch: Any) -> Hashable:
    cls = type(fetch)
    if cls is dict or cls in _OTHER_DICTS:
        return _shape_of_dict(fetch)
    if cls is list or cls is tuple:
        parts, detail = fetch, None
    elif is_leaf(fetch):
        return fetch  # type: ignore[no-any-return]
    else:
        parts, detail = _taken_apart(fetch)
    return Structure(
        (cls, detail, *[p if p.__class__ is str else _shape(p) for p in parts])
    )


def _shape_of_dict(fetch: Any) -> Structure:
    cls = type(fetch)
    order = tuple(fetch)
    keys = order if cls is OrderedDict else _sorted(order)
    detail = (keys, fetch.default_factory) if cls is defaultdict else (keys,)
    parts = [p if (p := fetch[key]).__class__ is str else _shape(p) for key in keys]
    shape = Structure((cls, detail, *parts))
    shape.order = order
    return shape


def _sorted(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort keys; those of several types by type, and those without an order not at all."""
    try:
        return _sorted_alike(keys)
    except TypeError:
        pass
    try:
        return tuple(sorted(keys, key=lambda key: (type(key).__qualname__, key)))
    except TypeError:
        return keys


@lru_cache  # for the same keys come in every run
def _sorted_alike(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(keys))


def _taken_apart(fetch: Any) -> tuple[Iterable[Any], Any]:
    """Return the parts of a rarer container, and what else tells it from its like."""
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


def _split(shape: Hashable, places: dict[Any, int]) -> Split:
    """Compile the split of one asker; *places* tells where each leaf's value lies."""
    if not isinstance(shape, Structure):
        return itemgetter(places[shape])
    stages = _stages(shape, places)
    if len(stages) == 1:
        ((build, pick),) = stages
        return lambda values: build(pick(values))

    def split(values: Sequence[Any]) -> Any:
        made = [*values]
        for build, pick in stages:
            made.append(build(pick(made)))
        return made[-1]

    return split


def _stages(shape: Structure, places: dict[Any, int]) -> list[Stage]:
    """Return what builds a structure, inner containers first.

    Each is put behind the values, where the one around it picks it up. So nothing here
    calls itself: what shape_of could take apart can also be built, however deep it is.
    """
    containers = [shape]
    for container in containers:  # it grows by what is found inside
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
    """Return what picks the values at *places*, in a sequence even where it is one."""
    if len(places) > 1:
        return itemgetter(*places)
    start = places[0] if places else 0
    return itemgetter(slice(start, start + len(places)))


def _builder(shape: Structure) -> tuple[Split, Sequence[Hashable]]:
    """Return what makes a container of its parts, and their shapes in its own order."""
    cls, detail, *parts = shape
    if cls is list or cls is tuple:
        return cls, parts
    if cls is deque:
        return lambda values: deque(values, detail), parts
    if issubclass(cls, dict):
        return _dict_builder(shape)
    if _is_namedtuple(cls):
        return lambda values: cls(*values), parts
    return _record_builder(cls), parts


def _dict_builder(shape: Structure) -> tuple[Split, Sequence[Hashable]]:
    cls, (keys, *factory), *parts = shape
    order = shape.order
    by_key = dict(zip(keys, parts, strict=True))
    ordered = [by_key[key] for key in order]
    make = partial(cls, *factory)
    # The lengths are equal; to have that checked would take as long as all the rest.
    return lambda values: make(zip(order, values)), ordered  # noqa: B905


def _record_builder(record: Any) -> Split:
    names = tuple(field.name for field in attrs.fields(record))

    def build(values: Iterable[Any]) -> Any:
        # Not through __init__: its converters and validators are for names and nodes,
        # and these are values.
        instance = record.__new__(record)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(instance, name, value)
        return instance

    return build


def unite_feeds(
    parties: Iterable[tuple[str, Mapping[Node | str, Any] | None]],
    resolve: Callable[[Node | str, str], Node],
) -> dict[str, Any]:
    """Return all feeds by the name of the node.

    Args:
        parties: who feeds what, by node or name.
        resolve: finds the node, for the one who is named.

    Raises:
        FeedConflictError: one node is fed twice; both parties are named.
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
