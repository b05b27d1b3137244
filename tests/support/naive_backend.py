"""A backend of another package: it computes values by name, and keeps them on a "device".

It uses nothing of hookbus but public names. A value on its device is a :class:`Remote`;
ops compute with what is inside. What hooks ask for arrives on the host in one transfer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

import hookbus
from hookbus import backend


@attrs.frozen(eq=False)
class Remote:
    """A value on the device."""

    value: Any

    def __float__(self) -> float:
        return float(self.value)


class NaiveSession(backend.SessionBase):
    """Runs a graph, op by op."""

    label, xp = "naive", np

    def __init__(self, graph: hookbus.Graph) -> None:
        self.graph, self.global_step, self.version = graph, 0, 0
        self.transfers, self._closed = 0, False
        self._memory = {n.name: Remote(copy.deepcopy(n.source)) for n in graph.variables}
        self._last: dict[str, Any] = {}
        nodes = graph.nodes.values()
        self._inputs = {
            n.name: backend.Input(n.name, n.source) for n in nodes if n.kind == "input"
        }

    def compile(
        self, fetches: Sequence[str], feeds: frozenset[str], host: Sequence[str] = ()
    ) -> tuple[backend.Program, int]:
        return backend.plan(self.graph, (*fetches, *host), feeds), len(fetches)

    def execute(self, execution: backend.Execution) -> Sequence[Any]:
        if self._closed:
            raise hookbus.errors.SessionClosedError("the session is closed")
        (made, kept), writes = execution.program, execution.writes
        for name in writes.keys() & made.writers.keys():
            raise hookbus.errors.WriteConflictError(
                f"{writes[name][0]} and an op write {name!r}"
            )
        slots, news = self._filled(made, execution.feeds), {}
        for operation, pick, own, outputs in made.calls:
            returned = operation.call(*pick(slots))
            if operation.trains or outputs:
                updates, results = operation.unpack(returned)
                news.update(updates)
                for key, slot in outputs:
                    slots[slot] = results[key]
                returned = dict(results) or None
            slots[own] = returned
        if execution.options.trace_level > 0:
            execution.metadata.native = {"ops": len(made.calls)}
        self.write({**{name: value for name, (_, value) in writes.items()}, **news})
        self._last.update((name, slots[slot]) for slot, name in made.trained)
        self.global_step += made.increment
        values = made.pick_results(slots)
        self.transfers += len(values) > kept
        given = [None if value is None else Remote(value) for value in values[:kept]]
        return [*given, *values[kept:]]

    def _filled(self, made: backend.Program, feeds: Mapping[str, Any]) -> list[Any]:
        slots: list[Any] = [None] * made.size
        for slot, name in (*made.variables, *made.arrays):
            slots[slot] = copy.deepcopy(self._memory[name].value)
        for slot, name in made.feeds:
            slots[slot] = feeds[name]
        for slot, value in ((made.step_slot, self.global_step), (made.xp_slot, np)):
            if slot is not None:
                slots[slot] = value
        for slot, name, op, key in made.last_outputs:
            if op not in self._last:
                raise hookbus.errors.NoValueYetError(f"{name!r} has no value yet", name)
            slots[slot] = self._last[op][key]
        pulled: list[tuple[backend.Input, Any]] = []
        for slot, name in made.inputs:
            try:
                slots[slot] = self._inputs[name].pull()
            except hookbus.OutOfRangeError:
                for other, value in pulled:
                    other.put_back(value)
                raise
            pulled.append((self._inputs[name], slots[slot]))
        return slots

    def check(self, name: str, value: Any, who: str) -> None:
        old = self._memory.get(name)
        if old is None or np.shape(old.value) != np.shape(value):
            raise hookbus.GraphError(f"{who} cannot write {name!r}")

    def write(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.check(name, value, "write()")
        self._memory.update({name: Remote(copy.deepcopy(v)) for name, v in values.items()})
        self.version += bool(values)

    def variables(self) -> dict[str, Any]:
        return {name: copy.deepcopy(each.value) for name, each in self._memory.items()}

    def fork(self, inputs: Any = "copy") -> NaiveSession:
        other = NaiveSession(self.graph)
        other._inputs = backend.fork_inputs(self._inputs, inputs)
        other._memory, other._last = dict(self._memory), dict(self._last)
        other.global_step, other.version = self.global_step, self.version
        return other

    def close(self) -> None:
        self._closed = True


class NaiveGraph(hookbus.Graph):
    """A graph that runs on it."""

    backend = NaiveSession
