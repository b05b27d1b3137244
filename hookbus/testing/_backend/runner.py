"""Runs sessions of a backend, and compares the results with a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

import attrs
import pytest

from hookbus.backend.protocol import Execution, RunMetadata, RunOptions, Session
from hookbus.graph.graph import Graph
from hookbus.testing.backend_model import BackendModel

np = pytest.importorskip("numpy", reason="the suite computes with NumPy: pip install numpy")

_ALIGNMENT = 64
NOTHING: Mapping[str, Any] = MappingProxyType({})


TIMES = 3
"""The number of times that a run is repeated: a backend may compile repeated runs."""


START = {"w": [1.0, 2.0], "n": 0.0, "global_step": 0}


Opener: TypeAlias = Callable[[Graph], "Runner"]


class PlannedError(Exception):
    """An error that the suite raises on purpose."""


class Runner:
    """Runs a session as the loop does, and reads values on the host."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(
        self,
        *names: str,
        feeds: Mapping[str, Any] = NOTHING,
        writes: Mapping[str, Any] = NOTHING,
    ) -> Any:
        """Return the values of nodes in a run, as Python numbers and lists."""
        found = self.values((), names, feeds, writes)
        plain = [None if value is None else np.asarray(value).tolist() for value in found]
        return plain if len(names) > 1 else plain[0] if plain else None

    def values(
        self,
        fetches: Sequence[str],
        host: Sequence[str] = (),
        feeds: Mapping[str, Any] = NOTHING,
        writes: Mapping[str, Any] = NOTHING,
        trace: RunMetadata | None = None,
    ) -> Sequence[Any]:
        """Return a run's values for the caller, then those for hooks, traced or not."""
        resolve = self.session.graph.resolve
        fetches, host = ([resolve(n).name for n in names] for names in (fetches, host))
        feeds = {resolve(name).name: value for name, value in feeds.items()}
        program = self.session.compile(fetches, frozenset(feeds), host)
        options = RunOptions(RunOptions.FULL_TRACE if trace else 0)
        record = trace or RunMetadata()
        execution = Execution(program, feeds, _given(writes), options, record)
        return self.session.execute(execution)

    def without_update(self, *names: str, writes: Mapping[str, Any] = NOTHING) -> None:
        """Do a run whose train ops commit nothing."""
        resolved = [self.session.graph.resolve(name).name for name in names]
        program = self.session.compile(resolved, frozenset())
        self.session.execute_without_update(Execution(program, writes=_given(writes)))

    @property
    def state(self) -> dict[str, Any]:
        """All variables and the global step."""
        names = [node.name for node in self.session.graph.variables]
        values = self(*names, "global_step")
        return dict(zip([*names, "global_step"], values, strict=True))


def _given(writes: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    return {name: ("the suite", value) for name, value in writes.items()}


def fail(message: str) -> NoReturn:
    """Fail with advice for the author, without a traceback of the suite."""
    pytest.fail(message, pytrace=False)


def expect(found: Any, wanted: Any, what: str, advice: str) -> None:
    """Fail if a value is not as the rule wants it."""
    if found != wanted:
        fail(f"{what}: {found!r} instead of {wanted!r}. {advice}".rstrip())


@attrs.define
class Refusal:
    """Holds the error that a block has raised."""

    error: Any = None


@contextmanager
def refused(error: type[Exception], what: str) -> Iterator[Refusal]:
    """Fail if the block does not raise an error."""
    refusal = Refusal()
    try:
        yield refusal
    except error as raised:
        refusal.error = raised
    else:
        fail(f"{what} is not refused: raise {error.__name__}")


def array(*numbers: float) -> Any:
    """Return numbers as an array of the suite.

    The array lies where libraries may share memory with NumPy: TensorFlow and XLA take an
    array as it is if its address is a multiple of 64.
    """
    values = np.array(numbers, np.float32)
    memory = np.empty(values.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    aligned = memory[start : start + values.nbytes].view(np.float32)
    aligned[...] = values
    return aligned


def line(model: BackendModel) -> Graph:
    """Return w = [1, 2], n = 0, y = w + w; train adds w to w, count adds x to n."""
    graph = model.graph()
    model.variable(graph, "w", array(1, 2))
    model.variable(graph, "n", np.float32(0))
    model.input(graph, "x", lambda: count(1.0))
    model.op(graph, "y", ["w", "w"])
    model.train_op(graph, "train", {"w": ["w", "w"]})
    model.train_op(graph, "count", {"n": ["n", "x"]})
    return graph


def raise_planned() -> NoReturn:
    """Fail, as the function of an op that fails."""
    raise PlannedError("the suite fails this run")
