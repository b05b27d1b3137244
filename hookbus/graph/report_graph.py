"""Knows the values of a custom loop by name: reports, and those inside its objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from hookbus.errors import GraphError, NoValueYetError, did_you_mean
from hookbus.graph.fetches import MISSING
from hookbus.graph.graph import Graph
from hookbus.graph.node import (
    METRICS,
    REPORTED,
    SUMMARIES,
    Node,
    NodeKind,
    plain_name,
)
from hookbus.graph.operation import XP, Operation
from hookbus.graph.summaries import collecting
from hookbus.library.base import LiveState, LiveValue
from hookbus.library.roles import RESERVED, Role, may_match_inside

REPORTED_SUMMARIES = "hookbus.reported_summaries"
_COMPUTED = ("op", "input", "placeholder")
"""Kinds of nodes that a session computes or is fed; a custom loop has none of its own."""


class ReportGraph(Graph):
    """The graph of a custom loop: any name may turn out to be reported.

    It starts empty. A hook may add nodes derived from names that the loop reports. Values
    inside the objects that the loop tracks are also nodes. A report with the name of such a
    node takes precedence.

    A subclass may know objects from the start. If ops are added to it, it is a graph like
    any other.

    Args:
        loop: the name of a loop that hookbus does not own, for messages.
    """

    backend: str | Callable[[Any], Any] = "hookbus.backend.reports:ReportSession"

    def __init__(self, loop: str | None = None) -> None:
        super().__init__()
        self.loop = loop
        self._reported: set[str] = set()
        self.live: dict[str, LiveValue] = {}
        self.live_variables: dict[str, LiveValue] = {}
        self.states: dict[str, LiveState] = {}
        self._inputs: set[str] = set()
        self._held: dict[str, Any] = {}

    @property
    def unsaved(self) -> frozenset[str]:
        """The variables that checkpoints hold only as parts of tracked objects, or not."""
        return super().unsaved | self.live_variables.keys()

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The objects of the graph, and those that a custom loop tracks, by name."""
        return {**self.objects, **self._held}

    @property
    def roles(self) -> Mapping[str, Role]:
        """The role of each value that :meth:`names` lists; the session adds the reports.

        Values inside tracked objects have the roles that their library gives them.
        """
        found = {n: live.role for n, live in self.live.items() if live.role is not None}
        for state in self.states.values():
            found.update(dict.fromkeys(state.names(), "state"))
        # Hooks may have named what nobody reports, or what an object had before.
        own = {n: role for n, role in super().roles.items() if n not in self._reported}
        return {**found, **own, **dict.fromkeys(self._inputs, "input")}

    def note_input(self, name: str) -> None:
        """Take the name that a custom loop gives to an input."""
        self._inputs.add(name)

    def passing(self, patterns: Iterable[str]) -> list[LiveState]:
        """Return the objects whose values come and go, and may match patterns."""
        return [
            state
            for name, state in self.states.items()
            if any(may_match_inside(pattern, name) for pattern in patterns)
        ]

    def if_there(self, name: str, fed: Collection[str]) -> str:
        """Return the name of a node with the same value, or MISSING where it has none.

        That is a separate node for a value inside an object, and for an op that reads
        one. Any other node is returned, and so is one that is *fed*.
        """
        if name in fed:
            return name
        node, other = self.resolve(name), f"{RESERVED}if_there/{name}"
        source, kind = node.source, node.kind
        if isinstance(source, LiveValue):
            source = attrs.evolve(source, get=_or_missing(source.get), put=None)
            kind = "native"
        elif kind == "op" and not (source.trains or source.outputs):
            reads = tuple(
                read if read == XP else self.if_there(read, fed) for read in source.reads
            )
            if reads == source.reads:
                return name
            call = _or_missing(source.call)
            source = attrs.evolve(source, name=other, call=call, reads=reads)
        else:
            return name
        self._reported.add(other)
        return self._note(other, kind, source, node.owner).name

    @property
    def takes_reports(self) -> bool:
        """Whether a custom loop computes the steps: only hooks have added nodes to it."""
        return not any(
            node.kind in _COMPUTED
            and node.owner is None
            and name not in self._reported
            and not getattr(node.source, "wraps", ())
            for name, node in self.nodes.items()
        )

    def resolve(self, node: Node | str, asker: str = "") -> Node:
        """Return a node by its name; a new name becomes a node that a step may report."""
        if isinstance(node, Node) and node.graph is self:
            node = node.name  # what it stands for may have been tracked since
        if isinstance(node, str):
            name = plain_name(node)
            if name not in self:
                live = self.live_value(name)
                if live is not None or self.takes_reports:
                    self._reported.add(name)
                    return self._note(name, _kind_of(live), live)
        return super().resolve(node, asker)

    def check_wrap(self, node: Node, who: str) -> None:
        """Check that *who* can wrap a node.

        Raises:
            GraphError: its value lives in an object, which the code of the loop reads.
        """
        live = self.live_value(node.name)
        if live is not None and (live.moment is None or live.is_shared):
            why = (
                "each rank of the training holds a part of it"
                if live.is_shared
                else "it lives in an object, and the code of the training reads it there"
            )
            raise GraphError(
                f"{who} cannot wrap {node.name!r}: {why}; wrap an input, a value that "
                "the loop passes through step.through(), or a value that is made in the "
                "step, like a gradient"
            )
        super().check_wrap(node, who)

    def wired(self, operation: Operation) -> Operation:
        """Return an op as a run calls it.

        In a custom loop, a wrap applies where the value comes from. A report of that name
        has the wrapped value already, and so has an object of the program.
        """
        return operation if self.takes_reports else self._wraps.wired(operation, self.live)

    def fetched(self, name: str) -> str:
        """Return the name of the node whose value a fetch of a node gets."""
        is_changed = self.takes_reports or name in self.live
        return name if is_changed else super().fetched(name)

    def wrapped_together(self, name: str) -> tuple[str, ...]:
        """Return the nodes whose wrapped values depend on each other, with one of them."""
        found = self._wraps.together_with(name)
        return tuple(node for node in self.wraps if node in found)

    def hold(
        self,
        values: Mapping[str, LiveValue],
        states: Mapping[str, LiveState] = MappingProxyType({}),
        things: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Make values inside tracked objects known as nodes, by name.

        Hooks may have named such a node before the loop tracks the object.

        Args:
            values: those that the objects always have.
            states: the objects whose values come and go, by their own name.
            things: the objects by their own name.
        """
        self._held.update(things)
        self.live.update(values)
        self.states.update(states)
        variables = {name: live for name, live in values.items() if live.put is not None}
        self.live_variables.update(variables)
        for name in self.nodes:
            self.is_held(name)

    def live_value(self, name: str) -> LiveValue | None:
        """Return a value inside a tracked object; None if there is no such value now."""
        if name in self.live:
            return self.live[name]
        for tracked, state in self.states.items():
            if name == tracked or name.startswith(f"{tracked}."):
                found = state.find(name)
                if found is not None:
                    return found
        return None

    def variable_named(self, node: Node | str, asker: str) -> str:
        """Return the name of a variable that *asker* may write.

        Raises:
            GraphError: no tracked object has it, or it cannot be written.
        """
        found = self.resolve(node, asker)
        name, live = found.name, self.live.get(found.name)
        if live is not None and live.is_shared:
            raise GraphError(
                f"{asker} writes {name!r}, which cannot be assigned: each rank of the "
                "training holds a part of it"
            )
        is_report = self.takes_reports and found.kind == "placeholder"
        if is_report and not self.is_held(name):
            states = (each for state in self.states.values() for each in state.values())
            near = did_you_mean(name, [*self.live_variables, *states])
            raise GraphError(
                f"{asker} writes {name!r}, which is not a variable; the variables of a "
                "custom loop are the numbers and arrays inside the objects that it "
                f"tracks{near}"
            )
        return super().variable_named(name, asker)

    def is_held(self, name: str) -> bool:
        """Return whether a node that a step may report is inside a tracked object by now.

        It is no placeholder any more then.
        """
        node = self.nodes[name]
        live = self.live_value(name) if node.kind == "placeholder" else None
        if live is not None:
            self._note(name, _kind_of(live), live, node.owner)
        return live is not None

    @property
    def metrics(self) -> Node | None:
        """The node that hooks watch by default.

        Its value is a dict of the reported ``loss`` and ``accuracy`` and the scalars among
        the step's summaries.
        """
        return self.resolve(METRICS) if self.takes_reports else super().metrics

    @property
    def reported(self) -> Node | None:
        """The node with all numbers of a step, for hooks that record them.

        Its value is a dict of what :attr:`metrics` has and of all other numbers that the
        step reports by name. Functions that it reports are not called for that.
        """
        return self.resolve(REPORTED) if self.takes_reports else super().reported

    @property
    def summaries(self) -> Node | None:
        """The node with the summaries of a step, and those that hooks have declared.

        Its value is a dict, kind to name to value.
        """
        if not self.takes_reports:
            return super().summaries
        self._check_finalized()
        if SUMMARIES in self:
            return self.resolve(SUMMARIES)
        self._reported.add(SUMMARIES)
        reported = self.resolve(REPORTED_SUMMARIES).name
        return self._note(SUMMARIES, "op", collecting(self._declared, (reported,)))

    def _names(self) -> Iterable[str]:
        return [*self.nodes, *self.inside]

    @property
    def changeable(self) -> list[str]:
        """The names of the values inside tracked objects that a step can change."""
        return [name for name, live in self.live.items() if live.moment is not None]

    @property
    def inside(self) -> list[str]:
        """Return the names of the values inside tracked objects."""
        states = (name for state in self.states.values() for name in state.names())
        return [*self.live, *states]


def _or_missing(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns MISSING if it is given that, or has no value."""

    def call(*values: Any) -> Any:
        if any(value is MISSING for value in values):
            return MISSING
        try:
            return read(*values)
        except NoValueYetError:
            return MISSING

    return call


def _kind_of(live: LiveValue | None) -> NodeKind:
    """Return the kind of the node for a name that a loop reports, or for a live value."""
    if live is None:
        return "placeholder"
    return "native" if live.put is None else "variable"
