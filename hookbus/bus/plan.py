"""Plans a run: unites what the caller and the hooks ask for, and blames who asked for it.

The fetches and feeds of all parties are a request. The plan of a request is made once and
serves every run with the same request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import attrs

from hookbus.backend.program import shared_in
from hookbus.backend.protocol import RunMetadata, RunOptions, Session
from hookbus.bus.costs import HookCosts
from hookbus.errors import (
    GraphError,
    NoValueYetError,
    PluginError,
    UnfedPlaceholderError,
    UsageError,
    WriteConflictError,
    blame,
)
from hookbus.graph.fetches import (
    Leaf,
    Merge,
    Split,
    leaves_of,
    merge,
    structure_of,
    unite_feeds,
)
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.traversal import needs
from hookbus.hooks.hook import SessionRunArgs
from hookbus.peers.agreement import Agreement
from hookbus.peers.protocol import Reduction
from hookbus.peers.reduction import Reduced, reduce_values

Missing = TypeVar("Missing", UnfedPlaceholderError, NoValueYetError)

CALLER = "the caller"
MOST_PLANS = 1024
"""How many different requests are kept with what was made for them."""
NAMES = frozenset({str, Node})
"""The types of fetches that are neither nested nor an object of a backend."""


class RunRequest(tuple[Any, ...]):
    """The fetches of one run; equal ones share a plan.

    It is a tuple because every run makes, hashes and compares one: the caller's fetches, a
    pair (hook, fetches) for each hook that has some, and the names of the fed nodes.
    """

    __slots__ = ()
    fetches = property(itemgetter(0))
    hooks = property(itemgetter(1))
    feeds = property(itemgetter(2))


@attrs.frozen(eq=False)
class RunPlan:
    """How to serve a request.

    Attributes:
        program: the backend's own plan.
        split: takes all values and returns the caller's structure; None in a custom loop.
        splits: the same for each hook with fetches, by name.
        places: the place among the values of each leaf that hooks fetch.
        execute: the backend's method.
    """

    program: Any
    split: Split | None
    splits: dict[str, Split]
    places: Mapping[Any, int]
    execute: Callable[..., Sequence[Any]]


@attrs.frozen(eq=False)
class Asked:
    """What a run does that is not prepared.

    Attributes:
        request: what the caller and the hooks ask for.
        answers: the requests of the hooks.
        options, metadata: how to run, and the backend's record of it.
        reductions: those of hooks that ask for values over all ranks, by name.
    """

    request: RunRequest
    answers: Sequence[tuple[str, Any]]
    options: RunOptions
    metadata: RunMetadata
    reductions: Mapping[str, Reduction] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Wanted:
    """What the hooks of a run fetch.

    Attributes:
        names: the names of the nodes.
        splits: takes the values of these nodes and returns a hook's own structure, for each
            hook with fetches, by its name.
        places: the place among the values of each leaf that hooks fetch.
    """

    names: list[str]
    splits: dict[str, Split]
    places: Mapping[Any, int]


class Planner:
    """Plans the runs of one backend session.

    Args:
        session: the backend session.
        costs: adds up the time of executions.
        is_everywhere: returns whether a hook takes part in all processes; None for a
            training of one process.
    """

    def __init__(
        self,
        session: Session,
        costs: HookCosts | None = None,
        is_everywhere: Callable[[str], bool] | None = None,
    ) -> None:
        self._session, self._costs = session, costs
        self._is_everywhere = is_everywhere
        self._takes_reports = session.graph.takes_reports
        self._plans: dict[Hashable, RunPlan] = {}
        self._wanted: dict[Hashable, Wanted] = {}

    def wanted(self, request: RunRequest) -> Wanted:
        """Return what the hooks of a run fetch.

        Raises:
            GraphError: the graph has no such node.
            UsageError: a hook cannot fetch a value in this process alone.
        """
        wanted = self._wanted.get(request)
        if wanted is None:
            self._check_shared(request)
            if len(self._wanted) >= MOST_PLANS:
                self._wanted.clear()
            merged = merge(request.hooks)
            names = [name for name, _ in request.hooks]
            splits = dict(zip(names, merged.splits, strict=True))
            places = {leaf: place for place, leaf in enumerate(merged.leaves)}
            wanted = Wanted(self._names_of(merged), splits, places)
            self._wanted[request] = wanted
        return wanted

    def plan(
        self, request: RunRequest, feeds: Mapping[str, Any], reported: tuple[str, ...] = ()
    ) -> RunPlan:
        """Return the plan of a request.

        Args:
            request: what the caller and the hooks ask for.
            feeds: the values of the fed nodes.
            reported: the names among them that a step of a custom loop reports.

        Raises:
            UnfedPlaceholderError: a needed placeholder is not fed.
            WriteConflictError: two ops of the run update one variable.
            GraphError: the graph has no such node.
            UsageError: a hook cannot fetch a value in this process alone.
        """
        key = (request, reported)
        return self._plans.get(key) or self._plan(key, frozenset(feeds).union(reported))

    def _plan(
        self, key: tuple[RunRequest, tuple[str, ...]], fed: frozenset[str]
    ) -> RunPlan:
        """Plan a request that is new, and keep the plan under a key."""
        request = key[0]
        self._check_shared(request)
        own = merge([(CALLER, request.fetches)])
        hooks = merge(request.hooks, len(own.leaves))
        fetches, host = self._names_of(own), self._names_of(hooks)
        try:
            program = self._session.compile(fetches, fed, host)
        except UnfedPlaceholderError as error:
            raise self.with_askers(error, request, fed) from None
        except WriteConflictError as error:
            self._blame_asker(error, request, fed)
            raise
        split = None if self._takes_reports else own.splits[0]
        names = [name for name, _ in request.hooks]
        splits = dict(zip(names, hooks.splits, strict=True))
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        start = len(own.leaves)
        places = {leaf: place for place, leaf in enumerate(hooks.leaves, start)}
        execute: Callable[..., Sequence[Any]] = self._session.execute
        if self._costs is not None:
            without_hooks = request.fetches, request.feeds, key[1]
            execute = self._costs.timed_run(execute, without_hooks, names)
        plan = self._plans[key] = RunPlan(program, split, splits, places, execute)
        return plan

    def _check_shared(self, request: RunRequest) -> None:
        """Check that no hook reads alone what all processes read together.

        The others would not take part, so this process would wait for them for ever.

        Raises:
            UsageError: a hook does.
        """
        if self._is_everywhere is None:
            return
        graph = self._session.graph
        for who, fetches in request.hooks:
            if self._is_everywhere(who):
                continue
            for leaf in leaves_of(fetches):
                name = shared_in(graph, graph.resolve(leaf, who))
                if name is not None:
                    raise UsageError(
                        f"hook {who!r} takes part on rank 0 only and fetches {name!r}, of "
                        "which each rank holds a part: all ranks must read it together. "
                        "Declare HookOptions(ranks='all'), or report the value from the "
                        "loop"
                    )

    def _names_of(self, merged: Merge) -> list[str]:
        """Return the name of each node that is fetched.

        Raises:
            GraphError: the graph has no such node.
        """
        names: list[str] = []
        for leaf in merged.leaves:
            askers = merged.askers[leaf]
            try:
                names.append(self._session.graph.resolve(leaf, ", ".join(askers)).name)
            except GraphError as error:
                _blame(error, next(iter(askers)))
                raise
        return names

    def _askers_of(self, request: RunRequest) -> dict[str, list[str]]:
        """Return who fetches each node, by its name."""
        merged = _merged(request)
        askers: dict[str, list[str]] = {}
        for name, leaf in zip(self._names_of(merged), merged.leaves, strict=True):
            askers.setdefault(name, []).extend(merged.askers[leaf])
        return askers

    def nodes_of(self, request: RunRequest) -> list[Node]:
        """Return the nodes that the caller and the hooks fetch."""
        return [*map(self._session.graph.resolve, self._names_of(_merged(request)))]

    def with_askers(
        self, error: Missing, request: RunRequest, fed: frozenset[str]
    ) -> Missing:
        """Add the fetch that needs the missing value, and the party that asked for it."""
        graph = self._session.graph
        for name, askers in self._askers_of(request).items():
            if needs(graph, graph.resolve(name), error.node, fed):
                first = askers[0]
                without = (
                    f"; without that hook it runs as kind='aux', or with -p no:{first}"
                )
                found = type(error)(
                    f"{error}. {name!r} is fetched by {', '.join(askers)}"
                    f"{'' if first == CALLER else without}",
                    error.node,
                )
                _blame(found, first)
                return found
        return error

    def _blame_asker(
        self, error: WriteConflictError, request: RunRequest, fed: frozenset[str]
    ) -> None:
        """Blame the first hook without whose fetches the run has no conflict."""
        askers_of = self._askers_of(request)
        for hook, _ in request.hooks:
            rest = [name for name, askers in askers_of.items() if {*askers} != {hook}]
            with contextlib.suppress(GraphError, WriteConflictError):
                self._session.compile(rest, fed)
                _blame(error, hook)
                return


def unite(
    feed_dict: Mapping[Node | str, Any] | None,
    asked: Sequence[tuple[str, Any]],
    options: RunOptions,
    graph: Graph,
) -> tuple[Mapping[str, Any], RunOptions]:
    """Return the feeds of the caller and of all hooks, and their options."""
    for _, wanted in asked:
        options = options.merge(wanted.options)
    parties = [(CALLER, feed_dict), *((name, w.feed_dict) for name, w in asked)]
    return unite_feeds(parties, graph.resolve, _blame), options


def reduced_splits(
    agreement: Agreement,
    asked: Asked,
    plan: RunPlan | Wanted,
    values: Sequence[Any],
    step: int,
) -> Mapping[str, Split]:
    """Return what gives each hook its values, those over all ranks reduced.

    Raises:
        UsageError: a value to reduce holds no numbers.
        PeerFailedError: another rank is gone.
    """
    how, splits = asked.reductions, plan.splits
    hooks = [
        Reduced(who, how[who], [plan.places[leaf] for leaf in leaves_of(fetches)])
        for who, fetches in asked.request.hooks
        if who in how
    ]
    seen = reduce_values(agreement, hooks, values, step)

    def reduced(who: str) -> Split:
        return lambda _: splits[who](seen[who])

    return {**splits, **{who: reduced(who) for who in seen}}


def _merged(request: RunRequest) -> Merge:
    """Return the fetches of the caller and of all hooks as one."""
    return merge([(CALLER, request.fetches), *request.hooks])


def read_requests(
    fetches: Any, asked: Sequence[tuple[str, Any]], leaf: Leaf
) -> tuple[RunRequest, bool, bool]:
    """Return the request without feeds, whether it is special, and whether it is fixed.

    A special request has feeds, options, or a foreign type. In a fixed one all hooks fetch
    names, nodes, and dicts, lists and tuples of these, so that a change can be seen.
    """
    wanted = fetches if fetches.__class__ is str else structure_of(fetches, leaf)
    hooks: list[tuple[str, Hashable]] = []
    special, fixed = False, True
    for name, request in asked:
        if request.__class__ is not SessionRunArgs:
            special = _check_request(name, request)
        elif request.feed_dict or request.options is not None:
            special = True
        own = request.fetches
        if own.__class__ is str or own.__class__ is Node:
            hooks.append((name, own))
        elif own is not None:
            fixed = fixed and is_plain(own)
            try:
                hooks.append((name, structure_of(own, leaf)))
            except GraphError as error:
                _blame(error, name)
                raise
    return RunRequest((wanted, tuple(hooks), ())), special, fixed


def is_plain(fetches: Any, levels: int = 3) -> bool:
    """Return whether fetches are names and nodes, or dicts, lists and tuples of these.

    Two of these that are equal have the same structure.

    Args:
        fetches: the fetches.
        levels: how many containers may be inside each other.
    """
    kind = fetches.__class__
    if kind in NAMES:
        return True
    if not levels or kind not in (dict, list, tuple):
        return False
    parts = fetches.values() if kind is dict else fetches
    return all(is_plain(part, levels - 1) for part in parts)


def _check_request(name: str, request: Any) -> bool:
    """Accept any object with the three attributes, as TF does."""
    if all(hasattr(request, part) for part in ("fetches", "feed_dict", "options")):
        return True
    error = PluginError(
        f"plugin {name!r}: before_run() returned {request!r}; return "
        "SessionRunArgs(...) or None"
    )
    blame(error, name, f"raised because of plugin {name!r} in before_run()")
    raise error


def _blame(error: BaseException, who: str) -> None:
    if who != CALLER:
        blame(error, who, f"plugin {who!r} asked for it in before_run()")
