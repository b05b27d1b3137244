"""Shows a ``tf.Graph`` and the ``tf.compat.v1.Session`` that runs it to hooks.

The loop that owns the session runs the steps. hookbus only reads and writes between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import tensorflow as tf

from hookbus import GraphError
from hookbus.backend import (
    PREEMPTION_ERRORS,
    EmbeddedSession,
    Graph,
    LiveValue,
    Node,
    Program,
    RunMetadata,
    RunOptions,
)

v1: Any = tf.compat.v1


class BusGraph(Graph):
    """The nodes of a ``tf.Graph``: each op, tensor and global variable by its name.

    ``loss`` and ``loss:0`` mean the first output of the op ``loss``; further outputs are
    nodes like ``split:1``. Tensors, operations and variables may stand in fetches and
    feeds.

    Args:
        tf_graph: the graph; the global step is made if it has none.
    """

    def __init__(self, tf_graph: tf.Graph) -> None:
        super().__init__()
        self.tf_graph = tf_graph
        with tf_graph.as_default():
            self.tf_step = v1.train.get_or_create_global_step()
        self.raw: Any = None
        self.tf_variables: dict[str, Any] = {}
        self._seen = 0
        self.look()

    def look(self) -> None:
        """Add the nodes that the ``tf.Graph`` has got since the last look."""
        for variable in self.tf_graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES):
            name = _plain(variable.name)
            if name not in self.tf_variables and variable is not self.tf_step:
                self.tf_variables[name] = variable
                value = LiveValue(partial(self.read, variable), partial(self.put, variable))
                self.native(name, value, is_variable=True)
        operations = self.tf_graph.get_operations()
        for operation in operations[self._seen :]:
            if operation.name not in self:
                self.native(operation.name, None)
            for output in operation.outputs[1:]:
                self.native(output.name, None)
        self._seen = len(operations)

    def element(self, name: str) -> Any:
        """Return what TensorFlow fetches and feeds for a node."""
        if name in self.tf_variables:
            return self.tf_variables[name]
        found = self.tf_graph.as_graph_element(name)
        outputs = getattr(found, "outputs", None)
        return outputs[0] if outputs else found

    def nodes_in(self, fetches: Any) -> list[str]:
        """Return the names of the nodes in what a program fetches from TensorFlow."""
        found: list[str] = []
        for thing in tf.nest.flatten(fetches):
            with contextlib.suppress(GraphError):
                node = self.resolve(thing)
                found.append(node.name)
        return found

    def read(self, thing: Any) -> Any:
        """Return the value of a variable, or of several."""
        return self.raw.run(thing)

    def put(self, variable: Any, value: Any) -> None:
        """Give a variable a value."""
        self.raw.run(variable.initializer, {variable.initializer.inputs[1]: value})

    def leaf(self, thing: Any) -> Node | None:
        """Return the node of a tensor, an operation or a variable; None for others."""
        name = getattr(thing, "name", None)
        known = isinstance(name, str) and getattr(thing, "graph", None) is self.tf_graph
        return self.resolve(name) if known else None

    def resolve(self, node: Any, asker: str = "") -> Node:
        """Return a node by its name, which may end in ``:0``, or by a thing of the graph.

        Raises:
            UnknownNodeError: the graph has no such node; close matches are listed.
        """
        return super().resolve(_plain(node) if isinstance(node, str) else node, asker)


@attrs.frozen(eq=False)
class BusProgram:
    """What to fetch from TensorFlow, and how to compute what hooks derive from it.

    Attributes:
        natives: the names of the values to fetch, and their things of the ``tf.Graph``.
        program: computes the fetches of hooks, fed with these values.
    """

    natives: Mapping[str, Any]
    program: Program


class BusSession(EmbeddedSession):
    """Reads and writes a ``tf.compat.v1.Session`` that a loop of TensorFlow runs.

    Args:
        graph: the nodes.
        raw: the session; its owner closes it.
    """

    def __init__(self, graph: BusGraph, raw: Any) -> None:
        self._step = 0
        self._tf, graph.raw = graph, None
        super().__init__(graph)
        self.preemption_errors = (
            *PREEMPTION_ERRORS,
            tf.errors.AbortedError,
            tf.errors.UnavailableError,
        )
        graph.raw = raw
        self._read_step: Callable[[], Any] = raw.make_callable(graph.tf_step)
        self.refresh()

    @property
    def label(self) -> str:
        """The version of TensorFlow."""
        return f"TensorFlow {tf.__version__}"

    @property
    def global_step(self) -> int:
        """TensorFlow's global step after the last step of the loop."""
        return self._step

    @global_step.setter
    def global_step(self, step: int) -> None:
        if step != self._step:
            self._tf.put(self._tf.tf_step, step)
        self._step = step

    def refresh(self) -> None:
        """Note that the loop has run a step."""
        self._step = int(self._read_step())
        self.version += 1

    def compile(  # type: ignore[override]
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> BusProgram:
        """Plan a run: one fetch from TensorFlow, and the ops of hooks on its values."""
        natives = self._natives((*fetches, *host), feeds)
        program = super().compile(fetches, feeds | natives.keys(), host)
        return BusProgram(natives, program)

    def execute(
        self,
        program: Any,
        feeds: Mapping[str, Any],
        writes: Mapping[str, tuple[str, Any]],
        options: RunOptions,
        metadata: RunMetadata,
    ) -> Sequence[Any]:
        """Fetch from TensorFlow with these feeds, and compute the rest."""
        values: Mapping[str, Any] = {}
        if program.natives:
            known = {name: feeds[name] for name in feeds if self._is_native(name)}
            given = {self._tf.element(name): value for name, value in known.items()}
            values = self._tf.raw.run(dict(program.natives), given)
        return super().execute(
            program.program, {**feeds, **values}, writes, options, metadata
        )

    def complete(self, program: BusProgram, values: Mapping[str, Any]) -> Sequence[Any]:
        """Return the values of the fetches, from the *natives* that the loop fetched."""
        return super().execute(program.program, values, {}, RunOptions(), RunMetadata())

    def variables(self) -> dict[str, Any]:
        """Return the value of each global variable by name, read at once."""
        own: dict[str, Any] = dict(self._values)
        values: Mapping[str, Any] = self._tf.read(self._tf.tf_variables)
        return own | dict(values)

    def _is_native(self, name: str) -> bool:
        node = self.graph.resolve(name)
        return node.kind == "native" or name in self._tf.tf_variables

    def _natives(self, names: Sequence[str], feeds: frozenset[str]) -> dict[str, Any]:
        """Return what a run of some nodes fetches from TensorFlow, by name."""
        found: dict[str, Any] = {}
        seen, waiting = set(feeds), list(names)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if self._is_native(name):
                found[name] = self._tf.element(name)
            else:
                waiting.extend(self.graph.resolve(name).reads)
        return found


def _plain(name: str) -> str:
    return name.removesuffix(":0")
