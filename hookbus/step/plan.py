"""Plans a run: the nodes to compute, and the values that each party gets.

A request is planned once. Its plan serves every run with an equal request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from hookbus.backend.program import shared_in
from hookbus.backend.protocol import Session
from hookbus.backend.read_only import protected
from hookbus.bus.costs import HookCosts
from hookbus.errors import (
    GraphError,
    NoValueYetError,
    UnfedPlaceholderError,
    UsageError,
    WriteConflictError,
)
from hookbus.graph.fetches import MISSING, Merge, Split, leaves_of, merge, picker
from hookbus.graph.node import Node
from hookbus.graph.report_graph import ReportGraph
from hookbus.graph.traversal import needs
from hookbus.peers.agreement import Agreement
from hookbus.peers.reduction import Reduced, reduce_values
from hookbus.step.patterns import Expanded, expand
from hookbus.step.request import CALLER, RunRequest, Unplanned, blame_asker

Missing = TypeVar("Missing", UnfedPlaceholderError, NoValueYetError)

MOST_PLANS = 1024
"""The maximum number of requests whose plans are kept."""


@attrs.frozen(eq=False)
class RunPlan:
    """A plan that serves a request.

    Attributes:
        names: the names of the nodes that hooks fetch.
        splits: a function for each hook with fetches, by the hook's name. It takes all
            values and returns the hook's own structure.
        places: the index among all values, for each leaf that hooks fetch.
        shapes: the structure of each hook's results, by the hook's name, without hooks that
            go without values that do not exist.
        still_fits: returns whether the plan serves a later run with this request: values
            may have come or gone. None if it always does.
        split: takes all values and returns the caller's structure; None if the plan gives
            the caller no values.
        program: the backend's own plan; None if another loop computes the values.
        execute: the backend's method that executes *program*; None without a program.
    """

    names: list[str]
    splits: Mapping[str, Split]
    places: Mapping[Any, int]
    shapes: Mapping[str, Hashable]
    still_fits: Callable[[], bool] | None = None
    split: Split | None = None
    program: Any = None
    execute: Callable[..., Sequence[Any]] | None = None


class Planner:
    """Plans the runs of one backend session.

    Args:
        session: the backend session.
        costs: adds up the time of executions.
        is_everywhere: returns whether a hook takes part in all processes; None if one
            process trains alone.
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
        self._wanted: dict[Hashable, RunPlan] = {}

    def wanted(self, request: RunRequest) -> RunPlan:
        """Return a plan for the fetches of hooks alone, which executes nothing.

        Raises:
            GraphError: the graph has no such node.
            UsageError: a hook of one rank fetches a value that all ranks must read.
        """
        found = self._wanted.get(request)
        if found is None or _has_passed(found):
            asked = self._expanded(request, None)
            self._check_shared(asked)
            if len(self._wanted) >= MOST_PLANS:
                self._wanted.clear()
            found = self._wanted[request] = self._hooks_part(request, asked)
        return found

    def plan(
        self, request: RunRequest, feeds: Mapping[str, Any], reported: tuple[str, ...] = ()
    ) -> RunPlan:
        """Return the plan of a request.

        Args:
            request: the request of the caller and the hooks.
            feeds: the values of the fed nodes.
            reported: the names that a step of a custom loop reports.

        Raises:
            UnfedPlaceholderError: a needed placeholder is not fed.
            WriteConflictError: two ops of the run update one variable.
            GraphError: the graph has no such node.
            UsageError: a hook of one rank fetches a value that all ranks must read.
        """
        key = (request, reported)
        found = self._plans.get(key)
        if found is None or _has_passed(found):
            found = self._plan(key, frozenset(feeds).union(reported))
        return found

    def _plan(
        self, key: tuple[RunRequest, tuple[str, ...]], fed: frozenset[str]
    ) -> RunPlan:
        """Plan a new request, and keep the plan under *key*."""
        request = key[0]
        asked = expand(self._session, request, fed)
        self._check_shared(asked)
        own = merge([(CALLER, request.fetches)])
        fetches = self._names_of(own)
        plan = self._hooks_part(request, asked, start=len(own.leaves))
        names = plan.names if not asked.optional else self._if_there(asked, plan, fed)
        try:
            program = self._session.compile(fetches, fed, names)
        except UnfedPlaceholderError as error:
            raise self.with_askers(error, request, fed) from None
        except WriteConflictError as error:
            self._blame_writer(error, request, fed)
            raise
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        execute: Callable[..., Sequence[Any]] = self._session.execute
        if self._costs is not None:
            without_hooks = request.fetches, request.feeds, key[1]
            execute = self._costs.timed_run(execute, without_hooks, plan.splits)
        split = None if self._takes_reports else own.splits[0]
        plan = attrs.evolve(plan, split=split, program=program, execute=execute)
        self._plans[key] = plan
        return plan

    def _hooks_part(self, request: RunRequest, asked: Expanded, start: int = 0) -> RunPlan:
        """Plan the values of hooks; *start* is the index of the first one."""
        merged = merge(asked.hooks, start)
        leaves = [leaf for leaf in merged.leaves if leaf not in asked.absent]
        places = {leaf: place for place, leaf in enumerate(leaves, start)}
        skips = request.skipping
        splits = {
            name: _protecting(name, shape, places, name in skips)
            for name, shape in asked.hooks
        }
        shapes = {name: shape for name, shape in asked.hooks if name not in skips}
        names = self._names_of(merged, asked.absent)
        return RunPlan(names, splits, places, shapes, asked.still_fits)

    def _if_there(self, asked: Expanded, plan: RunPlan, fed: frozenset[str]) -> list[str]:
        """Return the names that hooks fetch, with MISSING where some have no value."""
        graph = self._session.graph
        if not isinstance(graph, ReportGraph):
            return plan.names
        return [
            graph.if_there(name, fed) if leaf in asked.optional else name
            for leaf, name in zip(plan.places, plan.names, strict=True)
        ]

    def _check_shared(self, asked: Expanded) -> None:
        """Check that no hook of one rank fetches a value that all ranks must read.

        The other ranks would not take part, so this one would wait for ever.

        Raises:
            UsageError: a hook fetches such a value.
        """
        if self._is_everywhere is None:
            return
        graph = self._session.graph
        for who, fetches in asked.hooks:
            if self._is_everywhere(who):
                continue
            for leaf in leaves_of(fetches):
                if leaf in asked.absent:
                    continue
                name = shared_in(graph, graph.resolve(leaf, who))
                if name is not None:
                    raise UsageError(
                        f"hook {who!r} takes part on rank 0 only and fetches {name!r}, of "
                        "which each rank holds a part: all ranks must read it together. "
                        "Declare HookOptions(ranks='all'), or report the value from the "
                        "loop"
                    )

    def _names_of(self, merged: Merge, absent: Collection[Any] = frozenset()) -> list[str]:
        """Return the name of each node that is fetched, without those that are absent.

        Raises:
            GraphError: the graph has no such node.
        """
        names: list[str] = []
        for leaf in merged.leaves:
            if leaf in absent:
                continue
            askers = merged.askers[leaf]
            try:
                names.append(self._session.graph.resolve(leaf, ", ".join(askers)).name)
            except GraphError as error:
                blame_asker(error, next(iter(askers)))
                raise
        return names

    def _askers_of(self, request: RunRequest, fed: frozenset[str]) -> dict[str, list[str]]:
        """Return the parties that need each node, by the node's name."""
        asked = self._expanded(request, fed)
        needing = [hook for hook in asked.hooks if hook[0] not in request.skipping]
        merged = merge([(CALLER, request.fetches), *needing])
        askers: dict[str, list[str]] = {}
        for name, leaf in zip(self._names_of(merged), merged.leaves, strict=True):
            askers.setdefault(name, []).extend(merged.askers[leaf])
        return askers

    def nodes_of(self, request: RunRequest) -> list[Node]:
        """Return the nodes that the caller and the hooks fetch."""
        asked = self._expanded(request, frozenset(request.feeds))
        merged = merge([(CALLER, request.fetches), *asked.hooks])
        return [*map(self._session.graph.resolve, self._names_of(merged, asked.absent))]

    def _expanded(self, request: RunRequest, fed: frozenset[str] | None) -> Expanded:
        """Return the fetches of a run by name, as far as names are known before it."""
        return expand(self._session, request, fed, is_final=not self._takes_reports)

    def with_askers(
        self, error: Missing, request: RunRequest, fed: frozenset[str]
    ) -> Missing:
        """Return an error that names the fetch with the missing value, and its askers."""
        graph = self._session.graph
        for name, askers in self._askers_of(request, fed).items():
            if needs(graph, graph.resolve(name), error.node, fed):
                first = askers[0]
                without = f"; to run without that hook: -p no:{first}"
                if not (isinstance(graph, ReportGraph) and graph.loop):
                    without += ", or kind='aux' for a run that is no step of the training"
                told = str(error)
                found = type(error)(
                    f"{told}{'' if told.endswith('?') else '.'} {name!r} is fetched by "
                    f"{', '.join(askers)}{'' if first == CALLER else without}",
                    error.node,
                )
                blame_asker(found, first)
                return found
        return error

    def _blame_writer(
        self, error: WriteConflictError, request: RunRequest, fed: frozenset[str]
    ) -> None:
        """Blame the first hook whose fetches cause the conflict."""
        askers_of = self._askers_of(request, fed)
        for hook, _ in request.hooks:
            rest = [name for name, askers in askers_of.items() if {*askers} != {hook}]
            with contextlib.suppress(GraphError, WriteConflictError):
                self._session.compile(rest, fed)
                blame_asker(error, hook)
                return


def _has_passed(plan: RunPlan) -> bool:
    """Return whether values have come or gone since a run was planned."""
    return plan.still_fits is not None and not plan.still_fits()


def _protecting(
    name: str, structure: Hashable, places: Mapping[Any, int], skips: bool
) -> Split:
    """Return the split of one hook, which protects the values from changes by the hook.

    Args:
        name: the hook's name.
        structure: its fetches.
        places: the index of each value; one that does not exist has none.
        skips: whether the hook goes without values that do not exist.
    """
    [split] = merge([(name, structure)], skips=skips).splits
    found = [places.get(leaf) for leaf in dict.fromkeys(leaves_of(structure))]
    if skips:
        return lambda values: split(
            [MISSING if place is None else protected(values[place]) for place in found]
        )
    pick = picker([place for place in found if place is not None])
    return lambda values: split([*map(protected, pick(values))])


def reduced_splits(
    agreement: Agreement | None,
    unplanned: Unplanned,
    plan: RunPlan,
    values: Sequence[Any],
    step: int,
) -> Mapping[str, Split]:
    """Return the splits of a plan, with reduced values for the hooks that reduce.

    Raises:
        UsageError: a value to reduce holds no numbers.
        PeerFailedError: another rank is gone.
    """
    how, splits = unplanned.reductions, plan.splits
    hooks = [
        Reduced(who, how[who], [plan.places[leaf] for leaf in leaves_of(fetches)])
        for who, fetches in plan.shapes.items()
        if who in how
    ]
    seen = reduce_values(agreement, hooks, values, step)

    def reduced(who: str) -> Split:
        return lambda _: splits[who](seen[who])

    return {**splits, **{who: reduced(who) for who in seen}}
