"""What of a graph a node needs: its inputs, and which nodes train."""

from __future__ import annotations

from collections.abc import Sequence

from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.operation import XP, Operation


def train_ops(graph: Graph) -> list[Node]:
    """Return the nodes of all train ops of a graph."""
    ops = [node for node in graph.nodes.values() if node.kind == "op"]
    return [node for node in ops if node.source.trains]


def inputs_of(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """Return the names of the inputs that some nodes need, directly or not."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [node.name for node in nodes]
    while waiting:
        name = waiting.pop()
        if name in seen or name == XP:
            continue
        seen.add(name)
        node = graph.resolve(name)
        if node.kind == "input":
            found.add(name)
        elif isinstance(node.source, Operation):
            waiting += node.source.reads
    return found
