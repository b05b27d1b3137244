"""What a backend does for the loop, and what it records of a run."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

import attrs

from hookbus.errors import AbortedError, UnavailableError
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node


@attrs.frozen
class RunOptions:
    """How one run is executed.

    Attributes:
        trace_level: 0 (default) traces nothing; more fills the run's ``run_metadata``.
            ``RunOptions.FULL_TRACE`` asks for all that there is.
    """

    FULL_TRACE: ClassVar[int] = 3

    trace_level: int = 0

    def merge(self, other: RunOptions | None) -> RunOptions:
        """Return the stronger of both options, field by field (TF's rule: maximum)."""
        if other is None or other.trace_level <= self.trace_level:
            return self
        return other


class RunMetadata:
    """What a backend recorded about one run: nothing unless it was traced.

    Attributes:
        ops: each op and each value taken from an input, in the order in which they ended.
        start: when the backend began, in seconds of ``time.perf_counter``.
        seconds: how long it took.
    """

    # Every run makes one; defaults in the class take no Python call then.
    ops: Sequence[OpRecord] = ()
    start: float = 0.0
    seconds: float = 0.0


PREEMPTION_ERRORS = (AbortedError, UnavailableError)
"""What every backend may raise where it lost its machine, as in TensorFlow."""


class Session(Protocol):
    """One running graph, as the loop and the hooks see it, whatever the backend.

    The loop compiles each distinct request once and executes it each step. Nothing but
    the session itself touches its values: they may live on a device.
    """

    graph: Graph
    global_step: int
    version: int
    """Another number after each change of a variable or of ``global_step``."""
    preemption_errors: tuple[type[Exception], ...]
    """The errors after which a new session may succeed where this one failed."""

    def compile(self, fetches: Sequence[str], feeds: frozenset[str]) -> Any:
        """Plan a run of the nodes named, with some fed."""

    def execute(
        self,
        program: Any,
        feeds: Mapping[str, Any],
        writes: Mapping[str, tuple[str, Any]],
        options: RunOptions,
        metadata: RunMetadata,
    ) -> Sequence[Any]:
        """Run a plan once; commit its updates and *writes* together; give the values."""

    def run(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None = None) -> Any:
        """Run part of the graph without any hook being told."""

    def check(self, name: str, value: Any, who: str) -> None:
        """Raise GraphError where *who* cannot write a value."""

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables new values."""

    def variables(self) -> dict[str, Any]:
        """Return the value of each variable by name, ``global_step`` left out."""

    def positions(self) -> dict[str, Any]:
        """Return where each input stands, by name."""

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Go to the positions of the inputs that are named."""

    def remaining(self) -> int | None:
        """Return how many steps the inputs of the train ops allow, where they tell."""

    def close(self) -> None:
        """Give up what the session holds."""


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
