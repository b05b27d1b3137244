"""Which nodes a graph has, by what name they are found, and when no more may come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus.errors import (
    DuplicateNodeError,
    FetchTypeError,
    GraphError,
    GraphFinalizedError,
    UnknownNodeError,
    did_you_mean,
)
from hookbus.graph.fetches import leaves_of, structure_of
from hookbus.graph.node import GLOBAL_STEP, Node, NodeKind
from hookbus.graph.operation import XP, Operation
from hookbus.graph.summaries import SummaryKind


class BaseGraph:
    """Named nodes and summaries, which come until the graph is finalized."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._declared: dict[str, tuple[SummaryKind, str]] = {}
        self._unsaved: set[str] = set()
        self._finalized = False
        self._sessions = 0
        self._before: tuple[bool, frozenset[str], frozenset[str]]
        self.global_step = self._add(GLOBAL_STEP, "variable", 0)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name, in the order in which they were added."""
        return dict(self._nodes)

    @property
    def finalized(self) -> bool:
        """Whether nodes can no longer be added."""
        return self._finalized

    @property
    def variables(self) -> tuple[Node, ...]:
        """The variables, ``global_step`` left out."""
        return tuple(
            node
            for node in self._nodes.values()
            if node.kind == "variable" and node is not self.global_step
        )

    @property
    def unsaved(self) -> frozenset[str]:
        """The names of the variables that checkpoints do not hold."""
        return frozenset(self._unsaved)

    @property
    def declared(self) -> Mapping[str, tuple[SummaryKind, str]]:
        """Kind and node of each summary that was declared, by its name."""
        return dict(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def resolve(self, node: Node | str, asker: str = "") -> Node:
        """Return the node that *node* is or names.

        Args:
            node: a node of this graph, or a name.
            asker: who wants it, for the message.

        Raises:
            UnknownNodeError: no node has the name; close matches are listed.
            GraphError: the node belongs to another graph.
        """
        by = _wanted_by(asker)
        if isinstance(node, Node):
            if self._nodes.get(node.name) is not node:
                raise GraphError(f"{node!r} belongs to another graph{by}")
            return node
        found = self._nodes.get(node)
        if found is None:
            hint = did_you_mean(str(node), self._nodes) or self._listing()
            raise UnknownNodeError(f"the graph has no node {node!r}{by}{hint}")
        return found

    def resolve_all(self, fetches: Any, asker: str = "") -> list[Node]:
        """Return the nodes of a nesting of nodes and names, in its order.

        Args:
            fetches: what a run could fetch; None for nothing.
            asker: who wants them, for the message.

        Raises:
            FetchTypeError: a part of it is nothing that can be fetched.
            UnknownNodeError, GraphError: as in :meth:`resolve`.
        """
        if fetches is None:
            return []
        try:
            leaves = leaves_of(structure_of(fetches))
        except FetchTypeError as error:
            raise FetchTypeError(f"{error}{_wanted_by(asker)}") from None
        return [self.resolve(leaf, asker) for leaf in leaves]

    def variable_named(self, node: Node | str, asker: str) -> str:
        """Return the name of a variable that *asker* may write.

        Raises:
            UnknownNodeError: there is no such node.
            GraphError: it is no variable, or is ``global_step``.
        """
        found = self.resolve(node, asker)
        if found.kind != "variable":
            raise GraphError(
                f"{asker} writes {found.name!r}, which is no variable but "
                f"{'an' if found.kind[0] in 'aeiou' else 'a'} {found.kind}"
            )
        if found is self.global_step:
            raise GraphError(
                f"{asker} writes 'global_step', which the session counts itself; "
                "use train_op(increment=...)"
            )
        return found.name

    def finalize(self) -> None:
        """Let no more nodes come."""
        self._finalized = True

    def enter(self) -> None:
        """Note that a session begins."""
        if self._sessions == 0:
            names = frozenset(self._nodes), frozenset(self._declared)
            self._before = self._finalized, *names
        self._sessions += 1

    def leave(self) -> None:
        """Undo what sessions did to the graph, once none of them is left.

        Nodes and summaries that were added since the first one began vanish, and so does
        its finalization.
        """
        self._sessions -= 1
        if self._sessions == 0:
            self._finalized, names, summaries = self._before
            for name in self._nodes.keys() - names:
                del self._nodes[name]
            self._unsaved &= names
            for name in self._declared.keys() - summaries:
                del self._declared[name]

    def _summarize(self, kind: SummaryKind, name: str, node: Node | str) -> None:
        self._check_open(f"{kind} summary {name}")
        if not isinstance(name, str) or not name:
            raise GraphError(f"a summary's name is a str that is not empty, not {name!r}")
        if name in self._declared:
            raise DuplicateNodeError(
                f"there is a {self._declared[name][0]} summary {name!r} already"
            )
        found = self.resolve(node, f"the {kind} summary {name!r}")
        self._declared[name] = kind, found.name

    def _check_finalized(self) -> None:
        if not self._finalized:
            raise GraphError(
                "graph.summaries is asked for while hooks may still declare some; ask in "
                "after_create_session"
            )

    def _check_open(self, what: object) -> None:
        if self._finalized:
            name = what if isinstance(what, str) else getattr(what, "__name__", "op")
            raise GraphFinalizedError(
                f"cannot add {name!r}: the graph is finalized. Add nodes before the "
                "session is made, or in a hook's begin()"
            )

    def _add(self, name: str, kind: NodeKind, source: Any = None) -> Node:
        self._check_open(name)
        if not isinstance(name, str) or not name:
            raise GraphError(f"a node's name is a str that is not empty, not {name!r}")
        if name == XP:
            raise DuplicateNodeError(
                f"{XP!r} is reserved: an op's parameter of this name gets the backend's "
                "array namespace; call the node something else"
            )
        if name in self._nodes:
            raise DuplicateNodeError(
                f"there is a node {name!r} already: {self._nodes[name]!r}"
            )
        return self._note(name, kind, source)

    def _note(self, name: str, kind: NodeKind, source: Any = None) -> Node:
        node = self._nodes[name] = Node(name, kind, source, self)
        return node

    def _add_op(self, operation: Operation) -> Node:
        before = set(self._nodes)
        try:
            node = self._add(operation.name, "op", operation)
            for _, output in operation.outputs:
                self._add(output, "output", operation)
        except GraphError:
            for name in set(self._nodes) - before:
                del self._nodes[name]
            raise
        return node

    def _listing(self) -> str:
        return f"; it has {', '.join(map(repr, self._nodes))}"


def _wanted_by(asker: str) -> str:
    return f" (wanted by {asker})" if asker else ""
