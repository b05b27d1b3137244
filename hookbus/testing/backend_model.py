"""Builds the graphs of the suite for backends."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from hookbus.graph.graph import Graph

Sum: TypeAlias = Sequence[str]
"""The names of nodes, whose values are added up."""


class BackendModel:
    """Builds the graphs of ``hookbus.testing.backend`` on one backend.

    The suite needs ops of a few kinds only, each of which has a method here. The methods
    add functions with ``graph.op`` and ``graph.train_op``. Derive from this class if your
    graph has ops of its own, if it cannot run such functions, or to declare a rule that the
    backend cannot keep. Give the class to the suite: ``--backend MODULE:CLASS``.

    Values are numbers and NumPy arrays. All values that the suite compares with a number
    are exact in float32.

    Args:
        graph: makes an empty graph of the backend.

    Attributes:
        exceptions: the rules that the backend cannot keep, each with the reason. A rule is
            called like its test, without ``test_``. The suite skips these rules and shows
            the reasons.

    >>> model = BackendModel()
    >>> graph = model.graph()
    >>> model.variable(graph, "w", 1.0)
    >>> model.input(graph, "x", lambda: [2.0, 3.0])
    >>> model.train_op(graph, "train", {"w": ["w", "x"]})
    >>> from hookbus.backend import create_session
    >>> session = create_session(graph)
    >>> session.run("train")
    >>> session.run("w"), session.global_step
    (3.0, 1)
    """

    exceptions: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(self, graph: Callable[[], Graph] = Graph) -> None:
        self._make = graph

    def graph(self) -> Graph:
        """Return an empty graph of the backend."""
        return self._make()

    def variable(self, graph: Graph, name: str, value: Any) -> None:
        """Add a variable and its initial value.

        Args:
            graph: the graph.
            name: the variable's name.
            value: a number or an array.
        """
        graph.variable(name, value)

    def placeholder(self, graph: Graph, name: str) -> None:
        """Add a placeholder for numbers or arrays.

        Args:
            graph: the graph.
            name: the placeholder's name.
        """
        graph.placeholder(name)

    def input(
        self, graph: Graph, name: str, factory: Callable[[], Iterable[float]]
    ) -> None:
        """Add an input, which gives a number in each run that needs it.

        Args:
            graph: the graph.
            name: the input's name.
            factory: returns the numbers; it is called at the beginning of each pass.
        """
        graph.input(name, factory)

    def op(self, graph: Graph, name: str, reads: Sum) -> None:
        """Add an op whose value is the sum of nodes.

        Args:
            graph: the graph.
            name: the op's name.
            reads: the names of the nodes to add up.
        """
        function = _Function(reads, lambda values: _total(values, reads))
        graph.op(function, name=name, reads=function.reads)

    def table(self, graph: Graph, name: str, values: Sequence[float]) -> None:
        """Add an op whose value is the entry at ``global_step``, or else the last one.

        Args:
            graph: the graph.
            name: the op's name.
            values: the numbers, one for each global step from 0 on.
        """
        last = len(values) - 1

        def entry(global_step: Any, xp: Any) -> Any:
            # Not min(): a backend may compile this, and then the step has no value yet.
            place = global_step * (global_step < last) + last * (global_step >= last)
            return xp.asarray(values)[place]

        graph.op(entry, name=name)

    def train_op(
        self,
        graph: Graph,
        name: str,
        updates: Mapping[str, Sum],
        outputs: Mapping[str, Sum] = MappingProxyType({}),
    ) -> None:
        """Add a train op that increments ``global_step`` by 1.

        Args:
            graph: the graph.
            name: the op's name.
            updates: variable to the sum that is its new value.
            outputs: name of an output node to the sum that is its value.
        """

        def compute(values: Mapping[str, Any]) -> Any:
            news, results = (
                {key: _total(values, names) for key, names in sums.items()}
                for sums in (updates, outputs)
            )
            return (news, results) if news and results else news or results or None

        function = _Function(itertools.chain(*updates.values(), *outputs.values()), compute)
        graph.train_op(
            function,
            name=name,
            reads=function.reads,
            updates=tuple(updates),
            outputs=tuple(outputs),
        )

    def call(self, graph: Graph, name: str, function: Callable[[], Any]) -> None:
        """Add an op that calls a Python function once in each run that needs the op.

        The value of the op is the result of the function, a number. An error of the
        function leaves the run.

        Args:
            graph: the graph.
            name: the op's name.
            function: a function without arguments that returns a number.
        """
        graph.op(function, name=name)


class _Function:
    """A function that reads nodes, with their values by name."""

    def __init__(
        self, reads: Iterable[str], compute: Callable[[Mapping[str, Any]], Any]
    ) -> None:
        self._names, self._compute = tuple(dict.fromkeys(reads)), compute
        self.reads = {f"value_{place}": name for place, name in enumerate(self._names)}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(parameter, kind) for parameter in self.reads]
        )

    def __call__(self, *values: Any) -> Any:
        return self._compute(dict(zip(self._names, values, strict=True)))


def _total(values: Mapping[str, Any], names: Sum) -> Any:
    return functools.reduce(operator.add, [values[name] for name in names])
