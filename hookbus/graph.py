"""What a program consists of: named nodes, what each reads, and when no more may come.

A graph holds no values; a session does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from hookbus.errors import (
    DuplicateNodeError,
    GraphError,
    GraphFinalizedError,
    UnknownNodeError,
    did_you_mean,
)
from hookbus.node import GLOBAL_STEP, METRICS, Node, NodeKind, metrics_of
from hookbus.operation import XP, Operation, describe, reads_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Graph:
    """Nodes under names: placeholders, variables, inputs and ops.

    Every graph has the variable ``global_step``, a host int that the session counts:
    each train op of a run adds its increment.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> w = graph.variable("w", 2.0)
    >>> @graph.op
    ... def y(x, w):
    ...     return x * w
    >>> y
    <op 'y'>
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._finalized = False
        self._sessions = 0
        self._before: tuple[bool, frozenset[str]] = False, frozenset()
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
    def metrics(self) -> Node | None:
        """What hooks watch when they are told no names: ``loss`` and ``accuracy``.

        A node whose value is a dict of those of the two that the graph has; None where it
        has neither. It is made at the first need, so ask for it in ``begin``.
        """
        names = metrics_of(self._nodes)
        if METRICS in self._nodes or not names:
            return self._nodes.get(METRICS)

        def collect(*values: Any) -> dict[str, Any]:
            return dict(zip(names, values, strict=True))

        return self._add_op(Operation(METRICS, collect, names))

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def placeholder(self, name: str) -> Node:
        """Add a node whose value each run that needs it must feed."""
        return self._add(name, "placeholder")

    def variable(self, name: str, value: Any) -> Node:
        """Add a node that keeps its value from run to run.

        Args:
            name: the node's name.
            value: the initial value, an array of any shape or a number; copied when a
                session starts, so a graph can serve several sessions.

        Raises:
            GraphError: the value is a container, which an op could change unseen.
        """
        if isinstance(value, (list, tuple, dict, set, bytearray)):
            raise GraphError(
                f"variable {name!r} is given a {type(value).__name__}; give an array, a "
                "number, or several variables"
            )
        return self._add(name, "variable", value)

    def input(self, name: str, factory: Callable[[], Iterable[Any]]) -> Node:
        """Add a node that takes its next value from an iterator, once a run.

        Only runs that need the node pull a value. The end of the iterator is the end of
        input. A checkpoint holds the position; a resumed session calls *factory* again
        and skips as many values, or uses the iterator's own ``state_dict`` and
        ``load_state_dict`` where it has them.

        Args:
            name: the node's name.
            factory: returns the iterable; one with ``__len__`` tells how many runs it
                will last.
        """
        self._check_open(name)
        if not callable(factory):
            raise GraphError(
                f"input {name!r} takes a function that returns an iterable, "
                f"not {type(factory).__name__}: write lambda: ..."
            )
        return self._add(name, "input", factory)

    @overload
    def op(self, fn: Callable[..., Any]) -> Node: ...
    @overload
    def op(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        outputs: Iterable[str] | str = (),
    ) -> Node: ...
    @overload
    def op(
        self,
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        outputs: Iterable[str] | str = (),
    ) -> Callable[[Callable[..., Any]], Node]: ...
    def op(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        outputs: Iterable[str] | str = (),
    ) -> Node | Callable[[Callable[..., Any]], Node]:
        """Add a node computed from others; also a decorator.

        Args:
            fn: the function; each parameter names the node it reads. One with a default
                that names no node keeps its default; one called ``xp`` gets the
                backend's array namespace.
            name: the node's name, by default the function's.
            reads: parameter to node, for parameters that are not called like the node.
            outputs: names of several results; *fn* then returns a dict with these keys,
                or a tuple in this order, and the nodes are ``NAME.OUTPUT``.

        Raises:
            GraphFinalizedError: the graph is finalized.
            UnknownNodeError: a parameter names no node.
            DuplicateNodeError: the name is taken.
        """
        self._check_open(name or fn)
        if fn is None:
            return lambda function: self.op(
                function, name=name, reads=reads, outputs=outputs
            )
        own_name = name or describe(fn)
        pairs = [(key, f"{own_name}.{key}") for key in _words(outputs)]
        return self._add_op(
            Operation.of(own_name, fn, self._reads(own_name, fn, reads), outputs=pairs)
        )

    @overload
    def train_op(self, fn: Callable[..., Any]) -> Node: ...
    @overload
    def train_op(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        updates: Iterable[Node | str] | Node | str = (),
        outputs: Iterable[str] | str = (),
        increment: int = 1,
    ) -> Node: ...
    @overload
    def train_op(
        self,
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        updates: Iterable[Node | str] | Node | str = (),
        outputs: Iterable[str] | str = (),
        increment: int = 1,
    ) -> Callable[[Callable[..., Any]], Node]: ...
    def train_op(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        updates: Iterable[Node | str] | Node | str = (),
        outputs: Iterable[str] | str = (),
        increment: int = 1,
    ) -> Node | Callable[[Callable[..., Any]], Node]:
        """Add a node that updates variables and advances ``global_step``.

        Fetching it gives None, or the dict of its outputs where it has some. All updates
        of a run are committed together, when the whole run succeeded; every read sees the
        values from before.

        Args:
            fn: the function, as in :meth:`op`. It returns the new value, where *updates*
                is one name; a tuple of them or a dict by name, where it is several; with
                *updates* and *outputs* the pair ``(new values, {output: value})``; with
                *outputs* alone the dict.
            name: the node's name, by default the function's.
            reads: parameter to node.
            updates: the variable or variables it gives new values.
            outputs: names of nodes for further results, under just these names.
            increment: what a run adds to ``global_step``; those of one run add up.

        Raises:
            GraphFinalizedError, UnknownNodeError, DuplicateNodeError: as in :meth:`op`.
            GraphError: an update is no variable, or is the global step.
        """
        self._check_open(name or fn)
        if fn is None:
            return lambda function: self.train_op(
                function,
                name=name,
                reads=reads,
                updates=updates,
                outputs=outputs,
                increment=increment,
            )
        own_name = name or describe(fn)
        if not isinstance(increment, int) or increment < 0:
            raise GraphError(
                f"op {own_name!r}: increment is a whole number from 0 on, not {increment!r}"
            )
        one = isinstance(updates, str | Node)
        targets = (updates,) if isinstance(updates, str | Node) else tuple(updates)
        return self._add_op(
            Operation.of(
                own_name,
                fn,
                self._reads(own_name, fn, reads),
                outputs=[(key, key) for key in _words(outputs)],
                updates=[self.variable_named(v, f"op {own_name!r}") for v in targets],
                single_update=one,
                increment=increment,
                trains=True,
            )
        )

    def resolve(self, node: Node | str, asker: str = "") -> Node:
        """Return the node that *node* is or names.

        Args:
            node: a node of this graph, or a name.
            asker: who wants it, for the message.

        Raises:
            UnknownNodeError: no node has the name; close matches are listed.
            GraphError: the node belongs to another graph.
        """
        by = f" (wanted by {asker})" if asker else ""
        if isinstance(node, Node):
            if self._nodes.get(node.name) is not node:
                raise GraphError(f"{node!r} belongs to another graph{by}")
            return node
        found = self._nodes.get(node)
        if found is None:
            hint = did_you_mean(str(node), self._nodes) or self._listing()
            raise UnknownNodeError(f"the graph has no node {node!r}{by}{hint}")
        return found

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
            self._before = self._finalized, frozenset(self._nodes)
        self._sessions += 1

    def leave(self) -> None:
        """Undo what sessions did to the graph, once none of them is left.

        Nodes that were added since the first one began vanish, and so does its
        finalization.
        """
        self._sessions -= 1
        if self._sessions == 0:
            self._finalized, names = self._before
            for name in [name for name in self._nodes if name not in names]:
                del self._nodes[name]

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
        node = self._nodes[name] = Node(name, kind, source)
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

    def _reads(
        self,
        name: str,
        fn: Callable[..., Any],
        reads: Mapping[str, Node | str] | None,
    ) -> list[tuple[inspect.Parameter, str]]:
        """Find the node behind each parameter of an op."""
        found = []
        for parameter, wanted in reads_of(name, fn, reads or {}):
            if wanted == XP:
                found.append((parameter, XP))
            elif (
                parameter.default is parameter.empty
                or wanted in self._nodes
                or (reads and parameter.name in reads)
            ):
                node = self.resolve(wanted, f"parameter {parameter.name!r} of op {name!r}")
                found.append((parameter, node.name))
        return found

    def _listing(self) -> str:
        return f"; it has {', '.join(map(repr, self._nodes))}"


def _words(outputs: Iterable[str] | str) -> tuple[str, ...]:
    return (outputs,) if isinstance(outputs, str) else tuple(outputs)
