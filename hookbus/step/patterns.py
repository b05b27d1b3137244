"""Expands the patterns that hooks fetch, and leaves out values that a run does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import attrs

from hookbus.backend.protocol import Session
from hookbus.errors import GraphError, NoValueYetError, UnknownNodeError, did_you_mean
from hookbus.graph.fetches import leaves_of, with_dicts
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.report_graph import ReportGraph
from hookbus.graph.traversal import is_train_output, needed_by
from hookbus.library.roles import RESERVED, Role, matching, may_be_pattern
from hookbus.step.request import RunRequest, blame_asker

_MOST_LISTED = 12
"""The most names that a message lists."""


@attrs.frozen(eq=False)
class Expanded:
    """The fetches of the hooks of a run, with names in place of patterns.

    Attributes:
        hooks: the fetches of each hook, by its name.
        absent: the fetches that the run does not have, and whose hooks go without them.
        optional: those for which that is known only when the run has computed its values.
        still_fits: returns whether a later run with this request has the same names; None
            if every one has.
    """

    hooks: tuple[tuple[str, Hashable], ...]
    absent: frozenset[Any] = frozenset()
    optional: frozenset[Any] = frozenset()
    still_fits: Callable[[], bool] | None = None


def expand(
    session: Session,
    request: RunRequest,
    fed: frozenset[str] | None,
    *,
    is_final: bool = True,
) -> Expanded:
    """Expand the patterns of a request to names, and find the values that do not exist.

    Args:
        session: the backend session.
        request: the request of the caller and the hooks.
        fed: the names that are fed or reported; None before a step of a loop, which is
            taken to have all values.
        is_final: whether all names are known. Before a step of a custom loop they are not.

    Raises:
        UnknownNodeError: a pattern matches nothing, and its hook does not go without.
    """
    special = [leaf for _, asked in request.hooks for leaf in leaves_of(asked)]
    if not request.skipping and not any(map(may_be_pattern, special)):
        return Expanded(request.hooks)
    return _Expansion(session, request, fed, is_final).expanded()


class _Expansion:
    """Expands one request."""

    def __init__(
        self,
        session: Session,
        request: RunRequest,
        fed: frozenset[str] | None,
        is_final: bool,
    ) -> None:
        self._session, self._graph, self._request = session, session.graph, request
        self._fed, self._is_final = fed, is_final
        self._reports = self._graph if isinstance(self._graph, ReportGraph) else None
        self._roles = _roles(self._graph, fed)
        # Later runs look whether values that match these have come or gone.
        self._watched: list[str] = []
        self._is_settled = True

    def expanded(self) -> Expanded:
        hooks, skipping = self._request.hooks, frozenset(self._request.skipping)
        named: dict[str, tuple[str, ...]] = {}
        for who, asked in hooks:
            for leaf in leaves_of(asked):
                if self._is_pattern(leaf) and leaf not in named:
                    named[leaf] = self._matches(leaf)
                if leaf in named and not named[leaf] and self._is_final:
                    self._check_skips(leaf, who, skipping)
        hooks = tuple((who, with_dicts(asked, named)) for who, asked in hooks)
        needed = {
            leaf for who, asked in hooks if who not in skipping for leaf in leaves_of(asked)
        }
        optional = {leaf for _, asked in hooks for leaf in leaves_of(asked)} - needed
        absent = {leaf for leaf in optional if self._is_absent(leaf, needed)}
        return Expanded(
            hooks, frozenset(absent), frozenset(optional - absent), self._still_fits()
        )

    def _is_pattern(self, leaf: Any) -> bool:
        """Return whether a fetch is a pattern: no value has this very name."""
        if not may_be_pattern(leaf) or leaf in self._roles or leaf in (self._fed or ()):
            return False
        return self._graph.takes_reports or leaf not in self._graph

    def _matches(self, pattern: str) -> tuple[str, ...]:
        self._watched.append(pattern)
        names = matching(self._roles, pattern, None)
        if self._fed is None:
            return names
        run = self._run_of(leaves_of(self._request.fetches))
        pulled = {node.name for node in run if node.kind == "input"}
        return tuple(name for name in names if self._is_given(name, pulled))

    def _is_given(self, name: Any, pulled: Collection[str] | None = None) -> bool:
        """Return whether a run can compute a value with what it is fed and pulls.

        Args:
            name: the node of the value.
            pulled: the inputs from which the run pulls; None to allow all.
        """
        if self._fed is None:
            return True
        for node in needed_by(self._graph, [self._graph.resolve(name)], self._fed):
            if node.kind == "input" and pulled is not None and node.name not in pulled:
                return False
            if node.kind == "placeholder" and not self._is_known(node.name):
                return False
        return True

    def _is_known(self, name: str) -> bool:
        """Return whether a placeholder has a value although nobody feeds it."""
        is_held = self._reports is not None and self._reports.is_held(name)
        return is_held or name.startswith(RESERVED)

    def _is_absent(self, leaf: Any, needed: Iterable[Any]) -> bool:
        """Return whether the run does not have a value, as far as that is known before."""
        name = leaf.name if isinstance(leaf, Node) else leaf
        try:
            node = self._graph.resolve(leaf)
        except UnknownNodeError:
            return True
        if not self._is_given(leaf):
            self._watched.append(name)
            return self._is_final
        return any(
            self._has_no_value(each)
            for each in needed_by(self._graph, [node], self._fed or ())
            if is_train_output(each) and not self._runs(each.source.name, needed)
        )

    def _runs(self, operation: str, needed: Iterable[Any]) -> bool:
        """Return whether the run calls an op."""
        run = self._run_of((*leaves_of(self._request.fetches), *needed))
        return any(node.name == operation for node in run)

    def _run_of(self, leaves: Iterable[Any]) -> list[Node]:
        """Return the nodes that some fetches need; the planner refuses unknown ones."""
        nodes: list[Node] = []
        for leaf in leaves:
            with contextlib.suppress(GraphError):
                nodes.append(self._graph.resolve(leaf))
        return needed_by(self._graph, nodes, self._fed or ())

    def _has_no_value(self, node: Node) -> bool:
        """Return whether an output waits for the first run of its train op."""
        if self._fed is None:
            return False
        try:
            self._session.run(node.name)
        except NoValueYetError:
            self._is_settled = False
            return True
        return False

    def _check_skips(self, pattern: str, who: str, skipping: Collection[str]) -> None:
        """Check that the hook of a pattern that matches nothing goes without.

        Raises:
            UnknownNodeError: it does not.
        """
        if who in skipping:
            return
        near = did_you_mean(pattern, self._roles)
        names = [*self._roles]
        more = ", ..." if len(names) > _MOST_LISTED else ""
        listed = f"; there are {', '.join(map(repr, names[:_MOST_LISTED]))}{more}"
        error = UnknownNodeError(
            f"hook {who!r} fetches the pattern {pattern!r}, which matches no value of this "
            f"run{near or (listed if names else '')}"
        )
        blame_asker(error, who)
        raise error

    def _still_fits(self) -> Callable[[], bool] | None:
        if not self._is_settled:
            return lambda: False
        passing = [] if self._reports is None else self._reports.passing(self._watched)
        if not passing:
            return None
        names = [[*state.names()] for state in passing]
        return lambda: [[*state.names()] for state in passing] == names


def _roles(graph: Graph, fed: frozenset[str] | None) -> Mapping[str, Role]:
    """Return the names that patterns may match; in a custom loop also those reported."""
    if not graph.takes_reports:
        return graph.roles
    reports: dict[str, Role] = dict.fromkeys(sorted(fed or ()), "report")
    return {**graph.roles, **reports}
