"""What a traced run records of each of its ops: when it ran, and what it read and gave."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Literal

import attrs

from hookbus.inputs import Input
from hookbus.operation import XP, Operation
from hookbus.program import Program


@attrs.frozen
class ValueRecord:
    """What is known of the value that a node had in one run, without the value.

    Attributes:
        name: the node's name.
        type: the dtype of an array, like ``float32``; else the name of the value's class.
        shape: that of an array; ``()`` for anything else.
        nbytes: its size in bytes, where the value tells it.

    >>> ValueRecord.of("x", memoryview(b"abc"))
    ValueRecord(name='x', type='memoryview', shape=(3,), nbytes=3)
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    nbytes: int | None = None

    @classmethod
    def of(cls, name: str, value: Any) -> ValueRecord:
        """Look at a value; it may be anything, and call anything its ``shape``."""
        dtype, shape = _part(value, "dtype"), _part(value, "shape")
        return cls(
            name,
            type(value).__name__ if dtype is None else _spelled(dtype),
            _sizes(shape) if isinstance(shape, tuple) else (),
            _size(_part(value, "nbytes")),
        )


@attrs.frozen
class OpRecord:
    """One op of a traced run, or one value taken from an input.

    Attributes:
        name: the node's name.
        kind: ``op`` or ``input``.
        start: when it began, in seconds of ``time.perf_counter``.
        seconds: how long it took.
        inputs: the values that it read, each once.
        outputs: the values that it computed, for whoever reads its nodes.
        updates: the values that it gives variables when the run is over.
    """

    name: str
    kind: Literal["op", "input"]
    start: float
    seconds: float
    inputs: tuple[ValueRecord, ...] = ()
    outputs: tuple[ValueRecord, ...] = ()
    updates: tuple[ValueRecord, ...] = ()


class Recording:
    """Records what the embedded backend does in one run.

    Args:
        fed: the names of the nodes that are fed, which no op of the run computes.
    """

    def __init__(self, fed: Set[str]) -> None:
        self.ops: list[OpRecord] = []
        self.start = time.perf_counter()
        self._fed = fed

    @property
    def seconds(self) -> float:
        """How long it has gone on."""
        return time.perf_counter() - self.start

    def pull(self, name: str, source: Input) -> Any:
        """Take a value from an input, and record it."""
        start = time.perf_counter()
        value = source.pull()
        seconds = time.perf_counter() - start
        outputs = (ValueRecord.of(name, value),)
        self.ops.append(OpRecord(name, "input", start, seconds, outputs=outputs))
        return value

    def recorded(self, program: Program) -> Program:
        """Return a program that does the same and has each op recorded that went well."""
        calls = tuple((self._recorded(call[0]), *call[1:]) for call in program.calls)
        return attrs.evolve(program, calls=calls)

    def _recorded(self, operation: Operation) -> Operation:
        def call(*values: Any) -> Any:
            start = time.perf_counter()
            returned = operation.call(*values)
            seconds = time.perf_counter() - start
            self.ops.append(self._record(operation, start, seconds, values, returned))
            return returned

        return attrs.evolve(operation, call=call)

    def _record(
        self,
        operation: Operation,
        start: float,
        seconds: float,
        values: Sequence[Any],
        returned: Any,
    ) -> OpRecord:
        read = dict(zip(operation.reads, values, strict=True))
        read.pop(XP, None)
        given, updates = _given(operation, returned)
        for name in self._fed & given.keys():
            del given[name]  # whoever reads the node gets what is fed
        name, parts = operation.name, map(_values, (read, given, updates))
        return OpRecord(name, "op", start, seconds, *parts)


def _given(operation: Operation, returned: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the values that an op computed, by node, and its updates, by variable."""
    if not operation.trains and not operation.outputs:
        return {operation.name: returned}, {}
    updates, results = operation.unpack(returned)
    return {node: results[key] for key, node in operation.outputs}, updates


def _values(values: Mapping[str, Any]) -> tuple[ValueRecord, ...]:
    return tuple(ValueRecord.of(name, value) for name, value in values.items())


def _part(value: Any, name: str) -> Any:
    """Return an attribute; a value that cannot tell it is no reason for a run to fail."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a shape as plain ints; none where one is unknown."""
    sizes = [_size(size) for size in shape]
    return tuple(size for size in sizes if size is not None) if None not in sizes else ()


def _size(size: Any) -> int | None:
    try:
        return operator.index(size)
    except TypeError:
        return None


def _spelled(dtype: Any) -> str:
    try:
        return _spelling(dtype)
    except TypeError:  # it has no hash
        return str(dtype)


@lru_cache  # NumPy takes longer to spell a dtype than for a small op
def _spelling(dtype: Any) -> str:
    return str(dtype)
