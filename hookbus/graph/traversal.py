"""Answers questions about a graph: what a node needs, and which nodes train."""

from __future__ import annotations

from collections.abc import Iterable

from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.operation import Operation


def loop_ops(graph: Graph) -> list[Node]:
    """Return the train ops of a graph that ``session.loop()`` runs."""
    return [n for n in graph.nodes.values() if n.kind == "op" and n.source.in_loop]


def inputs_of(graph: Graph, nodes: Iterable[Node]) -> set[str]:
    """Return the names of the inputs that some nodes need, directly or not."""
    return {node.name for node in _needed(graph, nodes) if node.kind == "input"}


def ops_of(graph: Graph, nodes: Iterable[Node]) -> list[Operation]:
    """Return each op that a run of some nodes calls, if it is fed placeholders only."""
    return [node.source for node in _needed(graph, nodes) if node.kind == "op"]


def _needed(graph: Graph, nodes: Iterable[Node]) -> list[Node]:
    """Return some nodes and all that they read, directly or not, each once."""
    found = {node.name: node for node in nodes}
    waiting = list(found.values())
    while waiting:
        for name in waiting.pop().reads:
            if name not in found:
                found[name] = graph.resolve(name)
                waiting.append(found[name])
    return list(found.values())
