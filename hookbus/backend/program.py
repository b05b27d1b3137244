"""Plans a run: the nodes that a request needs of a graph, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from hookbus.errors import UnfedPlaceholderError, WriteConflictError
from hookbus.graph.fetches import picker
from hookbus.graph.graph import Graph
from hookbus.graph.node import GLOBAL_STEP, Node
from hookbus.graph.operation import XP, Operation
from hookbus.graph.traversal import is_train_output, needed_by
from hookbus.library.base import LiveValue, capturing
from hookbus.library.lookup import knows_a_library, on_host

Pick: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the values of all slots and returns some of them, in order."""

LastOutput: TypeAlias = tuple[int, str, str, str]
"""A slot to fill, the name of its node, and the train op and key of the output."""

Call: TypeAlias = tuple[Operation, Pick, int, tuple[tuple[str, int], ...]]
"""An op, the function that picks its arguments, its slot, and its outputs' (key, slot)."""

_MOST_LINKS = 20
"""The number of nodes that a message names on the way from a placeholder to a fetch."""


@attrs.frozen(eq=False)
class Program:
    """A plan for one set of fetches with one set of feeds, over numbered slots.

    To run it, make a list of *size* slots and fill those of *variables*, *arrays*, *feeds*,
    *inputs*, *last_outputs*, *step_slot* and *xp_slot*. For each of *calls*, put the result
    of ``operation.call(*pick(slots))`` into the op's own slot. If the op trains or has
    outputs, ``operation.unpack`` splits the result into new values of variables and values
    of outputs. The call has the key and the slot of each output; the op's own slot gets the
    dict of outputs, or None. Then commit the new values, keep the slots of the *trained*
    ops, add *increment* to the global step, and return ``pick_results(slots)``.

    Attributes:
        size: the number of slots.
        variables, arrays, feeds, inputs: (slot, name) to fill before the ops run; arrays
            are the variables that could be changed in place.
        step_slot: the slot of ``global_step``, or None.
        last_outputs: the outputs that are read of train ops which do not run.
        xp_slot: the slot of the array namespace, or None.
        calls: the ops, in order. A value that lives in an object is an op that reads the
            object. For a fetch, this op comes after the train ops of the run, which may
            change the object in place.
        arguments: the slots that each of *calls* reads.
        results: the slots of the fetches, in their order.
        moved: how many of the last fetches are moved to the host, because libraries with
            values elsewhere are known.
        pick_results: takes the values of all slots and returns those of the fetches, with
            those for hooks on the host.
        trained: (slot, name) of the train ops that run and have outputs.
        writers: variable to the op that writes it.
        increment: the number of steps that the run adds to the global step.
        pure: whether all ops only compute.
    """

    size: int
    variables: tuple[tuple[int, str], ...]
    arrays: tuple[tuple[int, str], ...]
    feeds: tuple[tuple[int, str], ...]
    inputs: tuple[tuple[int, str], ...]
    last_outputs: tuple[LastOutput, ...]
    step_slot: int | None
    xp_slot: int | None
    calls: tuple[Call, ...]
    arguments: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]
    moved: int
    pick_results: Pick
    trained: tuple[tuple[int, str], ...]
    writers: Mapping[str, str]
    increment: int
    pure: bool


def is_live(node: Node) -> bool:
    """Return whether the value of a node lives in an object outside the session."""
    return isinstance(node.source, LiveValue)


def shared_in(graph: Graph, node: Node) -> str | None:
    """Return the name of a value that a node needs and all processes read together."""
    needed = (each for each in needed_by(graph, [node]) if is_live(each))
    return next((each.name for each in needed if each.source.is_shared), None)


def plan(
    graph: Graph, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
) -> Program:
    """Plan a run that fetches the nodes named *fetches* and feeds those named *feeds*.

    Args:
        graph: the graph.
        fetches: the names of the nodes to fetch.
        feeds: the names of the nodes to feed.
        host: the names of further nodes to fetch, whose values are moved to the host.

    Raises:
        UnfedPlaceholderError: a needed placeholder is not fed.
        WriteConflictError: two ops of the run update one variable.
    """
    # Without a plugin for a library that has values elsewhere, all are on the host.
    moved = len(host) if knows_a_library() else 0
    wanted = tuple(
        name if name == XP else graph.fetched(name) for name in (*fetches, *host)
    )
    return _Planner(graph, feeds).plan(wanted, moved)


def _moving(pick: Pick, moved: int) -> Pick:
    """Return a function that picks values and moves the last ones to the host."""
    if not moved:
        return pick

    def pick_and_move(slots: Sequence[Any]) -> Sequence[Any]:
        values = pick(slots)
        kept = len(values) - moved
        return (*values[:kept], *on_host(values[kept:]))

    return pick_and_move


class _Planner:
    """Finds the nodes that a request needs, depth first, and numbers them."""

    def __init__(self, graph: Graph, fed: frozenset[str]) -> None:
        self._graph = graph
        self._fed = fed
        self._slots: dict[str, int] = {}
        self._leaves: dict[str, list[tuple[int, str]]] = {
            kind: [] for kind in ("variable", "array", "input", "feed")
        }
        self._last_outputs: list[LastOutput] = []
        self._live: list[LiveValue] = []
        self._running: frozenset[str] = frozenset()
        self._calls: list[Call] = []
        self._arguments: list[tuple[int, ...]] = []
        self._writers: dict[str, str] = {}
        self._readers: dict[str, str] = {}

    def plan(self, fetches: Sequence[str], moved: int) -> Program:
        nodes = [self._graph.resolve(name) for name in fetches if name != XP]
        needed = needed_by(self._graph, nodes, self._fed)
        called = [node.source for node in needed if node.kind == "op"]
        self._running = frozenset(operation.name for operation in called)
        live = self._live = [node.source for node in needed if is_live(node)]
        first = [operation.name for operation in called if operation.trains and live]
        for name in (*first, *fetches):
            self._visit(name)
        results = tuple(self._slots[name] for name in fetches)
        variables = self._leaves["variable"]
        return Program(
            size=len(self._slots),
            variables=tuple(pair for pair in variables if pair[1] != GLOBAL_STEP),
            arrays=tuple(self._leaves["array"]),
            feeds=tuple(self._leaves["feed"]),
            inputs=tuple(self._leaves["input"]),
            last_outputs=tuple(self._last_outputs),
            step_slot={name: slot for slot, name in variables}.get(GLOBAL_STEP),
            xp_slot=self._slots.get(XP),
            calls=tuple(self._calls),
            arguments=tuple(self._arguments),
            results=results,
            moved=moved,
            pick_results=_moving(picker(results), moved),
            trained=tuple(
                (slot, operation.name)
                for operation, _, slot, outputs in self._calls
                if operation.trains and outputs
            ),
            writers=self._writers,
            increment=sum(call[0].increment for call in self._calls),
            pure=all(call[0].pure for call in self._calls),
        )

    def _visit(self, root: str) -> None:
        """Give a slot to each node that a node needs, and then to the node itself."""
        open_nodes = [root]
        while open_nodes:
            name = open_nodes[-1]
            operation = None if name in self._slots else self._operation(name)
            if operation is None:
                open_nodes.pop()
                continue
            missing = [read for read in operation.reads if read not in self._slots]
            if not missing:
                self._call(operation)
            for read in reversed(missing):
                self._readers[read] = name
                open_nodes.append(read)

    def _operation(self, name: str) -> Operation | None:
        """Return the op that computes a node; give any other node its slot."""
        if name == XP:
            self._new(XP)
            return None
        node = self._graph.resolve(name)
        kind, source = node.kind, node.source
        if name in self._fed:
            self._leaves["feed"].append((self._new(name), name))
        elif isinstance(source, Operation):
            if not is_train_output(node) or source.name in self._running:
                return self._graph.wired(source)
            key = next(key for key, output in source.outputs if output == name)
            self._last_outputs.append((self._new(name), name, source.name, key))
        elif is_live(node):
            return Operation(name, source.get, (), pure=True)
        elif kind == "placeholder":
            raise UnfedPlaceholderError(self._unfed(name), name)
        else:
            is_array = kind == "variable" and hasattr(source, "setflags")
            leaves = self._leaves["array" if is_array else kind]
            leaves.append((self._new(name), name))
        return None

    def _new(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _call(self, operation: Operation) -> None:
        for variable in operation.updates:
            other = self._writers.setdefault(variable, operation.name)
            if other != operation.name:
                first, second = map(self._graph.resolve, (other, operation.name))
                raise WriteConflictError(
                    f"two ops update variable {variable!r} in one run: {first.label} and "
                    f"{second.label}; fetch one of them"
                )
        reads = tuple(self._slots[read] for read in operation.reads)
        # A node that is fed keeps what it is fed: the op's result goes to an unused slot.
        outputs = tuple(
            (key, self._new(f" {node}" if node in self._fed else node))
            for key, node in operation.outputs
        )
        own = operation.name
        slot = self._new(f" {own}" if own in self._fed else own)
        if operation.trains and self._live:
            operation = attrs.evolve(operation, call=capturing(operation.call, self._live))
        self._calls.append((operation, picker(reads), slot, outputs))
        self._arguments.append(reads)

    def _unfed(self, name: str) -> str:
        chain = [name]
        while chain[-1] in self._readers:
            chain.append(self._readers[chain[-1]])
        if len(chain) == 1:
            return f"placeholder {name!r} is fetched but not fed; give it in feed_dict"
        reader = self._graph.resolve(chain[1]).source.name
        links = [*map(repr, chain)]
        if len(links) > _MOST_LINKS:
            links[_MOST_LINKS // 2 : -_MOST_LINKS // 2] = ["..."]
        return (
            f"placeholder {name!r} is not fed, and op {reader!r} needs it "
            f"({' <- '.join(links)}); give it in feed_dict"
        )
