"""Answers questions about a graph: the needs of a node, and the nodes that train.

Reading an output of a train op does not run the op. So such an output needs no other node
in the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hookbus.graph.graph import Graph
from hookbus.graph.node import Node


def loop_ops(graph: Graph) -> list[Node]:
    """Return the train ops of a graph that ``session.loop()`` runs."""
    return [n for n in graph.nodes.values() if n.kind == "op" and n.source.in_loop]


def inputs_of(graph: Graph, nodes: Iterable[Node]) -> set[str]:
    """Return the names of the inputs that some nodes need, directly or not."""
    return {node.name for node in needed_by(graph, nodes) if node.kind == "input"}


def needs(graph: Graph, node: Node, name: str, fed: Collection[str] = ()) -> bool:
    """Return whether a run of *node* needs the node called *name*."""
    return any(found.name == name for found in needed_by(graph, [node], fed))


def is_train_output(node: Node) -> bool:
    """Return whether a node is an output of a train op."""
    return node.kind == "output" and bool(node.source.trains)


def needed_by(graph: Graph, nodes: Iterable[Node], fed: Collection[str] = ()) -> list[Node]:
    """Return the nodes that a run of some nodes needs and is not fed, each once.

    Args:
        graph: the graph.
        nodes: the nodes to run; they are among the result.
        fed: the names of the nodes that the run is fed.
    """
    found = {node.name: node for node in nodes if node.name not in fed}
    waiting = list(found.values())
    while waiting:
        node = waiting.pop()
        for name in () if is_train_output(node) else node.reads:
            if name not in found and name not in fed:
                found[name] = graph.resolve(name)
                waiting.append(found[name])
    return list(found.values())
