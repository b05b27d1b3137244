"""Defines the node of a graph, and the reserved names of nodes."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, ClassVar, Literal, TypeAlias

import attrs

from hookbus.graph.operation import XP

GLOBAL_STEP = "global_step"
METRICS = "hookbus.metrics"
"""The node behind :attr:`Graph.metrics`."""
REPORTED = "hookbus.reported"
"""The node behind :attr:`Graph.reported` of a custom loop."""
SUMMARIES = "hookbus.summaries"
"""The node behind :attr:`Graph.summaries`."""

NodeKind: TypeAlias = Literal["placeholder", "variable", "native", "input", "op", "output"]


@attrs.frozen(eq=False, repr=False)
class Node:
    """One named value of a graph, which a run can fetch or feed.

    Attributes:
        name: unique within the graph.
        kind: ``placeholder``, ``variable``, ``native`` (a value that the backend provides
            and hooks cannot assign), ``input``, ``op``, or ``output`` (one of several
            outputs of an op).
        source: the Operation, initial value, input factory or native object behind it.
        graph: the graph that it belongs to.
        owner: the name of the plugin whose ``begin`` added it; None for the user's nodes.

    >>> from hookbus import Graph
    >>> node = Graph().variable("w", 2.0)
    >>> node.name, node.kind, node.source
    ('w', 'variable', 2.0)
    """

    is_node: ClassVar[bool] = True

    name: str
    kind: NodeKind
    source: Any = None
    graph: Any = None
    owner: str | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"

    @property
    def label(self) -> str:
        """Its name in messages, with the plugin that owns it."""
        return repr(self.name) + owned_by(self.owner)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the nodes that its value is computed from; its op for an output.

        An op that reads a wrapped node reads the last of its wraps. The source of a native
        node may have the names as its attribute ``reads``.
        """
        if self.kind == "output":
            return (self.source.name,)
        source = self.graph.wired(self.source) if self.kind == "op" else self.source
        names = getattr(source, "reads", ()) if self.kind in ("op", "native") else ()
        return tuple(name for name in names if name != XP)

    @property
    def updates(self) -> tuple[str, ...]:
        """The names of the variables that a train op updates."""
        return tuple(self.source.updates) if self.kind == "op" else ()


def plain_name(name: str) -> str:
    """Return a name as a plain str: a subclass may hash, compare and print as it likes.

    >>> class Shouted(str):
    ...     def __eq__(self, other: object) -> bool:
    ...         raise OSError
    ...     __hash__ = None
    >>> plain_name(Shouted("loss")) == "loss"
    True
    """
    return name if type(name) is str else str.__str__(name)


def owned_by(owner: str | None) -> str:
    """Return the end of a node's name in messages: the plugin that owns it, if one does."""
    return "" if owner is None else f" of plugin {owner!r}"


def metrics_of(names: Container[str]) -> tuple[str, ...]:
    """Return those of ``loss`` and ``accuracy`` that are among *names*, in this order."""
    return tuple(name for name in ("loss", "accuracy") if name in names)
