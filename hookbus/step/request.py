"""Describes the request of one run, and finds runs with equal requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.errors import GraphError, PluginError, UsageError, blame
from hookbus.graph.fetches import Leaf, structure_of, unite_feeds
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.hooks.hook import SessionRunArgs
from hookbus.peers.reduction import Combination

CALLER = "the caller"

NO_FETCHES: list[Any] = []
"""The caller's fetches in a step of a custom loop. No code changes this list."""
NO_FEEDS: Mapping[str, Any] = {}
DEFAULT_OPTIONS = RunOptions()
NO_METADATA = RunMetadata()
"""The record of all runs that are not traced: a backend leaves it empty."""

_NAMES = frozenset({str, Node})
"""The types of fetches that are neither nested nor an object of a backend."""
_OTHER_FIELDS = tuple(f.name for f in attrs.fields(SessionRunArgs) if f.name != "fetches")
LITERALS = (str, int, bytes, bool, type(None))
"""The types of immutable values that can be written as source."""


class RunRequest(tuple[Any, ...]):
    """The fetches and fed nodes of one run. Runs with equal requests share a plan.

    The parts are the caller's fetches, a pair (hook, fetches) for each hook with fetches,
    the names of the fed nodes, and the hooks that go without values that do not exist. A
    tuple is fast: every run makes, hashes and compares a request.
    """

    __slots__ = ()
    fetches: property = property(itemgetter(0))
    hooks: property = property(itemgetter(1))
    feeds: property = property(itemgetter(2))
    skipping: property = property(itemgetter(3))


@attrs.frozen(eq=False)
class Unplanned:
    """The requests of one run, before they are planned.

    Attributes:
        request: the fetches and feeds of the caller and the hooks.
        answers: the requests of the hooks.
        options: the united options of the caller and the hooks.
        metadata: gets the backend's record of the run.
        reductions: the reduction of each hook that asks for values over all ranks, by the
            hook's name.
        is_plain: whether a comparison can find a repetition of the run. Then only the
            caller feeds, all hooks fetch plain nestings, and the run has no options,
            metadata or reductions.
    """

    request: RunRequest
    answers: Sequence[tuple[str, Any]]
    options: RunOptions = DEFAULT_OPTIONS
    metadata: RunMetadata = NO_METADATA
    reductions: Mapping[str, Combination] = attrs.field(factory=dict)
    is_plain: bool = False


def is_name(fetches: Any) -> bool:
    """Return whether fetches are one name or one node."""
    return fetches.__class__ in _NAMES


def key_of(fetches: Any, feeds: Mapping[Any, Any] | None) -> Any:
    """Return the key under which runs with these fetches and feeds find their trace.

    Runs with equal keys fetch and feed the same nodes. The key is None if the fetches are
    not a name, a node, or a list, tuple or dict of names and nodes. It is also None if the
    feeds are not a dict.

    The key of a feed can be any object of a backend, so keys of feeds are compared by
    identity. A trace keeps these objects alive.
    """
    cls = fetches.__class__
    key: Any
    if cls is str or cls is Node:
        key = fetches
    elif (cls is list or cls is tuple) and _NAMES.issuperset(map(type, fetches)):
        key = cls, *fetches
    elif cls is dict and _NAMES.issuperset(map(type, fetches.values())):
        key = cls, *fetches.items()
    else:
        return None
    if not feeds:
        return key
    return (key, *map(id, feeds)) if feeds.__class__ is dict else None


def collect_requests(
    own: SessionRunArgs,
    answers: Sequence[tuple[str, Any]],
    graph: Graph,
    options: RunOptions | None,
    metadata: RunMetadata | None,
    reductions: Mapping[str, Combination],
) -> tuple[Unplanned, Mapping[str, Any]]:
    """Unite the requests of the caller and the hooks; return them, and feeds by node.

    Args:
        own: the fetches and feeds of the caller.
        answers: the requests of the hooks, by name, in calling order.
        graph: resolves nodes.
        options: the caller's options for the run.
        metadata: gets the backend's record of the run.
        reductions: the reduction of each hook that asks for values over all ranks, by the
            hook's name.

    Raises:
        PluginError: an answer is not a request.
        GraphError: a fetch, or the key of a feed, is not in the graph.
        FeedConflictError: two parties feed one node.
        UsageError: a hook reduces values, and goes without those that do not exist.
    """
    fetches = own.fetches
    wanted = fetches if fetches.__class__ is str else structure_of(fetches, graph.leaf)
    hooks: list[tuple[str, Hashable]] = []
    skipping: tuple[str, ...] = ()
    plain, bare = True, options is None and metadata is None
    for name, request in answers:
        plain = plain and is_recordable(request)
        if request.__class__ is not SessionRunArgs:
            _check_request(name, request)
            bare = False
        elif request.feed_dict or request.options is not None:
            bare = False
        if getattr(request, "missing", "error") == "skip":
            _check_not_reduced(name, request)
            skipping += (name,)
        structure = _structure(name, request.fetches, graph.leaf)
        if structure is not None:
            hooks.append((name, structure))
    united = NO_FEEDS
    options = options or DEFAULT_OPTIONS
    if own.feed_dict or not bare:
        for _, request in answers:
            options = options.merge(request.options)
        parties = [(CALLER, own.feed_dict), *((name, r.feed_dict) for name, r in answers)]
        united = unite_feeds(parties, graph.resolve, blame_asker)
    request = RunRequest((wanted, tuple(hooks), tuple(united), skipping))
    metadata = metadata or RunMetadata()
    plain = plain and bare and not reductions
    return Unplanned(request, answers, options, metadata, reductions, plain), united


def _structure(name: str, fetches: Any, leaf: Leaf) -> Any:
    """Return the structure of a hook's fetches; None for no fetches."""
    if fetches is None or fetches.__class__ in _NAMES:
        return fetches
    try:
        return structure_of(fetches, leaf)
    except GraphError as error:
        blame_asker(error, name)
        raise


def is_recordable(request: Any) -> bool:
    """Return whether later requests of a hook can be compared with this one.

    Every field except the fetches must have a plain value. The check includes fields that
    SessionRunArgs may get one day.
    """
    if request.__class__ is not SessionRunArgs:
        return False
    if request.fetches is not None and not is_plain(request.fetches):
        return False
    return all(type(value) in LITERALS for _, value in other_fields(request))


def other_fields(request: SessionRunArgs) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a request but its fetches."""
    for name in _OTHER_FIELDS:
        yield name, getattr(request, name)


def is_plain(fetches: Any, levels: int = 3) -> bool:
    """Return whether fetches are names and nodes, or dicts, lists and tuples of these.

    Plain fetches that are equal have one structure.

    Args:
        fetches: the fetches.
        levels: the maximum depth of nested containers.
    """
    kind = fetches.__class__
    if kind in _NAMES:
        return True
    if not levels or kind not in (dict, list, tuple):
        return False
    parts = fetches.values() if kind is dict else fetches
    return all(is_plain(part, levels - 1) for part in parts)


def copy_of(fetches: Any) -> Any:
    """Return plain fetches with copies of all containers."""
    kind = fetches.__class__
    if kind is dict:
        return {key: copy_of(part) for key, part in fetches.items()}
    return kind(map(copy_of, fetches)) if kind in (list, tuple) else fetches


def blame_asker(error: BaseException, who: str) -> None:
    """Note on an error the hook whose request has failed."""
    if who != CALLER:
        blame(error, who, f"plugin {who!r} asked for it in before_run()")


def _check_not_reduced(name: str, request: Any) -> None:
    """Refuse a reduction of values that some processes may not have.

    Raises:
        UsageError: it is one.
    """
    if request.reduce == "none":
        return
    error = UsageError(
        f"hook {name!r} asks for missing='skip' and reduce={request.reduce!r}: all ranks "
        "must reduce the same values, so none of them can go without one; leave out one of "
        "the two"
    )
    blame_asker(error, name)
    raise error


def _check_request(name: str, request: Any) -> None:
    """Accept any object with the three attributes of a request, like TF.

    Raises:
        PluginError: the object lacks one of them.
    """
    if all(hasattr(request, part) for part in ("fetches", "feed_dict", "options")):
        return
    error = PluginError(
        f"plugin {name!r}: before_run() returned {request!r}; return "
        "SessionRunArgs(...) or None"
    )
    blame(error, name, f"raised because of plugin {name!r} in before_run()")
    raise error
