"""The hooks of one call: where it stops, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs

from hookbus.backend.program import plan
from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.errors import END_OF_INPUT, ArgumentTypeError, UsageError
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.operation import Operation
from hookbus.graph.summaries import scalars_of
from hookbus.graph.traversal import inputs_of
from hookbus.hooks.context import SessionRunContext, SessionRunValues
from hookbus.hooks.hook import Kind, SessionRunHook
from hookbus.hooks.markers import hookimpl
from hookbus.logs import log
from hookbus.validation import check_whole, number_in, numeric


@attrs.define(eq=False)
class StopAfterNEvalsHook(SessionRunHook):
    """Stops an evaluation after some runs.

    Args:
        num_evals: how many; None for as many as the input has.
        log_progress: whether to log it, each run or about ten times.

    Raises:
        UsageError: the number is not above 0.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("eval",)
    only_observes = True

    num_evals: int | None = attrs.field(validator=numeric(above=0))
    log_progress: bool = True
    _done: int = attrs.field(default=0, init=False)

    def after_create_session(self) -> None:
        """Start counting: after a preemption what was gathered is gone, too."""
        self._done = 0

    def after_run(self, run_context: SessionRunContext) -> None:
        """Count the run; ask to stop after the last one."""
        self._done += 1
        last = self._done == self.num_evals
        if self.log_progress and (last or self._done % self._every == 0):
            log.info("evaluation", run=self._done, of=self.num_evals or "all")
        if last:
            run_context.request_stop(f"{self.num_evals} evaluations are done")

    @property
    def _every(self) -> int:
        """How many runs there are between two lines."""
        many = self.num_evals is not None and self.num_evals >= 20
        return (self.num_evals or 0) // 10 if many else 1


@attrs.define(eq=False)
class SummaryAtEndHook(SessionRunHook):
    """Reads summaries once when a session ends well, and tells them as ``evaluated``.

    Args:
        log_dir: where it is written, as ``logdir=`` of the functions that evaluate says.
            In other sessions it is left to the plugins that take part.
        summary_op: a node, a name, or several; by default all scalars that are declared
            with ``graph.summary``.
        feed_dict: feeds for them, node or name to value.
        name: tells this evaluation from others.

    Raises:
        UnknownNodeError: a name is no node's.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("eval",)

    log_dir: str | Path | None = None
    summary_op: Any = None
    feed_dict: Mapping[Node | str, Any] | None = None
    name: str | None = None
    _nodes: dict[str, Node] = attrs.field(factory=dict, init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus."""
        self._bus = bus

    def begin(self, graph: Graph) -> None:
        """Look the nodes up."""
        asker = "the summary_op of summary-at-end"
        self._nodes = {n.name: n for n in graph.resolve_all(self.summary_op, asker)}

    def after_create_session(self, session: Session) -> None:
        """See what all hooks have declared by now."""
        if self.summary_op is None:
            declared = scalars_of(session.graph.declared)
            self._nodes = {tag: session.graph.resolve(n) for tag, n in declared.items()}

    def end(self, session: Session) -> None:
        """Read them, and tell them."""
        if self._nodes:
            emit_evaluated(self._bus, self._values(session), session.global_step, self.name)

    def _values(self, session: Session) -> dict[str, float]:
        """Read what can still be read."""
        nodes = self._nodes
        try:
            return numbers(nodes, session.run(nodes, self.feed_dict))
        except END_OF_INPUT:
            kept = {t: n for t, n in nodes.items() if not inputs_of(session.graph, [n])}
            ended = sorted(nodes.keys() - kept.keys())
            log.warning("summaries read an input that has ended", left_out=ended)
            return numbers(kept, session.run(kept, self.feed_dict))


@attrs.define(eq=False)
class FinalOpsReader(SessionRunHook):
    """Reads the final ops when an evaluation ends well: the core's own part in it.

    Args:
        eval_ops: what each run fetches, which is looked up in time.
        final_ops: what to fetch; None for nothing.
        feed_dict: feeds for the final ops.
        name: the evaluation's name, or None.

    Attributes:
        values: what was read.
    """

    eval_ops: Any
    final_ops: Any
    feed_dict: Mapping[Node | str, Any] | None
    name: str | None
    values: Any = attrs.field(default=None, init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus."""
        self._bus = bus

    def begin(self, graph: Graph) -> None:
        """Look the nodes up, when all hooks have added theirs."""
        graph.resolve_all(self.eval_ops, "what an evaluation runs")
        graph.resolve_all(self.final_ops, "the final ops of an evaluation")
        for node in self.feed_dict or ():
            graph.resolve(node, "the feeds of an evaluation's final ops")

    def end(self, session: Session) -> None:
        """Read them, and tell the numbers among them."""
        if self.final_ops is None:
            return
        self.values = session.run(self.final_ops, self.feed_dict)
        metrics = numbers(self.final_ops, self.values)
        log_evaluation(metrics, session.global_step, self.name)
        emit_evaluated(self._bus, metrics, session.global_step, self.name)


def log_evaluation(metrics: Mapping[str, float], step: int, name: str | None) -> None:
    """Log what came out of an evaluation."""
    shown = {metric: float(f"{value:.6g}") for metric, value in metrics.items()}
    named = {} if name is None else {"name": name}
    log.info("evaluated", step=step, metrics=shown, **named)


def emit_evaluated(
    bus: Bus | None, metrics: Mapping[str, float], step: int, name: str | None
) -> None:
    """Send what came out of an evaluation to all hooks of its session."""
    assert bus is not None
    if metrics:
        bus.emit("evaluated", metrics=metrics, global_step=step, name=name)


def numbers(fetches: Any, values: Any) -> dict[str, float]:
    """Return the numbers among some values, by key of a mapping or else by node.

    >>> numbers({"error": "mse/value", "rows": "y"}, {"error": 2, "rows": "abc"})
    {'error': 2.0}
    >>> numbers(["a", "b"], [1.5, None])
    {'a': 1.5}
    """
    if isinstance(values, Mapping):
        named = dict(values)
    elif isinstance(fetches, list | tuple):
        named = dict(zip(map(_name, fetches), values, strict=True))
    else:
        named = {_name(fetches): values}
    found = {str(name): _number(value) for name, value in named.items()}
    return {name: number for name, number in found.items() if number is not None}


def _name(fetch: Any) -> str:
    return str(getattr(fetch, "name", fetch))


def _number(value: Any) -> float | None:
    """Return a number as a float; an array with an axis is none."""
    return number_in(value) if getattr(value, "shape", ()) == () else None


TRAIN_CALL = "learning.train()"
_BOTH = "hookbus.learning"


@attrs.define(eq=False)
class TrainStep(SessionRunHook):
    """Finds, or makes, the one node to fetch: it does a step and gives the loss.

    Attributes:
        graph: the graph.
        train_op: what has to be run.
        loss: the node of the loss.
        last: the global step to stop at; None for none.
        within: whether a run is a step, so that the one that reaches it stops.
        fetch: the one node.
    """

    graph: Graph
    train_op: Node
    loss: Node
    last: int | None
    within: bool = True
    fetch: Node = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.fetch = self.loss

    @classmethod
    def of(
        cls,
        train_op: Node | str,
        graph: Graph | None,
        loss: Node | str | None,
        number_of_steps: int | None,
    ) -> TrainStep:
        """Look the nodes up.

        Raises:
            UsageError: the train op is None or trains nothing, there is no graph or no
                loss, or the number is not above 0.
            UnknownNodeError, GraphError: a name is no node's, or a node another graph's.
        """
        if train_op is None:
            raise UsageError("train_op is None: is a return missing where it is made?")
        check_whole("number_of_steps", number_of_steps)
        if number_of_steps is not None and number_of_steps <= 0:
            raise UsageError(
                f"number_of_steps is above 0, or None; given: {number_of_steps}"
            )
        graph = _graph_of(train_op, graph)
        node = graph.resolve(train_op, f"train_op of {TRAIN_CALL}")
        if not any(operation.trains for operation in _ops_of(graph, node)):
            raise UsageError(
                f"train_op is {node!r}, which trains nothing: make it with graph.train_op"
            )
        return cls(graph, node, _loss_of(graph, node, loss), number_of_steps)

    def begin(self, graph: Graph) -> None:
        """Make one node of two where the loss does not need the train op."""
        if self.train_op.source not in _ops_of(graph, self.loss):
            reads = {"done": self.train_op, "loss": self.loss}
            self.fetch = graph.op(_second, name=_BOTH, reads=reads)

    @hookimpl
    def planned_last_step(self) -> int | None:
        """Tell where it stops."""
        return self.last

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop there."""
        if self.within and self.is_reached(run_values.global_step):
            run_context.request_stop(self.why)

    @property
    def why(self) -> str:
        """Why to stop there."""
        return f"step {self.last} is reached"

    def is_reached(self, step: int) -> bool:
        """Say whether a global step is where to stop, or beyond."""
        return self.last is not None and step >= self.last


def _second(done: None, loss: Any) -> Any:  # noqa: ARG001 (it is to be run)
    return loss


def _graph_of(train_op: Node | str, graph: Graph | None) -> Graph:
    if graph is None and isinstance(train_op, Node):
        graph = train_op.graph
    if graph is None:
        raise UsageError(f"train_op is {train_op!r}, which tells no graph: give graph=")
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(f"graph is a Graph, given: {graph!r}")
    return graph


def _loss_of(graph: Graph, train_op: Node, loss: Node | str | None) -> Node:
    """Find the loss: what is told, an op's own value, ``loss``, or the only output."""
    if loss is not None:
        return graph.resolve(loss, f"loss of {TRAIN_CALL}")
    if train_op.kind != "op" or not train_op.source.trains:
        return train_op
    outputs = [name for _, name in train_op.source.outputs]
    if "loss" in graph or len(outputs) == 1:
        return graph.resolve("loss" if "loss" in graph else outputs[0])
    raise UsageError(
        f"what is the loss of {train_op.name!r}? The graph has no node 'loss': give loss=, "
        "or make the train op with outputs=['loss']"
    )


def _ops_of(graph: Graph, node: Node) -> list[Operation]:
    """Return the ops that a run of a node calls, whatever is fed."""
    nodes = graph.nodes.values()
    fed = frozenset(other.name for other in nodes if other.kind == "placeholder")
    return [call[0] for call in plan(graph, [node.name], fed).calls]
