"""Answers questions about the nodes of a graph: what they need, and which of them train."""

from __future__ import annotations

from collections.abc import Iterable

from hookbus import Graph, Node
from hookbus.backend import Operation, needed_by


def inputs_of(graph: Graph, nodes: Iterable[Node]) -> set[str]:
    """Return the names of the inputs that some nodes need, directly or not."""
    return {node.name for node in needed_by(graph, nodes) if node.kind == "input"}


def train_outputs_of(graph: Graph, nodes: Iterable[Node]) -> set[str]:
    """Return the names of the outputs of train ops that some nodes need."""
    outputs = (node for node in needed_by(graph, nodes) if node.kind == "output")
    return {node.name for node in outputs if node.source.trains}


def ops_of(graph: Graph, nodes: Iterable[Node]) -> list[Operation]:
    """Return each op that a run of some nodes calls if it is fed placeholders only."""
    return [node.source for node in needed_by(graph, nodes) if node.kind == "op"]


def op_behind(graph: Graph, node: Node) -> Node:
    """Return the op of an output; return any other node as it is."""
    return graph.resolve(node.source.name) if node.kind == "output" else node
