"""What a program consists of: named nodes, what each reads, and when no more may come.

A graph holds no values; a session does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from hookbus.errors import GraphError
from hookbus.graph.base import BaseGraph
from hookbus.graph.node import METRICS, SUMMARIES, Node, metrics_of
from hookbus.graph.operation import XP, Operation, describe, reads_of
from hookbus.graph.summaries import Summaries, collecting, scalars_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Graph(BaseGraph):
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
        super().__init__()
        self.summary: Summaries[Node | str] = Summaries(self._summarize)

    @property
    def metrics(self) -> Node | None:
        """What hooks watch when they are told no names.

        A node whose value is a dict of ``loss`` and ``accuracy``, those of the two that the
        graph has, and of the scalars among its summaries; None where there is none of
        these. It is made at the first need, so ask for it in ``begin``.
        """
        names = metrics_of(self._nodes)
        nodes = {**dict(zip(names, names, strict=True)), **scalars_of(self._declared)}
        if METRICS in self._nodes or not nodes:
            return self._nodes.get(METRICS)

        def collect(*values: Any) -> dict[str, Any]:
            return dict(zip(nodes, values, strict=True))

        return self._add_op(Operation(METRICS, collect, tuple(nodes.values())))

    @property
    def summaries(self) -> Node | None:
        """What was declared with :attr:`summary`, for hooks that record it.

        A node whose value is a dict, kind to name to value; None where nothing was
        declared. Hooks may still declare something in ``begin``, so ask for it in
        ``after_create_session``.

        Raises:
            GraphError: the graph is not finalized yet.
        """
        self._check_finalized()
        if SUMMARIES in self._nodes or not self._declared:
            return self._nodes.get(SUMMARIES)
        return self._note(SUMMARIES, "op", collecting(self._declared))

    def placeholder(self, name: str) -> Node:
        """Add a node whose value each run that needs it must feed."""
        return self._add(name, "placeholder")

    def variable(self, name: str, value: Any, *, saved: bool = True) -> Node:
        """Add a node that keeps its value from run to run.

        Args:
            name: the node's name.
            value: the initial value, an array of any shape or a number; copied when a
                session starts, so a graph can serve several sessions.
            saved: whether checkpoints hold it; one that they do not begins anew in every
                backend session, like TensorFlow's local variables.

        Raises:
            GraphError: the value is a container, which an op could change unseen.
        """
        if isinstance(value, (list, tuple, dict, set, bytearray)):
            raise GraphError(
                f"variable {name!r} is given a {type(value).__name__}; give an array, a "
                "number, or several variables"
            )
        node = self._add(name, "variable", value)
        if not saved:
            self._unsaved.add(name)
        return node

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


def _words(outputs: Iterable[str] | str) -> tuple[str, ...]:
    return (outputs,) if isinstance(outputs, str) else tuple(outputs)
