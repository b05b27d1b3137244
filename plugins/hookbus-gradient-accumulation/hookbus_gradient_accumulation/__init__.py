"""Trains on the mean gradient of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import Graph, Node, SessionRunArgs, SessionRunHook, UsageError
from hookbus.backend import needs
from hookbus.validation import numeric

_PREFIX = "gradient-accumulation"
_NOTHING = -0.0  # added to any number, it keeps the number and the sign of a zero


def _is_sum(value: Any) -> bool:
    """Return whether a value can be a sum of gradients: numbers, arrays, trees of these."""
    if isinstance(value, Mapping | list | tuple):
        parts = value.values() if isinstance(value, Mapping) else value
        return all(map(_is_sum, parts))
    return isinstance(value, int | float | complex) or hasattr(value, "dtype")


@attrs.define(eq=False)
class GradientAccumulationHook(SessionRunHook):
    """Has several runs make one update, with the mean of their gradients.

    All runs but the last skip their update. In a graph the train op sees the mean in the
    last run. A custom loop adds gradients up itself, and no checkpoint is written between
    two updates.

    Args:
        runs: the number of runs, each with a batch, that make one update.
        gradients: in a graph, the nodes with the gradients, by name; values may be trees.
        train_op: in a graph, the train op that reads them, by name.

    Raises:
        UsageError: the train op reads no such gradient, or a custom loop is given some.

    >>> from hookbus import Graph, SingularMonitoredSession
    >>> graph = Graph()
    >>> w = graph.variable("w", 0.0)
    >>> x = graph.input("x", lambda: iter([1.0, 3.0, 5.0, 7.0]))
    >>> gradient = graph.op(lambda x: -x, name="gradient")
    >>> train = graph.train_op(lambda w, gradient: w - gradient, name="train", updates="w")
    >>> hook = GradientAccumulationHook(2, "gradient")
    >>> with SingularMonitoredSession(graph, hooks=[hook]) as session:
    ...     [session.run(["w", "train"])[0] for _ in range(4)], session.run("w")
    ([0.0, 0.0, 2.0, 2.0], 8.0)
    """

    options = hookbus.HookOptions(main_setting="runs")

    runs: int = attrs.field(validator=numeric(least=1, whole=True))
    gradients: Sequence[Node | str] | Node | str = ()
    train_op: str = "train"
    _done: int = attrs.field(default=0, init=False)
    _sums: dict[str, Any] = attrs.field(factory=dict, init=False)
    _train: Node | None = attrs.field(default=None, init=False)
    _added: list[tuple[Node, Node]] = attrs.field(init=False)
    _number: Node = attrs.field(init=False)
    _takes_part: bool = attrs.field(default=False, init=False)
    _owes: bool = attrs.field(default=False, init=False)

    def begin(self, graph: Graph) -> None:
        """Wrap the gradients of a graph."""
        self._train, self._done, self._sums, self._added = None, 0, {}, []
        if graph.takes_reports == bool(self.gradients):
            told = "has no gradient to add up: give", "leaves gradients to the loop: omit"
            raise UsageError(f"{_PREFIX} {told[graph.takes_reports]} --{_PREFIX}-gradients")
        if graph.takes_reports:
            return
        self._train = graph.resolve(self.train_op, _PREFIX)
        # Runs in which the hook takes no part have the initial values: nothing changes.
        self._number = graph.variable(f"{_PREFIX}.{self.train_op}", 1, saved=False)
        for node in graph.resolve_all(self.gradients, _PREFIX):
            if node is self._train or not needs(graph, self._train, node.name):
                fault = f"train op {self.train_op!r} does not read {node.name!r}"
                raise UsageError(f"{_PREFIX}: {fault}; name the gradients that it reads")
            total = graph.variable(f"{_PREFIX}.{node.name}", _NOTHING, saved=False)
            reads = {"total": total, "number": self._number}
            self._added.append((total, graph.wrap(node, _mean, reads=reads)))

    def before_run(self, run_context: hookbus.SessionRunContext) -> SessionRunArgs | None:
        """Skip the update of all runs but the last one, and feed the sums."""
        train, is_last = self._train, self._done + 1 >= self.runs
        if train is not None:
            asked = train.graph.resolve_all(run_context.original_args.fetches, _PREFIX)
            self._takes_part = any(needs(train.graph, node, train.name) for node in asked)
            if not self._takes_part:
                return None
        if not is_last:
            run_context.skip_update()
        if train is None:
            return None
        feeds: dict[Node | str, Any] = {
            total: self._sums.get(total.name, _NOTHING) for total, _ in self._added
        }
        if is_last:
            return SessionRunArgs(None, {**feeds, self._number: self._done + 1})
        return SessionRunArgs({total.name: wrap for total, wrap in self._added}, feeds)

    def after_run(self, run_context: Any, run_values: hookbus.SessionRunValues) -> None:
        """Keep the sums, or begin again after an update."""
        if self._train is None or self._takes_part:
            self._done = (self._done + 1) % self.runs
            self._sums = dict(run_values.results or {})
        if self._owes and not self._done:
            run_context.request_save("the update is complete")

    @hookbus.hookimpl
    def veto_save(self) -> str | None:
        """Refuse a checkpoint that would lack the gradients that a loop has added up."""
        self._owes = self._train is None and self._done > 0
        return f"{self._done} of {self.runs} gradients are added up" if self._owes else None

    state_form: ClassVar[Any] = {"done": int, "sums": {str: _is_sum}}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the gradients whose update is still to come."""
        return {"done": self._done, "sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these sums."""
        self._done, self._sums = state["done"], dict(state["sums"])


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
