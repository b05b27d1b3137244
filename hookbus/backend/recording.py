"""Records each op of a traced run: its times, and the values it read and computed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from typing import Any

import attrs

from hookbus.backend.inputs import Input
from hookbus.backend.program import Program
from hookbus.backend.protocol import OpRecord, ValueRecord
from hookbus.graph.operation import XP, Operation


class Recording:
    """Records one run of the embedded backend.

    Args:
        fed: the names of the nodes that are fed, which no op of the run computes.
    """

    def __init__(self, fed: Set[str]) -> None:
        self.ops: list[OpRecord] = []
        self.start: float = time.perf_counter()
        self._fed = fed

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self.start

    def pull(self, name: str, source: Input) -> Any:
        """Pull a value from an input, and record it."""
        start = time.perf_counter()
        value = source.pull()
        seconds = time.perf_counter() - start
        outputs = (ValueRecord.of(name, value),)
        self.ops.append(OpRecord(name, "input", start, seconds, outputs=outputs))
        return value

    def recorded(self, program: Program) -> Program:
        """Return the same program, with each op recorded after it succeeded."""
        calls = tuple((self._recorded(call[0]), *call[1:]) for call in program.calls)
        return attrs.evolve(program, calls=calls)

    def _recorded(self, operation: Operation) -> Operation:
        def call(*values: Any) -> Any:
            start = time.perf_counter()
            returned = operation.call(*values)
            seconds = time.perf_counter() - start
            read = dict(zip(operation.reads, values, strict=True))
            read.pop(XP, None)
            given, updates = _given(operation, returned)
            for name in self._fed & given.keys():
                del given[name]  # readers of the node get the feed
            parts = map(_values, (read, given, updates))
            self.ops.append(OpRecord(operation.name, "op", start, seconds, *parts))
            return returned

        return attrs.evolve(operation, call=call)


def _given(operation: Operation, returned: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the values that an op computed, by node, and its updates, by variable."""
    if not operation.trains and not operation.outputs:
        return {operation.name: returned}, {}
    updates, results = operation.unpack(returned)
    return {node: results[key] for key, node in operation.outputs}, updates


def _values(values: Mapping[str, Any]) -> tuple[ValueRecord, ...]:
    return tuple(ValueRecord.of(name, value) for name, value in values.items())
