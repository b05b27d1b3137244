"""What ``learning.train`` promises: one node to fetch for a step, and where it stops.

The core takes part in the session for it, last of all, and nothing switches that off.
"""

from __future__ import annotations

from typing import Any

import attrs

from hookbus.arguments import check_whole
from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.graph import Graph
from hookbus.hook import SessionRunContext, SessionRunHook, SessionRunValues
from hookbus.hookspecs import hookimpl
from hookbus.node import Node
from hookbus.operation import Operation
from hookbus.program import plan

CALL = "learning.train()"
_BOTH = "hookbus.learning"


@attrs.define(eq=False)
class Steps(SessionRunHook):
    """Finds, or makes, the one node to fetch: it does a step and gives the loss.

    Attributes:
        graph: the graph.
        train_op: what has to be run.
        loss: the node of the loss.
        last: the global step to stop at; None for none.
        within: whether a run is a step, so that the one that reaches it stops.
        fetch: the one node.
    """

    graph: Graph
    train_op: Node
    loss: Node
    last: int | None
    within: bool = True
    fetch: Node = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.fetch = self.loss

    @classmethod
    def of(
        cls,
        train_op: Node | str,
        graph: Graph | None,
        loss: Node | str | None,
        number_of_steps: int | None,
    ) -> Steps:
        """Look the nodes up.

        Raises:
            UsageError: the train op is None or trains nothing, there is no graph or no
                loss, or the number is not above 0.
            UnknownNodeError, GraphError: a name is no node's, or a node another graph's.
        """
        if train_op is None:
            raise UsageError("train_op is None: is a return missing where it is made?")
        check_whole("number_of_steps", number_of_steps)
        if number_of_steps is not None and number_of_steps <= 0:
            raise UsageError(
                f"number_of_steps is above 0, or None; given: {number_of_steps}"
            )
        graph = _graph_of(train_op, graph)
        node = graph.resolve(train_op, f"train_op of {CALL}")
        if not any(operation.trains for operation in _ops_of(graph, node)):
            raise UsageError(
                f"train_op is {node!r}, which trains nothing: make it with graph.train_op"
            )
        return cls(graph, node, _loss_of(graph, node, loss), number_of_steps)

    def begin(self, graph: Graph) -> None:
        """Make one node of two where the loss does not need the train op."""
        if self.train_op.source not in _ops_of(graph, self.loss):
            reads = {"done": self.train_op, "loss": self.loss}
            self.fetch = graph.op(_second, name=_BOTH, reads=reads)

    @hookimpl
    def planned_last_step(self) -> int | None:
        """Tell where it stops."""
        return self.last

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop there."""
        if self.within and self.is_reached(run_values.global_step):
            run_context.request_stop(self.why)

    @property
    def why(self) -> str:
        """Why to stop there."""
        return f"step {self.last} is reached"

    def is_reached(self, step: int) -> bool:
        """Say whether a global step is where to stop, or beyond."""
        return self.last is not None and step >= self.last


def _second(done: None, loss: Any) -> Any:  # noqa: ARG001 (it is to be run)
    return loss


def _graph_of(train_op: Node | str, graph: Graph | None) -> Graph:
    if graph is None and isinstance(train_op, Node):
        graph = train_op.graph
    if graph is None:
        raise UsageError(f"train_op is {train_op!r}, which tells no graph: give graph=")
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(f"graph is a Graph, given: {graph!r}")
    return graph


def _loss_of(graph: Graph, train_op: Node, loss: Node | str | None) -> Node:
    """Find the loss: what is told, an op's own value, ``loss``, or the only output."""
    if loss is not None:
        return graph.resolve(loss, f"loss of {CALL}")
    if train_op.kind != "op" or not train_op.source.trains:
        return train_op
    outputs = [name for _, name in train_op.source.outputs]
    if "loss" in graph or len(outputs) == 1:
        return graph.resolve("loss" if "loss" in graph else outputs[0])
    raise UsageError(
        f"what is the loss of {train_op.name!r}? The graph has no node 'loss': give loss=, "
        "or make the train op with outputs=['loss']"
    )


def _ops_of(graph: Graph, node: Node) -> list[Operation]:
    """Return the ops that a run of a node calls, whatever is fed."""
    nodes = graph.nodes.values()
    fed = frozenset(other.name for other in nodes if other.kind == "placeholder")
    return [call[0] for call in plan(graph, [node.name], fed).calls]
