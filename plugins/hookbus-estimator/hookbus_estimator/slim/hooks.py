"""Stops training and evaluation, and reads the results of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import attrs

from hookbus import (
    AbortedError,
    Bus,
    Graph,
    HookOptions,
    Node,
    Outcome,
    OutOfRangeError,
    Session,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
    hookimpl,
    log,
    resumes,
)
from hookbus.errors import ArgumentTypeError, NoValueYetError, SessionInterruptedError
from hookbus.validation import check_number, numeric, scalar_in
from hookbus_estimator.graphs import inputs_of, op_behind, ops_of, train_outputs_of


@attrs.define(eq=False)
class StopAfterNEvalsHook(SessionRunHook):
    """Stops an evaluation after a number of runs.

    Args:
        num_evals: the number of runs; None evaluates until the input ends.
        log_progress: whether to log the progress: each run, or about ten times in all.

    Attributes:
        done: how many runs are done.

    Raises:
        UsageError: *num_evals* is not above 0.

    >>> from hookbus.testing import run_steps
    >>> hook = StopAfterNEvalsHook(3, log_progress=False)
    >>> _ = run_steps(hook, kind="eval", steps=10)
    >>> hook.done
    3
    """

    options: ClassVar[HookOptions] = HookOptions(kinds=("eval",), only_observes=True)

    num_evals: int | None = attrs.field(validator=numeric(above=0))
    log_progress: bool = True
    done: int = attrs.field(default=0, init=False)

    def after_create_session(self, session: Session) -> None:  # noqa: ARG002
        """Start counting: a preemption loses the results of the runs before it."""
        self.done = 0

    def after_run(self, run_context: SessionRunContext) -> None:
        """Count the run; ask to stop after the last one."""
        self.done += 1
        last = self.done == self.num_evals
        runs_between_lines = max(1, (self.num_evals or 0) // 10)
        if self.log_progress and (last or self.done % runs_between_lines == 0):
            log.info("evaluation", run=self.done, of=self.num_evals or "all")
        if last:
            run_context.request_stop(f"evaluation run {self.done} of {self.done} is done")


class EvaluationEmitter(SessionRunHook):
    """The base of hooks that send evaluation results to all hooks of their session."""

    _bus: Bus

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus."""
        self._bus = bus

    def around_evaluation(
        self, name: str | None, session: Session
    ) -> AbstractContextManager[None]:
        """Return a block around an evaluation, which hooks get as ``evaluating``."""
        return self._bus.around("evaluating", session=session, name=name)

    def emit_evaluated(
        self, metrics: Mapping[str, float], step: int, name: str | None
    ) -> None:
        """Send the event ``evaluated``, unless there are no metrics."""
        if metrics:
            self._bus.emit("evaluated", metrics=metrics, global_step=step, name=name)


@attrs.define(eq=False)
class SummaryAtEndHook(EvaluationEmitter):
    """Reads summaries once when a session ends well, and emits them as ``evaluated``.

    Args:
        log_dir: where plugins write them, like ``logdir=`` of the functions that evaluate.
            In other sessions the plugins that take part decide.
        summary_op: a node, a name, or several; by default all scalars declared with
            ``graph.summary``.
        feed_dict: feeds for them, node or name to value.
        name: tells this evaluation from others.

    Raises:
        UnknownNodeError: the graph has no node of a given name.

    >>> from hookbus import hookimpl
    >>> from hookbus.testing import run_steps
    >>> class PrintHook:
    ...     @hookimpl
    ...     def evaluated(self, metrics, global_step):
    ...         print(global_step, metrics)
    >>> hook = SummaryAtEndHook(summary_op="loss")
    >>> _ = run_steps(hook, PrintHook(), kind="eval", values={"loss": [0.5]})
    0 {'loss': 0.5}
    """

    options: ClassVar[HookOptions] = HookOptions(kinds=("eval",))

    log_dir: str | Path | None = None
    summary_op: Any = None
    feed_dict: Mapping[Node | str, Any] | None = None
    name: str | None = None
    _nodes: dict[str, Node] = attrs.field(factory=dict, init=False)

    def begin(self, graph: Graph) -> None:
        """Look up the nodes."""
        asker = "the summary_op of summary-at-end"
        self._nodes = {n.name: n for n in graph.resolve_all(self.summary_op, asker)}

    def after_create_session(self, session: Session) -> None:
        """Look up the declared scalars, now that all hooks have declared theirs."""
        if self.summary_op is None:
            self._nodes = {
                tag: session.graph.resolve(node)
                for tag, (kind, node) in session.graph.declared.items()
                if kind == "scalar"
            }

    def end(self, session: Session) -> None:
        """Read the summaries and emit them."""
        if self._nodes:
            values = self._values(session, self._nodes)
            self.emit_evaluated(values, session.global_step, self.name)

    def _values(self, session: Session, nodes: Mapping[str, Node]) -> dict[str, float]:
        """Read the summaries that have a value.

        A summary of an output of a train op has no value, because an evaluation does not
        train. A summary of an input has no value if the input has ended.
        """
        try:
            return numbers(nodes, session.run(nodes, self.feed_dict))
        except (NoValueYetError, OutOfRangeError, StopIteration) as error:
            untrained = isinstance(error, NoValueYetError)
            needed = train_outputs_of if untrained else inputs_of
            kept = {t: n for t, n in nodes.items() if not needed(session.graph, [n])}
            if len(kept) == len(nodes):
                raise
            why = "a train op that has not run" if untrained else "an input that has ended"
            left_out = sorted(nodes.keys() - kept.keys())
            log.warning(f"summaries read {why}", left_out=left_out)
            return self._values(session, kept)


@attrs.define(eq=False)
class EvaluationHook(StopAfterNEvalsHook, EvaluationEmitter):
    """Stops an evaluation and reads its results at the end.

    It is an own hook of evaluations; no flag switches it off. Hooks get
    ``evaluating`` around the whole evaluation. It begins anew after a preemption, and what
    is left early is left with an error.

    Args:
        eval_ops: the fetches of each run.
        final_ops: nodes to fetch at the end; None fetches nothing.
        feed_dict: feeds for the final ops.
        name: the evaluation's name, or None.
        around: takes the backend session and returns a further block around the evaluation.

    Attributes:
        values: the values of the final ops, in their structure.
        metrics: the numbers among the values, by name.
        outcome: how the session ended.
    """

    # It observes: the final ops may read an input.
    options: ClassVar[HookOptions] = HookOptions(kinds=("eval",))

    eval_ops: Any = None
    final_ops: Any = None
    feed_dict: Mapping[Node | str, Any] | None = None
    name: str | None = None
    around: Callable[[Session], AbstractContextManager[Any]] = attrs.field(
        default=nullcontext, kw_only=True
    )
    values: Any = attrs.field(default=None, init=False)
    metrics: dict[str, float] = attrs.field(factory=dict, init=False)
    outcome: Outcome | None = attrs.field(default=None, init=False)
    _inside: ExitStack = attrs.field(factory=ExitStack, init=False)

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the session."""
        return self.outcome is None or resumes(self.outcome.kind)

    @property
    def cut_short(self) -> bool:
        """Whether a signal ended the session before its last run."""
        return self.interrupted and self.done != self.num_evals

    def begin(self, graph: Graph) -> None:
        """Look up the nodes, after all other hooks have added theirs."""
        graph.resolve_all(self.eval_ops, "what an evaluation runs")
        graph.resolve_all(self.final_ops, "the final ops of an evaluation")
        for node in self.feed_dict or ():
            graph.resolve(node, "the feeds of an evaluation's final ops")

    def after_create_session(self, session: Session) -> None:
        """Start counting, inside the block."""
        super().after_create_session(session)
        self._leave(AbortedError("the evaluation begins anew"))
        self._inside.enter_context(self.around(session))
        self._inside.enter_context(self.around_evaluation(self.name, session))

    def end(self, session: Session, outcome: Outcome) -> None:
        """Read the final ops; emit the numbers if the evaluation is complete."""
        self.outcome = outcome
        try:
            if self.final_ops is not None:
                self.values = session.run(self.final_ops, self.feed_dict)
                self.metrics = numbers(self.final_ops, self.values)
        except BaseException as error:
            self._leave(error)
            raise
        cut = "a signal ended the evaluation before its last run"
        self._leave(SessionInterruptedError(cut) if self.cut_short else None)
        if self.final_ops is None:
            return
        short = {metric: float(f"{value:.6g}") for metric, value in self.metrics.items()}
        named = {} if self.name is None else {"name": self.name}
        log.info("evaluated", step=session.global_step, metrics=short, **named)
        if not self.cut_short:
            self.emit_evaluated(self.metrics, session.global_step, self.name)

    def on_exception(self, exception: BaseException) -> None:
        """Leave the block with the error."""
        self._leave(exception)

    def _leave(self, error: BaseException | None) -> None:
        """Leave the block, if it is entered, as if *error* had left it."""
        inside = self._inside.pop_all()
        inside.__exit__(None if error is None else type(error), error, None)


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
    found = {str(name): scalar_in(value) for name, value in named.items()}
    return {name: number for name, number in found.items() if number is not None}


def _name(fetch: Any) -> str:
    return str(getattr(fetch, "name", fetch))


@attrs.define(eq=False)
class StopAtLastStepHook(SessionRunHook):
    """Stops training at a global step, before the first run if the step is reached.

    It is an own hook of calls that train; no flag switches it off.

    Args:
        last_step: the global step to stop at; None for no limit.
    """

    last_step: int | None

    @hookimpl
    def before_first_run(self, session: Session) -> str | None:
        """Stop without a run if the last step is reached already."""
        return self.reason if self.is_reached(session.global_step) else None

    @hookimpl
    def planned_last_step(self) -> int | None:
        """Return the step to stop at."""
        return self.last_step

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop when the last step is reached."""
        if self.is_reached(run_values.global_step):
            run_context.request_stop(self.reason)

    @property
    def reason(self) -> str:
        """The reason to stop."""
        return f"step {self.last_step} is reached"

    def is_reached(self, step: int) -> bool:
        """Return whether a global step is the last one or lies beyond it."""
        return self.last_step is not None and step >= self.last_step


TRAIN_CALL = "learning.train()"
_BOTH = "hookbus.learning"


@attrs.define(eq=False)
class TrainStep(StopAtLastStepHook):
    """Finds or makes the one node to fetch: it does a step and gives the loss.

    Args:
        graph: the graph.
        train_op: the train op.
        loss: the node of the loss.
        each_run: whether each run is a step, so that the run that reaches the last step
            stops the training.

    Attributes:
        fetch: the one node.
    """

    graph: Graph
    train_op: Node
    loss: Node
    each_run: bool
    fetch: Node = attrs.field(init=False)

    @fetch.default
    def _fetch(self) -> Node:
        return self.loss

    @classmethod
    def of(
        cls,
        train_op: Node | str,
        graph: Graph | None,
        loss: Node | str | None,
        number_of_steps: int | None,
        each_run: bool,
    ) -> TrainStep:
        """Look up the nodes.

        Raises:
            UsageError: the train op is None or trains nothing, there is no graph or no
                loss, or the number is not above 0.
            UnknownNodeError, GraphError: the graph has no such node.
        """
        if train_op is None:
            raise UsageError("train_op is None: is a return missing where it is made?")
        check_number("number_of_steps", number_of_steps)
        graph = _graph_of(train_op, graph)
        node = graph.resolve(train_op, f"train_op of {TRAIN_CALL}")
        op = op_behind(graph, node)
        if not any(operation.trains for operation in ops_of(graph, [op])):
            raise UsageError(
                f"train_op is {node!r}, which trains nothing: make it with graph.train_op"
            )
        return cls(number_of_steps, graph, op, _loss_of(graph, node, loss), each_run)

    def begin(self, graph: Graph) -> None:
        """Make one node of the two if the loss does not run the train op."""
        if self.train_op.source not in ops_of(graph, [self.loss]):
            reads = {"done": self.train_op, "loss": self.loss}
            self.fetch = graph.op(_second, name=_BOTH, reads=reads)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop when the last step is reached, if each run is a step."""
        if self.each_run:
            super().after_run(run_context, run_values)


def _second(done: None, loss: Any) -> Any:  # noqa: ARG001 (it is read so that it runs)
    return loss


def _graph_of(train_op: Node | str, graph: Graph | None) -> Graph:
    if graph is None and isinstance(train_op, Node):
        graph = train_op.graph
    if graph is None:
        raise UsageError(f"train_op is {train_op!r}: give its graph with graph=")
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(f"graph must be a Graph, given: {graph!r}")
    return graph


def _loss_of(graph: Graph, train_op: Node, loss: Node | str | None) -> Node:
    """Find the loss: the given one, an op's own value, ``loss``, or the only output."""
    if loss is not None:
        return graph.resolve(loss, f"loss of {TRAIN_CALL}")
    if train_op.kind != "op" or not train_op.source.trains:
        return train_op
    outputs = [name for _, name in train_op.source.outputs]
    if "loss" in graph or len(outputs) == 1:
        return graph.resolve("loss" if "loss" in graph else outputs[0])
    raise UsageError(
        f"train_op {train_op.name!r} has no loss, and the graph has no node 'loss': give "
        "loss=, or make the train op with outputs=['loss']"
    )
