"""Keeps the nodes of a graph, and finds them by name; a wrong name gets a suggestion."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookbus.errors import (
    DuplicateNodeError,
    FetchTypeError,
    GraphError,
    GraphFinalizedError,
    Undo,
    UnknownNodeError,
    did_you_mean,
    spelled,
)
from hookbus.graph.fetches import leaves_of, structure_of
from hookbus.graph.node import GLOBAL_STEP, Node, NodeKind, owned_by, plain_name
from hookbus.graph.operation import XP, Operation
from hookbus.library.roles import Role, matching

_MOST_LISTED = 50
"""The number of nodes that a message lists."""


class NodeTable:
    """The nodes of a graph by name; the variable ``global_step`` is always there."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._finalized = False
        self._owner: Callable[[], str | None] = lambda: None
        self.global_step: Node = self._add(GLOBAL_STEP, "variable", 0)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name, in the order in which they were added."""
        return dict(self._nodes)

    @property
    def finalized(self) -> bool:
        """Whether nodes can no longer be added."""
        return self._finalized

    @property
    def owners(self) -> Mapping[str, str]:
        """The plugin that owns each node added by a hook, by the node's name."""
        return {
            node.name: node.owner for node in self._nodes.values() if node.owner is not None
        }

    @property
    def roles(self) -> Mapping[str, Role]:
        """The role of each value that :meth:`names` lists, by name."""
        return {}

    def names(self, pattern: str = "*", role: Role | None = None) -> tuple[str, ...]:
        """Return the names of values that hooks may fetch, in the order of the graph.

        Train ops are left out, because fetching one trains, and so are the nodes that
        hookbus and its hooks add for themselves, whose names begin with ``hookbus.``. Of a
        ``TFGraph`` they are the variables and the names that the program or a hook has
        asked for.

        Args:
            pattern: the names to return, as a pattern of ``fnmatch``; case counts.
            role: the role of their values in the training; None for any.

        Raises:
            ArgumentTypeError: the pattern is not a str.
            UsageError: there is no such role.
        """
        return matching(self.roles, pattern, role)

    def leaf(self, thing: Any) -> Node | None:
        """Return the node that an object stands for in fetches and feeds, or None.

        A graph of another backend overrides this for objects like its own tensors. Nodes
        and names are never asked about.
        """

    def find(self, name: str) -> Node | None:  # noqa: ARG002 (for subclasses)
        """Return the node that the backend itself has under a name, or None.

        A graph of another backend overrides this if it can do so without a list of its
        nodes. Each node is made once. Nodes that are added are never asked about.
        """
        return None

    def __contains__(self, name: object) -> bool:
        return name in self._nodes or (isinstance(name, str) and bool(self.find(name)))

    def resolve(self, node: Node | str, asker: str = "") -> Node:
        """Return a node by its name; return a node of this graph as it is.

        Args:
            node: a node of this graph, a name, or an object that stands for a node (see
                :meth:`leaf`).
            asker: who needs the node, for the error message.

        Raises:
            UnknownNodeError: the graph has no such node; close matches are listed.
            GraphError: the node belongs to another graph.
        """
        by = _wanted_by(asker)
        if not isinstance(node, Node | str):
            node = self.leaf(node) or node
        if isinstance(node, Node):
            if self._known(node.name) is not node:
                raise GraphError(f"{node!r} belongs to another graph{by}")
            return node
        name = plain_name(node) if isinstance(node, str) else None
        found = self._known(name) if name is not None else None
        if found is None:
            hint = did_you_mean(name or "", self._names()) or _listing(self._nodes)
            raise UnknownNodeError(f"the graph has no node {spelled(node)}{by}{hint}")
        return found

    def resolve_all(self, fetches: Any, asker: str = "") -> list[Node]:
        """Return the nodes of a nesting of nodes and names, in its order.

        Args:
            fetches: a node, a name, or any nesting of them; None for nothing.
            asker: who needs the nodes, for the error message.

        Raises:
            FetchTypeError: a part of the nesting cannot be fetched.
            UnknownNodeError, GraphError: as in :meth:`resolve`.
        """
        if fetches is None:
            return []
        try:
            leaves = leaves_of(structure_of(fetches, self.leaf))
        except FetchTypeError as error:
            raise FetchTypeError(f"{error}{_wanted_by(asker)}") from None
        return [self.resolve(leaf, asker) for leaf in leaves]

    def variable_named(self, node: Node | str, asker: str) -> str:
        """Return the name of a variable that *asker* may write.

        Raises:
            UnknownNodeError: there is no such node.
            GraphError: the node is not a variable, or is ``global_step``.
        """
        found = self.resolve(node, asker)
        if found.kind != "variable":
            kind = "native value" if found.kind == "native" else found.kind
            raise GraphError(
                f"{asker} writes {found.name!r}, which is not a variable but "
                f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
            )
        if found is self.global_step:
            raise GraphError(
                f"{asker} writes 'global_step', which the session counts itself; "
                "use train_op(increment=...)"
            )
        return found.name

    def adding(self, owner: Callable[[], str | None]) -> Undo:
        """Give the nodes that the block adds the owner that *owner* returns."""
        before, self._owner = self._owner, owner

        def undo() -> None:
            self._owner = before

        return Undo(undo)

    def _known(self, name: str) -> Node | None:
        """Return the node of a name: one that was added, or one of the backend's own."""
        return self._nodes.get(name) or self.find(name)

    def _names(self) -> Iterable[str]:
        """Return the names that can be resolved, to find one that is close to a slip."""
        return self._nodes

    def _check_open(self, what: object, act: str = "add") -> None:
        if self._finalized:
            named = what.name if isinstance(what, Node) else what
            name = named if isinstance(named, str) else getattr(what, "__name__", "op")
            raise GraphFinalizedError(
                f"cannot {act} {name!r}: the graph is finalized. {act.capitalize()} nodes "
                "before the session is made, or in a hook's begin()"
            )

    def _add(self, name: str, kind: NodeKind, source: Any = None) -> Node:
        self._check_open(name)
        name = checked_name(name, "a node's name")
        if name == XP:
            raise DuplicateNodeError(
                f"{XP!r} is reserved: an op's parameter of this name gets the backend's "
                "array namespace; call the node something else"
            )
        other = self._known(name)
        if other is not None:
            raise DuplicateNodeError(
                f"the graph has a node {name!r} already: {other!r}{owned_by(other.owner)}"
            )
        return self._note(name, kind, source, self._owner())

    def _note(
        self, name: str, kind: NodeKind, source: Any = None, owner: str | None = None
    ) -> Node:
        node = self._nodes[name] = Node(name, kind, source, self, owner)
        return node

    def _add_op(self, operation: Operation) -> Node:
        added: list[Node] = []
        try:
            added.append(self._add(operation.name, "op", operation))
            for _, output in operation.outputs:
                added.append(self._add(output, "output", operation))
        except GraphError:
            for node in added:
                del self._nodes[node.name]
            raise
        return added[0]


def _listing(names: Iterable[str]) -> str:
    """Return the names of a graph's nodes for a message, up to fifty of them."""
    first, more = [*itertools.islice(names, _MOST_LISTED)], "..."
    rest = [] if len(first) < _MOST_LISTED else [more]
    return f"; it has {', '.join([*map(repr, first), *rest])}"


def _wanted_by(asker: str) -> str:
    return f" (wanted by {asker})" if asker else ""


def checked_name(name: Any, what: str) -> str:
    """Return a name as a plain str.

    Raises:
        GraphError: it is not a non-empty str.
    """
    plain = plain_name(name) if isinstance(name, str) else ""
    if not plain:
        raise GraphError(f"{what} is {spelled(name)}; expected a non-empty str")
    return plain
