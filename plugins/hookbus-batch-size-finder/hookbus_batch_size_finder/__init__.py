"""Finds the largest batch that fits into the memory: doubles it, and undoes each trial."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

import hookbus
from hookbus import Graph, SessionRunContext, SessionRunHook, UsageError
from hookbus.validation import numeric

_NAME = "batch-size-finder"
_ERRORS = {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}
_IN_TEXT = "RESOURCE_EXHAUSTED"  # JAX has one class for all errors of devices


@attrs.define(eq=False)
class BatchSizeFinderHook(SessionRunHook):
    """Repeats the first batch in itself until a step runs out of memory.

    Each trial is a step of the loop with a batch of twice the size, and is undone. Then the
    session ends, and saves nothing.

    Args:
        name: the name that the loop gives its input.
        doublings: how often the batch is doubled at most.

    Raises:
        UsageError: the session has a graph, or the batch has no examples to repeat.

    >>> from hookbus import Config, MonitoredSession
    >>> quiet = Config(autoload=False, header=False)
    >>> hook = BatchSizeFinderHook(doublings=2)
    >>> with MonitoredSession(hooks=[hook], config=quiet) as session:
    ...     weights = session.track(w={"w": 0.0})
    ...     for batch in session.iterate([[1.0, 2.0]] * 8, name="batch"):
    ...         with session.step():
    ...             print(len(batch))
    2
    4
    8
    """

    options = hookbus.HookOptions(main_setting="name", rolls_back="step")

    name: str = "batch"
    doublings: int = attrs.field(default=9, validator=numeric(least=1, whole=True))
    size: int | None = attrs.field(default=None, init=False)
    _times: int = attrs.field(default=1, init=False)
    _tried: int = attrs.field(default=0, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def begin(self, graph: Graph) -> None:
        """Wrap the input of the loop."""
        if not graph.takes_reports:
            raise UsageError(f"{_NAME} tries the steps of a custom loop, without a graph")
        self.size, self._times, self._is_over = None, 1, False
        graph.wrap(self.name, self._repeated, keeps_form=False)

    def _repeated(self, batch: Any) -> Any:
        sizes = {len(leaf) for leaf in _leaves(batch)}
        if not sizes:
            raise UsageError(f"{_NAME}: {self.name!r} holds no examples to repeat")
        self._tried = self._times * max(sizes)
        return batch if self._times == 1 else _times(batch, self._times)

    def after_run(self, run_context: SessionRunContext) -> None:
        """Note a size that fits, and try twice as much."""
        if self._is_over:
            run_context.request_stop("the size of a batch is found")
            return
        self.size = self._tried
        if self._times >= 2**self.doublings:
            hookbus.log.info("largest batch found", size=self.size, why="all sizes fit")
            run_context.request_stop("the size of a batch is found")
            return
        self._times *= 2
        run_context.request_rollback("a trial", to="step")

    @hookbus.hookimpl
    def step_failed(self, run_context: SessionRunContext, exception: Exception) -> None:
        """Note a size that does not fit; the session ends with the batch as it is."""
        if self.size is None or self._is_over or not _is_out_of_memory(exception):
            return
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        hookbus.log.info("largest batch found", size=self.size, too_large=self._tried)
        self._times, self._is_over = 1, True
        run_context.request_rollback("the last trial", to="step")

    @hookbus.hookimpl
    def veto_save(self) -> str:
        """Refuse to save a model that was trained for a trial."""
        return "it is a test of batch sizes"


def _parts(batch: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a tree by their place; None for what is repeated as a whole."""
    if isinstance(batch, Mapping):
        return batch
    is_tree = isinstance(batch, list | tuple) and any(
        hasattr(part, "shape") or isinstance(part, Mapping | list | tuple) for part in batch
    )
    return dict(enumerate(batch)) if is_tree else None


def _leaves(batch: Any) -> Iterator[Any]:
    parts = _parts(batch)
    if parts is not None:
        for part in parts.values():
            yield from _leaves(part)
    elif isinstance(batch, list | tuple) or getattr(batch, "shape", None):
        yield batch


def _times(batch: Any, times: int) -> Any:
    """Return a batch with each list and array repeated so many times."""
    parts = _parts(batch)
    if parts is not None:
        repeated = {key: _times(part, times) for key, part in parts.items()}
        if isinstance(batch, Mapping):
            return repeated
        return getattr(type(batch), "_make", type(batch))(repeated.values())
    if isinstance(batch, list | tuple):
        return batch * times
    if not getattr(batch, "shape", None):
        return batch
    library = type(batch).__module__.partition(".")[0]
    module = {"torch": "torch", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
    concatenate = importlib.import_module(module.get(library, "numpy")).concatenate
    return concatenate([batch] * times)


def _is_out_of_memory(error: Exception) -> bool:
    named = {cls.__name__ for cls in type(error).__mro__}
    return (
        isinstance(error, MemoryError) or bool(named & {*_ERRORS}) or _IN_TEXT in str(error)
    )
