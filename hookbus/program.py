"""What one request needs of a graph, in which order: a plan that is made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from hookbus.errors import UnfedPlaceholderError, WriteConflictError
from hookbus.graph import GLOBAL_STEP, Graph
from hookbus.operation import XP, Operation

Call: TypeAlias = tuple[Operation, tuple[int, ...], int, tuple[tuple[str, int], ...]]
"""An op, the slots of its arguments, its own slot, and (key, slot) of its outputs."""


@attrs.frozen(eq=False)
class Program:
    """How to run one set of fetches with one set of feeds: a plan over numbered slots.

    Attributes:
        size: how many slots there are.
        variables, feeds, inputs: (slot, name) to fill before the ops run.
        step_slot: the slot of ``global_step``, or None.
        xp_slot: the slot of the array namespace, or None.
        calls: the ops, in order.
        results: the slots of the fetches, in their order.
        writers: variable to the op that writes it.
        increment: what the run adds to the global step.
    """

    size: int
    variables: tuple[tuple[int, str], ...]
    feeds: tuple[tuple[int, str], ...]
    inputs: tuple[tuple[int, str], ...]
    step_slot: int | None
    xp_slot: int | None
    calls: tuple[Call, ...]
    results: tuple[int, ...]
    writers: Mapping[str, str]
    increment: int


def plan(graph: Graph, fetches: Sequence[str], feeds: frozenset[str]) -> Program:
    """Plan a run of the nodes named *fetches*, with those named *feeds* fed.

    Raises:
        UnfedPlaceholderError: a placeholder is needed and not fed.
        WriteConflictError: two ops of the run update one variable.
    """
    return _Planner(graph, feeds).plan(fetches)


class _Planner:
    """Finds what a request needs, depth first, and numbers it."""

    def __init__(self, graph: Graph, fed: frozenset[str]) -> None:
        self._graph = graph
        self._fed = fed
        self._slots: dict[str, int] = {}
        self._leaves: dict[str, list[tuple[int, str]]] = {
            kind: [] for kind in ("variable", "input", "feed")
        }
        self._calls: list[Call] = []
        self._writers: dict[str, str] = {}

    def plan(self, fetches: Sequence[str]) -> Program:
        results = tuple(self._slot(name, ()) for name in fetches)
        variables = self._leaves["variable"]
        return Program(
            size=len(self._slots),
            variables=tuple(pair for pair in variables if pair[1] != GLOBAL_STEP),
            feeds=tuple(self._leaves["feed"]),
            inputs=tuple(self._leaves["input"]),
            step_slot={name: slot for slot, name in variables}.get(GLOBAL_STEP),
            xp_slot=self._slots.get(XP),
            calls=tuple(self._calls),
            results=results,
            writers=self._writers,
            increment=sum(call[0].increment for call in self._calls),
        )

    def _slot(self, name: str, path: tuple[str, ...]) -> int:
        """Return the slot of a node, planning what it needs; *path* leads to it."""
        if name in self._slots:
            return self._slots[name]
        if name == XP:
            return self._new(XP)
        node = self._graph.resolve(name)
        if name in self._fed:
            return self._leaf("feed", name)
        if isinstance(node.source, Operation) and node.kind in ("op", "output"):
            self._call(node.source, (*path, name))
            return self._slots[name]
        if node.kind == "placeholder":
            raise UnfedPlaceholderError(_unfed(name, path))
        return self._leaf(node.kind, name)

    def _leaf(self, kind: str, name: str) -> int:
        slot = self._new(name)
        self._leaves[kind].append((slot, name))
        return slot

    def _new(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _call(self, operation: Operation, path: tuple[str, ...]) -> None:
        arguments = tuple(self._slot(read, path) for read in operation.reads)
        for variable in operation.updates:
            other = self._writers.setdefault(variable, operation.name)
            if other != operation.name:
                raise WriteConflictError(
                    f"variable {variable!r} is updated by two ops of one run: "
                    f"{other!r} and {operation.name!r}; fetch one of them"
                )
        # An output that is fed keeps what it is fed: its slot is another, unused one.
        outputs = tuple(
            (key, self._new(f" {node}" if node in self._fed else node))
            for key, node in operation.outputs
        )
        own = operation.name
        slot = self._new(f" {own}" if own in self._fed else own)
        self._calls.append((operation, arguments, slot, outputs))


def _unfed(name: str, path: tuple[str, ...]) -> str:
    if not path:
        return f"placeholder {name!r} is fetched but not fed; give it in feed_dict"
    chain = " <- ".join(map(repr, reversed(path)))
    return (
        f"placeholder {name!r} is not fed, and op {path[-1]!r} needs it "
        f"({name!r} <- {chain}); give it in feed_dict"
    )
