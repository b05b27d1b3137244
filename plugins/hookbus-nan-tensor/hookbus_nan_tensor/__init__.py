"""Fails or stops the session when a value is NaN, and refuses to save one."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

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
from hookbus.backend import on_host
from hookbus.errors import UnfedPlaceholderError

_PLAIN = (float, int, str)
_SEVERAL = (dict, type(None))
"""The classes of the signs that an op gives for a structure."""
Signs: TypeAlias = dict[str, Any]
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

    >>> from hookbus.testing import run_steps
    >>> hook = NanTensorHook("loss", fail_on_nan_loss=False)
    >>> steps = run_steps(hook, values={"loss": [0.5, float("nan"), 0.25]})
    >>> steps.global_step, steps.outcome.who
    (2, 'nan-tensor')
    """

    options = hookbus.HookOptions(only_observes=True)

    loss_tensor: Sequence[Node | str] | Mapping[str, Any] | Node | str = ()
    fail_on_nan_loss: bool = True
    _request: SessionRunArgs = attrs.field(factory=SessionRunArgs, init=False)
    _only: str | None = attrs.field(default=None, init=False)

    def begin(self, graph: Graph) -> None:
        """Look the nodes up, and add a node for each with the signs of NaN in its value.

        Such a node is computed where the value is: of an array only a flag is moved.
        """
        if self.loss_tensor:
            nodes = graph.resolve_all(self.loss_tensor, _SETTING)
            fetches = {node.name: _watched(graph, node) for node in nodes}
        elif graph.metrics is not None:
            # A dict of the values, each under its own name.
            fetches = {"": _watched(graph, graph.metrics, is_dict=True)}
        else:
            raise UsageError(_NOTHING)
        self._only = None
        if len(fetches) == 1:  # the plainest request: it is made in every step
            ((self._only, fetch),) = fetches.items()
            self._request = SessionRunArgs(fetch)
        else:
            self._request = SessionRunArgs(fetches)

    def before_run(self) -> SessionRunArgs:
        """Ask for the signs of NaN in the watched values."""
        return self._request

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Fail or stop if a value is NaN."""
        results = run_values.results
        if self._only is not None:
            if results.__class__ is float and results == results:
                return  # in nearly every step
            if results.__class__ not in _SEVERAL and not _differs(results):
                return
            results = {self._only: results}
        for name, signs in results.items():
            if signs is None:
                raise UsageError(_missing_in(run_context.session))
            if signs.__class__ is dict:
                place = _first(signs)
            else:
                place = name if _differs(signs) else None
            if place is not None:
                self._react(f"{place} is NaN at step {run_values.global_step}", run_context)
                return

    @hookbus.hookimpl
    def veto_save(
        self,
        values: Mapping[str, Any],
        global_step: int,
        run_context: SessionRunContext | None,
    ) -> str | None:
        """Refuse to save a variable that holds NaN."""
        place = _first(on_host(_signs(values.items())))
        if place is None:
            return None
        reason = f"variable {place} holds NaN at step {global_step}"
        self._react(reason, run_context)
        return reason

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


def _missing_in(session: hookbus.Session) -> str:
    """Return the message about a step that reports nothing that is watched by default."""
    try:
        session.run("loss")
    except UnfedPlaceholderError as error:  # it has the values that the step reports
        return (
            f"nan-tensor has nothing to watch: {error}. Name other values with "
            "--nan-tensor NAME,NAME"
        )
    return _NOTHING


def _watched(graph: Graph, node: Node, is_dict: bool = False) -> str:
    """Return the name of the node with the signs of NaN in *node*; add it if need be."""
    name = f"hookbus.nan/{node.name}"

    def signs(value: Any) -> Any:
        if value.__class__ is float or (not is_dict and getattr(value, "ndim", 1) == 0):
            return value  # a loss, in nearly every step
        if is_dict and not value:
            return None  # a step that reports nothing
        return _signs(value.items() if is_dict else [(node.name, value)])

    if name not in graph:
        graph.op(signs, name=name, reads={"value": node}, pure=True)
    return name


def _signs(values: Iterable[tuple[str, Any]]) -> Signs:
    """Return the signs of NaN in values, without moving any of the values.

    Returns:
        The place of each part of a value, which is its name or the path to the part, with
        the part itself if it is one number, and otherwise with a flag in a list.
    """
    return {
        place: _sign_of(part)
        for name, value in values
        for place, part in _leaves(name, value)
    }


def _sign_of(part: Any) -> Any:
    """Return a part that is one number, and otherwise a flag in a list."""
    try:
        return part if _is_number(part) else [_has_nan(part)]
    except (RuntimeError, TypeError, ValueError):
        # A library cannot compare all that it has, like sparse tensors; NumPy can.
        (array,) = on_host([part])
        return [_has_nan(array)]


def _first(signs: Signs) -> str | None:
    """Return the first place of a NaN, or None."""
    for place, sign in signs.items():
        if sign[0] if sign.__class__ is list else _differs(sign):
            return place
    return None


def _differs(number: Any) -> bool:
    """Return whether a number differs from itself, like NaN."""
    try:
        return bool(number != number)
    except ValueError:  # a key of JAX is one value there, and several words on the host
        return False


def _is_number(part: Any) -> bool:
    return isinstance(part, _PLAIN) or getattr(part, "shape", None) == ()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the place of each part of a value with the part."""
    parts = None
    if not (isinstance(value, _PLAIN) or hasattr(value, "dtype")):  # hardly ever
        parts = _parts(value)
    if parts is None:
        yield name, value
        return
    for key, part in parts:
        yield from _leaves(f"{name}/{key}", part)


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


def _has_nan(value: Any) -> Any:
    """Return whether an array of any library holds NaN, as a flag of the library.

    Only NaN differs from itself.
    """
    differs = value != value
    found = getattr(differs, "any", None)
    return found() if found is not None else bool(differs)
