"""Evaluates nodes once when a session ends, and keeps their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

import hookbus
from hookbus import Graph, Node, OutOfRangeError, SessionRunHook, UsageError
from hookbus.errors import NoValueYetError, UnfedPlaceholderError
from hookbus.evaluating import undisturbed

_NOTHING = (
    "final-ops has nothing to evaluate: there is no 'loss' and no 'accuracy'; name nodes "
    "with --final-ops NAME,NAME"
)
_INPUT_ENDED = (
    "the final ops read an input that has ended; name nodes that do not need it, or feed "
    "it with final_ops_feed_dict"
)
_MOST_SHOWN = 16


@attrs.define(eq=False)
class FinalOpsHook(SessionRunHook):
    """Evaluates nodes once when a session ends without an error; keeps and logs them.

    No hook takes part in that run. An output of a train op has the value of its last step,
    and is not computed again. A custom loop, which has no graph, gives the values that it
    reported last.

    Args:
        final_ops: the nodes to evaluate, by name; by default ``loss`` and ``accuracy``, if
            they exist. In code, also nodes and any nesting of nodes and names; None for
            nothing.
        final_ops_feed_dict: feeds for that run, from node or name to value.

    Raises:
        UsageError: there is nothing to evaluate.
        UnknownNodeError: the graph does not have a node of that name.
        NoValueYetError: a node needs an output of a train op that no step has run.
        OutOfRangeError: out of the session's block, if a node needs the next value of an
            input that has ended.

    >>> from hookbus.testing import run_steps
    >>> hook = FinalOpsHook({"weight": "w"})
    >>> _ = run_steps(hook, steps=3)
    >>> hook.final_ops_values
    {'weight': 6.0}
    """

    final_ops: Sequence[Node | str] | Mapping[str, Any] | Node | str | None = ()
    final_ops_feed_dict: Mapping[Node | str, Any] | None = None
    _fetches: Any = attrs.field(default=None, init=False)
    _first_step: int = attrs.field(default=0, init=False)
    _values: Any = attrs.field(default=None, init=False)

    @property
    def final_ops_values(self) -> Any:
        """The values, in the structure of *final_ops*; None before the session's end."""
        return self._values

    def begin(self, graph: Graph) -> None:
        """Look the nodes up."""
        self._values, self._fetches = None, self.final_ops
        if self.final_ops is not None and not self.final_ops:
            self._fetches = graph.metrics
            if self._fetches is None:
                raise UsageError(_NOTHING)
        graph.resolve_all(self._fetches, "the setting final_ops of final-ops")
        for node in self.final_ops_feed_dict or ():
            graph.resolve(node, "the setting final_ops_feed_dict of final-ops")

    def after_create_session(self, session: hookbus.Session) -> None:
        """Note where the session starts."""
        self._first_step = session.global_step

    def end(self, session: hookbus.Session) -> None:
        """Run the nodes."""
        if self._fetches is None:
            return
        try:
            with undisturbed():  # an op may draw numbers
                self._values = session.run(self._fetches, self.final_ops_feed_dict)
        except (OutOfRangeError, StopIteration) as error:
            hookbus.log.warning(_INPUT_ENDED, why=str(error), by="final-ops")
            raise
        except (NoValueYetError, UnfedPlaceholderError) as error:
            if session.global_step != self._first_step:
                raise
            # Without a step no train op has an output, and no loop has reported anything.
            hookbus.log.warning("no final values", why=str(error))
            return
        shown = _readable(_named(self._fetches, self._values))
        hookbus.log.info("final values", step=session.global_step, values=shown)


def _named(fetches: Any, values: Any) -> Any:
    """Put names beside values where the structure has none."""
    if isinstance(fetches, str | Node) and not isinstance(values, Mapping):
        return {_name(fetches): values}
    flat = isinstance(fetches, list | tuple)
    if flat and all(isinstance(node, str | Node) for node in fetches):
        return dict(zip(map(_name, fetches), values, strict=True))
    return values


def _name(node: Node | str) -> str:
    return node.name if isinstance(node, Node) else node


def _readable(value: Any) -> Any:
    """Turn values into plain numbers and lists, and a large array into its shape."""
    if isinstance(value, Mapping):
        return {key: _readable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(part) for part in value]
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) > _MOST_SHOWN:
        return f"array of shape {shape}"
    plain = value.tolist() if hasattr(value, "tolist") else value
    return float(f"{plain:.6g}") if isinstance(plain, float) else plain
