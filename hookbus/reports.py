"""A loop of one's own as a backend: what a step reports takes the place of ops."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, cast

from hookbus.errors import UnfedPlaceholderError, UsageError, did_you_mean
from hookbus.feeds import unite_feeds
from hookbus.graph import Graph
from hookbus.node import METRICS, Node, metrics_of
from hookbus.session import EmbeddedSession


class ReportGraph(Graph):
    """The graph of a loop of one's own: any name may turn out to be reported.

    It starts empty. A hook may add nodes derived from names that the loop reports.
    """

    def resolve(self, node: Node | str, asker: str = "") -> Node:
        """Return the node that *node* is or names; a new name is one to be reported."""
        if isinstance(node, str) and node not in self:
            return self._note(node, "placeholder")
        return super().resolve(node, asker)

    @property
    def metrics(self) -> Node:
        """A node whose value is the dict of ``loss`` and ``accuracy``, as reported."""
        return self.resolve(METRICS)


class Reports(Mapping[str, Any]):
    """The values that one step reports; a callable is called when somebody wants it."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        self._known: dict[str, Any] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values by name.

        Raises:
            UsageError: a name was reported in this step already.
        """
        for name in values:
            if name in self._given:
                raise UsageError(f"{name!r} is reported twice in one step")
        self._given.update(values)

    def fed(self, feeds: Mapping[str, Any]) -> Reports:
        """Return these reports with what hooks feed in the place of what was reported."""
        if not feeds:
            return self
        both = Reports()
        both._given = {**self._given, **feeds}
        both._known = {**self._known, **feeds}
        return both

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._evaluate(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._given
        if METRICS not in self._given:
            yield METRICS

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _evaluate(self, name: str) -> Any:
        if name == METRICS:
            return {metric: self[metric] for metric in metrics_of(self._given)}
        value = self._given[name]
        return value() if callable(value) else value


class ReportSession(EmbeddedSession):
    """The backend session of a loop of one's own.

    Reading a name outside a step gives what was reported last.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.last = Reports()

    def compile(self, fetches: Any, feeds: frozenset[str]) -> Any:
        """Plan what hooks want of a step's reports.

        Raises:
            UnfedPlaceholderError: something is wanted that the step does not report.
        """
        try:
            return super().compile(fetches, feeds)
        except UnfedPlaceholderError as error:
            reported = sorted(feeds - {METRICS})
            name = error.node
            raise UnfedPlaceholderError(
                f"{name!r} is not reported{did_you_mean(name, reported)}; the step reports "
                f"{', '.join(map(repr, reported)) or 'nothing'}: step.report({name}=...)",
                name,
            ) from None

    def run(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None = None) -> Any:
        """Read values that were reported last, or derived from them."""
        given = unite_feeds([("run", feed_dict)], self.graph.resolve)
        return self._read(fetches, ChainMap(given, cast("Any", self.last)))
