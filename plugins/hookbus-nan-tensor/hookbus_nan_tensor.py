"""Fails or stops the session when a value is NaN, and refuses to save one."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

import hookbus
from hookbus import (
    Graph,
    Node,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    TrainingError,
    UsageError,
)

_PLAIN = (float, int, str)
_SETTING = "the setting loss_tensor of nan-tensor"
_NOTHING = (
    "nan-tensor has nothing to watch: the graph has neither 'loss' nor 'accuracy' nor a "
    "scalar summary; name nodes with --nan-tensor NAME,NAME"
)


class NanLossDuringTrainingError(TrainingError):
    """A watched value, or a variable about to be saved, is NaN."""


@attrs.define(eq=False)
class NanTensorHook(SessionRunHook):
    """Watches values in every run for NaN, and every variable before it is saved.

    A loss may still be finite when the weights are not; so the hook refuses a checkpoint
    while any floating-point variable holds NaN. Infinity counts as a number, as in
    TensorFlow.

    Args:
        loss_tensor: the nodes to watch, by name; by default ``loss``, ``accuracy`` and the
            scalar summaries, if they exist. In code, also nodes and any nesting of nodes
            and names. Values may be nested structures.
        fail_on_nan_loss: whether NaN fails the run; if false, it stops the session.

    Raises:
        UsageError: there is nothing to watch.
        NanLossDuringTrainingError: from a run, in fail mode.
    """

    only_observes = True

    loss_tensor: Sequence[Node | str] | Mapping[str, Any] | Node | str = ()
    fail_on_nan_loss: bool = True
    _request: SessionRunArgs = attrs.field(factory=SessionRunArgs, init=False)

    def begin(self, graph: Graph) -> None:
        """Look the nodes up."""
        self._request = SessionRunArgs(self._watched(graph))
        if self._request.fetches is None:
            raise UsageError(_NOTHING)

    def _watched(self, graph: Graph) -> dict[str, str] | Node | None:
        if not self.loss_tensor:
            return graph.metrics
        nodes = graph.resolve_all(self.loss_tensor, _SETTING)
        return {node.name: node.name for node in nodes}

    def before_run(self) -> SessionRunArgs:
        """Ask for the watched values."""
        return self._request

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Fail or stop if a value is NaN."""
        if not run_values.results:
            raise UsageError(_NOTHING)
        for name, value in run_values.results.items():
            for found in _nans(name, value):
                self._react(f"{found} is NaN at step {run_values.global_step}", run_context)
                return

    @hookbus.hookimpl
    def before_save(
        self,
        values: Mapping[str, Any],
        global_step: int,
        run_context: SessionRunContext | None,
    ) -> str | None:
        """Refuse to save a variable that holds NaN."""
        for name, value in values.items():
            for found in _nans(name, value):
                reason = f"variable {found} holds NaN at step {global_step}"
                self._react(reason, run_context)
                return reason
        return None

    def _react(self, reason: str, run_context: SessionRunContext | None) -> None:
        if self.fail_on_nan_loss:
            raise NanLossDuringTrainingError(
                f"nan-tensor: {reason}. The checkpoints hold the last good state. "
                "To continue regardless: -p no:nan-tensor; to stop without an error: "
                "--no-nan-tensor-fail-on-nan-loss"
            )
        hookbus.log.warning("NaN found", why=reason, by="nan-tensor")
        if run_context is not None:
            run_context.request_stop(reason)


def _nans(name: str, value: Any) -> Iterator[str]:
    """Yield the places of NaN in a value: its name, or the path to a part of it."""
    parts = None
    if not (isinstance(value, _PLAIN) or hasattr(value, "dtype")):  # hardly ever
        parts = _parts(value)
    if parts is None:
        if _has_nan(value):
            yield name
        return
    for key, part in parts:
        yield from _nans(f"{name}/{key}", part)


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return a structure's parts by key, field or index; None for any other value."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | deque | set | frozenset):
        return enumerate(value)
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False).items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None


def _has_nan(value: Any) -> bool:
    """Return whether a number, or an array of any library, holds NaN.

    Only NaN differs from itself.
    """
    differs = value != value
    if isinstance(differs, bool):
        return differs
    found = getattr(differs, "any", None)
    return bool(found()) if found is not None else bool(differs)
