"""Trains on the mean gradient of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

import hookbus
from hookbus import Graph, Node, SessionRunArgs, SessionRunHook, UsageError

_PREFIX = "gradient-accumulation"
_NOTHING = -0.0
"""What the first gradient is added to: it keeps every number, and the sign of a zero."""


@attrs.define(eq=False)
class GradientAccumulationHook(SessionRunHook):
    """Lets a train op see the mean gradient of several runs, and run in the last of them.

    In the other runs the train op is fed, so it does not run: variables and the global step
    stay as they are.

    Args:
        runs: how many runs make one update.
        gradients: the nodes with the gradients, by name; values may be trees of arrays.
        train_op: the train op that reads them, by name.

    Raises:
        UsageError: no gradient is named, or the session has no graph.
    """

    main_setting = "runs"

    runs: int = attrs.field(validator=hookbus.numeric(least=1, whole=True))
    gradients: Sequence[Node | str] | Node | str = ()
    train_op: str = "train"
    _done: int = attrs.field(default=0, init=False)
    _sums: dict[str, Any] = attrs.field(factory=dict, init=False)
    _train: Node = attrs.field(init=False)
    _added: list[tuple[Node, Node]] = attrs.field(init=False)
    _number: Node = attrs.field(init=False)
    _takes_part: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if not self.gradients:
            raise UsageError(
                f"{_PREFIX} has no gradient to add up; name nodes with "
                f"--{_PREFIX}-gradients NAME,NAME"
            )

    def begin(self, graph: Graph) -> None:
        """Wrap the gradients."""
        if graph.takes_reports:
            raise UsageError(
                f"{_PREFIX} needs a graph; in a custom loop, compute several "
                "batches in a step"
            )
        self._train, self._done, self._sums = graph.resolve(self.train_op, _PREFIX), 0, {}
        # Runs in which the hook takes no part have the initial values: nothing changes.
        self._number = graph.variable(f"{_PREFIX}.{self.train_op}", 1, saved=False)
        self._added = []
        for node in graph.resolve_all(self.gradients, _PREFIX):
            total = graph.variable(f"{_PREFIX}.{node.name}", _NOTHING, saved=False)
            reads = {"total": total, "number": self._number}
            self._added.append((total, graph.wrap(node, _mean, reads=reads)))

    def before_run(self, run_context: hookbus.SessionRunContext) -> SessionRunArgs | None:
        """Feed what is added up, and in all runs but the last one the train op."""
        graph, done = self._train.graph, self._done + 1
        asked = graph.resolve_all(run_context.original_args.fetches, _PREFIX)
        self._takes_part = _runs(graph, asked, self._train)
        if not self._takes_part:
            return None
        sums: dict[Node | str, Any] = {
            total: self._sums.get(total.name, _NOTHING) for total, _ in self._added
        }
        if done >= self.runs:
            return SessionRunArgs(None, {**sums, self._number: done})
        fetches = {total.name: wrap for total, wrap in self._added}
        return SessionRunArgs(fetches, {**sums, self._train: None})

    def after_run(self, run_values: hookbus.SessionRunValues) -> None:
        """Keep the sums, or begin again after an update."""
        sums = run_values.results
        if self._takes_part:
            self._done, self._sums = (self._done + 1, dict(sums)) if sums else (0, {})

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the gradients whose update is still to come."""
        return {"done": self._done, "sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these sums."""
        self._done, self._sums = state["done"], dict(state["sums"])


def _runs(graph: Graph, nodes: list[Node], train: Node) -> bool:
    """Return whether a run of some nodes runs a train op, not only reads its outputs."""
    found, waiting = {node.name for node in nodes}, nodes
    while waiting:
        node = waiting.pop()
        reads = () if node.kind == "output" and train.name in node.reads else node.reads
        waiting += [graph.resolve(name) for name in reads if name not in found]
        found.update(reads)
    return train.name in found


def _mean(gradient: Any, total: Any, number: Any) -> Any:
    """Add a gradient to a sum, and divide by the number of gradients; keep the dtype."""
    if isinstance(gradient, Mapping | list | tuple):
        items = gradient.items() if isinstance(gradient, Mapping) else enumerate(gradient)
        first = not isinstance(total, Mapping | list | tuple)
        parts = {k: _mean(each, total if first else total[k], number) for k, each in items}
        if isinstance(gradient, Mapping):
            return parts
        return getattr(type(gradient), "_make", type(gradient))(parts.values())
    mean = (total + gradient) / number
    return mean.astype(gradient.dtype) if hasattr(gradient, "dtype") else mean
