"""Divides the ops of a run into parts: compiled functions, and calls on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np

from hookbus.backend import Operation, Program, blame, on_host
from hookbus_jax import values
from hookbus_jax.values import Form

Slots: TypeAlias = list[Any]
Updates: TypeAlias = dict[str, Any]

_XP = "xp"
_COLLECTING = frozenset({"hookbus.metrics", "hookbus.summaries"})
"""The ops that only put values into dicts, for hooks; some values may be text."""


@attrs.frozen(eq=False)
class Call:
    """An op and its slots.

    Attributes:
        operation: the op.
        reads: the slots that it reads.
        own: its own slot.
        outputs: (key, slot) of its outputs.
    """

    operation: Operation
    reads: tuple[int, ...]
    own: int
    outputs: tuple[tuple[str, int], ...]

    @property
    def gives(self) -> tuple[int, ...]:
        """The slots that it fills."""
        return (self.own, *(slot for _, slot in self.outputs))

    @property
    def is_split(self) -> bool:
        """Whether its value is no array but consists of new values and outputs."""
        return self.operation.trains or bool(self.outputs)


class Part(Protocol):
    """Some ops of a run.

    Attributes:
        label: the names of the ops.
        reads: the slots that it reads.
        gives: the slots that it fills for others.
    """

    label: str
    reads: tuple[int, ...]
    gives: tuple[int, ...]

    def run(self, slots: Slots, updates: Updates) -> None:
        """Fill the slots of the ops, and add the new values of variables."""


def calls_of(program: Program, host_ops: frozenset[str]) -> list[tuple[bool, list[Call]]]:
    """Divide the ops of a plan: (whether they run on the host, the ops), in order.

    Ops on the host and compiled ones take turns. Each op runs in the first part that comes
    after the parts whose values it reads. So one compiled part is enough for all ops that
    do not wait for values of the host which wait for compiled ones.

    An op that only collects values is compiled if all of them are arrays for certain.
    """
    arrays = {slot for slot, _ in (*program.variables, *program.arrays)}
    places: dict[int, int] = {}
    parts: dict[int, list[Call]] = {}
    for (operation, _, own, outputs), reads in zip(
        program.calls, program.arguments, strict=True
    ):
        call = Call(operation, reads, own, outputs)
        place = max((places.get(slot, 0) for slot in reads), default=0)
        on_the_host = operation.name in host_ops
        if operation.name in _COLLECTING:
            on_the_host = not arrays.issuperset(reads)
        if not on_the_host:
            arrays.update(call.gives)
        if (place % 2 == 0) != on_the_host:
            place += 1
        parts.setdefault(place, []).append(call)
        places.update((slot, place) for slot in call.gives)
    return [(place % 2 == 0, parts[place]) for place in sorted(parts)]


def label_of(calls: Iterable[Call]) -> str:
    """Return the names of some ops."""
    return ", ".join(call.operation.name for call in calls)


def reads_of(calls: Iterable[Call]) -> tuple[int, ...]:
    """Return the slots that some ops read and do not fill themselves."""
    given = {slot for call in calls for slot in call.gives}
    return tuple(sorted({slot for call in calls for slot in call.reads} - given))


class HostPart:
    """Ops that run in Python, with NumPy arrays, and may return anything."""

    def __init__(self, calls: Sequence[Call], forms: Mapping[str, Form]) -> None:
        self.label = label_of(calls)
        self.reads = reads_of(calls)
        self.gives = tuple(slot for call in calls for slot in call.gives)
        self._calls = calls
        self._forms = forms

    def run(self, slots: Slots, updates: Updates) -> None:
        """Call each op."""
        for call in self._calls:
            given: Sequence[Any] = [slots[slot] for slot in call.reads]
            try:
                if call.operation.name not in _COLLECTING:
                    given = _with_numpy(call.operation, on_host(given))
                returned = call.operation.call(*given)
                if call.is_split:
                    returned = self._split(call, returned, slots, updates)
            except BaseException as error:
                name = f"op {call.operation.name!r}"
                blame(error, name, f"raised in {name}")
                raise
            slots[call.own] = returned

    def _split(self, call: Call, returned: Any, slots: Slots, updates: Updates) -> Any:
        news, results = call.operation.unpack(returned)
        for name, value in news.items():
            form = self._forms[name]
            leaves = form.leaves(value, name, f"op {call.operation.name!r}")
            updates[name] = form.tree.unflatten(map(values.owned, leaves, form.dtypes))
        for key, slot in call.outputs:
            slots[slot] = results[key]
        return dict(results) if call.outputs else None


def _with_numpy(operation: Operation, given: Sequence[Any]) -> Sequence[Any]:
    if _XP not in operation.reads:
        return given
    return [
        np if name == _XP else value
        for name, value in zip(operation.reads, given, strict=True)
    ]
