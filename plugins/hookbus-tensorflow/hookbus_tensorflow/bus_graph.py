"""Shows a ``tf.Graph`` and the ``tf.compat.v1.Session`` that runs it to hooks.

The loop that owns the session runs the steps. hookbus only reads and writes between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hookbus import GraphError
from hookbus.backend import Execution, Graph
from hookbus_tensorflow import ops
from hookbus_tensorflow.graph import TFGraph
from hookbus_tensorflow.session import TFProgram, TFSession


class BusGraph(TFGraph):
    """A graph around a ``tf.Graph`` whose sessions others create and initialize."""

    def finalize(self) -> None:
        """Refuse nodes from now on, and leave the ``tf.Graph`` to its owner."""
        Graph.finalize(self)

    def steps_after(self) -> Mapping[Any, Any]:
        """Return no tensors: the step is read after each run of the loop."""
        return dict.fromkeys(ops.writers_of(self.step_variable))

    def nodes_in(self, fetches: Any) -> list[str]:
        """Return the names of the nodes that TensorFlow's fetches stand for."""
        found: list[str] = []
        for thing in tf.nest.flatten(fetches):
            with contextlib.suppress(GraphError):
                found.append(self.resolve(thing).name)
        return found


class BusSession(TFSession):
    """Reads and writes a ``tf.compat.v1.Session`` that a loop of TensorFlow runs.

    Args:
        graph: the nodes.
        raw: the session; its owner closes it.
    """

    def __init__(self, graph: BusGraph, raw: Any) -> None:
        self._read: Callable[[], Any] = raw.make_callable(graph.step_variable)
        super().__init__(graph, raw)

    def refresh(self) -> None:
        """Note that the loop has run a step."""
        self._step = self._read_step()
        self.version += 1

    def natives(self, program: TFProgram) -> dict[str, Any]:
        """Return a program's fetches for TensorFlow, by the names of the nodes."""
        elements = self.graph.elements_of(program.names)
        return {name: element.thing for name, element in elements.items()}

    def complete(self, program: TFProgram, values: Mapping[str, Any]) -> Sequence[Any]:
        """Return the values of the fetches, from those that the loop fetched, and feeds."""
        found = [values[name] for name in program.names]
        return self._finish(program, Execution(program, values), found)

    def _read_step(self) -> int:
        return int(self._read())
