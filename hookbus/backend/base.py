"""Provides the parts of a session that most backends share."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.backend.inputs import Input
from hookbus.backend.protocol import Execution, Session, ValueRecord
from hookbus.errors import PREEMPTION_ERRORS, UsageError
from hookbus.graph.fetches import merge, structure_of, unite_feeds
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.library.roles import Role


def read(
    session: Session, fetches: Any, feeds: Mapping[str, Any], fed: frozenset[str]
) -> Any:
    """Return the values of fetches; *fed* are the fed nodes, also those without a feed."""
    merged = merge([("run", structure_of(fetches, session.graph.leaf))])
    names = [session.graph.resolve(leaf, "run").name for leaf in merged.leaves]
    program = session.compile(names, fed)
    values = session.execute(Execution(program, feeds))
    return merged.splits[0](values)


def nothing_to_skip() -> UsageError:
    """Return the error of a run that was to skip its update and has none."""
    return UsageError(
        "run_context.skip_update() in a run without a train op: there is no update to skip"
    )


class SessionBase:
    """The parts of a :class:`Session` that most backends share.

    The session of a backend may inherit these parts, and override some of them. This base
    class serves no custom loop, keeps only variables and inputs, and does not know how many
    steps are left.
    """

    graph: Graph
    shares_step = False
    preemption_errors: tuple[type[Exception], ...] = PREEMPTION_ERRORS
    _inputs: Mapping[str, Input]

    def names(
        self: Session, pattern: str = "*", role: Role | None = None
    ) -> tuple[str, ...]:
        """Return the names of values that hooks may fetch; see :meth:`Graph.names`."""
        return self.graph.names(pattern, role)

    def capture(self, fetches: Sequence[str]) -> bool | None:
        """Prepare nothing for a step of a custom loop."""

    def take_reports(self, reports: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Refuse reports.

        Raises:
            UsageError: always.
        """
        raise UsageError("this session has a graph, which takes no reports; use run()")

    def execute_without_update(self: Session, execution: Execution) -> Sequence[Any]:
        """Run a plan once, and give all variables their old values back.

        A backend that knows the variables that a run updates needs no copies for this.

        Raises:
            UsageError: the run has changed nothing.
        """
        before, version = copy.deepcopy(self.variables()), self.version
        values = self.execute(attrs.evolve(execution, writes={}))
        if self.version == version:
            raise nothing_to_skip()
        assigned = {name: value for name, (_, value) in execution.writes.items()}
        self.write(before | assigned)
        return values

    def run(
        self: Session, fetches: Any, feed_dict: Mapping[Node | str, Any] | None = None
    ) -> Any:
        """Run part of the graph without calling hooks."""
        feeds = unite_feeds([("run", feed_dict)], self.graph.resolve)
        return read(self, fetches, feeds, frozenset(feeds))

    def describe(self: Session) -> dict[str, ValueRecord]:
        """Return the dtype and shape of each variable by name."""
        return {name: ValueRecord.of(name, v) for name, v in self.variables().items()}

    def snapshot(self: Session) -> dict[str, Any]:
        """Return the value of each variable for a save, which reads it once."""
        return self.variables()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the variables and inputs are all that there is."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing; see :meth:`state_dict`."""

    def positions(self) -> dict[str, Any]:
        """Return the position of each input, by name."""
        return {name: source.state_dict() for name, source in self._inputs.items()}

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Move the named inputs to positions; names that the graph lacks are ignored."""
        for name in positions.keys() & self._inputs.keys():
            self._inputs[name].load_state_dict(positions[name])

    def leave_out(self, numbers: Mapping[str, Iterable[int]]) -> None:
        """Give no value of an input that has one of these numbers, from 0, any more."""
        for name, left_out in numbers.items():
            self._inputs[name].leave_out(left_out)

    def pulled(self) -> int:
        """Return how many values were pulled from inputs, those before a seek included."""
        return sum(source.pulled for source in self._inputs.values())

    def remaining(self) -> int | None:
        """Return None: how many steps are left until an input ends is not known."""
        return None
