"""What a model_fn returns, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import attrs

from hookbus.backend.program import plan
from hookbus.errors import ArgumentTypeError, UnknownNodeError, UsageError
from hookbus.estimator.inputs import BatchedInput
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.traversal import inputs_of
from hookbus.metrics import Metric
from hookbus.plugin.roster import as_hooks
from hookbus.session.creators import Scaffold
from hookbus.validation import names_taken, number_in

NodeOrName: TypeAlias = Node | str


class ModeKeys:
    """What a model_fn is called for, as its argument ``mode``."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def _or_none(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {} if given is None else given


def _hooks_of(field: str) -> Any:
    return attrs.field(default=(), converter=lambda hooks: as_hooks(hooks, field))


@attrs.frozen(eq=False)
class EstimatorSpec:
    """What a model_fn has built into the graph, for one mode.

    Nodes may be given as nodes or by name. Fields of other modes are ignored, so that one
    model_fn can return all of them always.

    Args:
        mode: what it is for, one of :class:`ModeKeys`.
        predictions: a node, or a dict key to node, with one row for each example.
        loss: a node with one number.
        train_op: the train op.
        eval_metric_ops: name to metric, from :mod:`hookbus.metrics`, or to a pair (value,
            update) of nodes: the update runs with each batch, the value is read at the end.
        export_outputs: kept for exporters; hookbus itself does not look at it.
        training_chief_hooks: hooks of the process that saves, called first of all.
        training_hooks: hooks for training, called after those that ``train`` is given.
        scaffold: how the session is initialized.
        evaluation_hooks: hooks for evaluations.
        prediction_hooks: hooks for predictions.

    Raises:
        UsageError: what the mode needs is missing, or a metric has a name that the result
            of ``evaluate`` needs itself.
        ArgumentTypeError: something is of a type that does not fit.
    """

    RESERVED: ClassVar = ("loss", "global_step")

    mode: str
    predictions: NodeOrName | Mapping[str, NodeOrName] | None = None
    loss: NodeOrName | None = None
    train_op: NodeOrName | None = None
    eval_metric_ops: Mapping[str, Any] = attrs.field(default=None, converter=_or_none)
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: tuple[Any, ...] = _hooks_of("training_chief_hooks")
    training_hooks: tuple[Any, ...] = _hooks_of("training_hooks")
    scaffold: Scaffold | None = None
    evaluation_hooks: tuple[Any, ...] = _hooks_of("evaluation_hooks")
    prediction_hooks: tuple[Any, ...] = _hooks_of("prediction_hooks")

    def __attrs_post_init__(self) -> None:
        if self.mode not in _MODES:
            raise UsageError(f"mode={self.mode!r} is none of {', '.join(_MODES)}")
        self._check_required()
        if self.scaffold is not None and not isinstance(self.scaffold, Scaffold):
            raise ArgumentTypeError(f"scaffold is no Scaffold, given: {self.scaffold!r}")
        self._check_metrics()

    def _check_required(self) -> None:
        required = {
            ModeKeys.TRAIN: ("train_op", "loss"),
            ModeKeys.EVAL: ("loss",),
            ModeKeys.PREDICT: ("predictions",),
        }
        for field in required[self.mode]:
            if getattr(self, field) is None:
                raise UsageError(
                    f"Missing {field}. An EstimatorSpec for {self.mode} has one"
                )

    def _check_metrics(self) -> None:
        if not isinstance(self.eval_metric_ops, Mapping):
            raise ArgumentTypeError(
                "eval_metric_ops is a dict, name to metric, given: "
                f"{self.eval_metric_ops!r}"
            )
        for name in self.eval_metric_ops:
            if not isinstance(name, str):
                raise ArgumentTypeError(f"the name of a metric is a str, given: {name!r}")
        for name in self.RESERVED:
            if name in self.eval_metric_ops:
                raise UsageError(
                    f"Metric with name {name!r} is not allowed, because the result of "
                    "evaluate() has an entry of that name itself"
                )

    def resolved(self, graph: Graph) -> EstimatorSpec:
        """Return it with nodes in the place of names.

        Raises:
            UnknownNodeError, GraphError: a name is no node's, or a node another graph's.
            UsageError: the train op is none.
        """

        def node(given: Any, field: str) -> Node:
            return _node(graph, given, f"{field} of the EstimatorSpec")

        found: dict[str, Any] = {
            field: node(getattr(self, field), field)
            for field in ("loss", "train_op")
            if getattr(self, field) is not None
        }
        if self.mode == ModeKeys.TRAIN and not _advances(graph, found["train_op"]):
            raise UsageError(
                f"train_op of the EstimatorSpec is {found['train_op']!r}, which trains "
                "nothing, or counts no step: make it with graph.train_op"
            )
        predictions: Any = self.predictions
        if isinstance(predictions, Mapping):
            predictions = {k: node(v, "predictions") for k, v in predictions.items()}
        elif predictions is not None:
            predictions = node(predictions, "predictions")
        metrics = dict(self._metrics(graph))
        return attrs.evolve(self, predictions=predictions, eval_metric_ops=metrics, **found)

    def _metrics(self, graph: Graph) -> Iterator[tuple[str, Metric]]:
        for name, given in self.eval_metric_ops.items():
            pair = (
                attrs.astuple(given, recurse=False) if isinstance(given, Metric) else given
            )
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ArgumentTypeError(
                    f"eval_metric_ops[{name!r}] is a metric of hookbus.metrics or a pair "
                    f"(value, update) of nodes, given: {given!r}"
                )
            asker = f"eval_metric_ops[{name!r}] of the EstimatorSpec"
            yield name, Metric(*(_node(graph, node, asker) for node in pair))


def _node(graph: Graph, given: Any, field: str) -> Node:
    """Return the node that a field of a spec is, or names.

    Raises:
        ArgumentTypeError: it is neither a node nor a name.
        UnknownNodeError, GraphError: a name is no node's, or a node another graph's.
    """
    if not isinstance(given, Node | str):
        raise ArgumentTypeError(f"{field} is a node or its name, given: {given!r}")
    return graph.resolve(given, field)


def _advances(graph: Graph, node: Node) -> bool:
    """Say whether a run of a node, or of those that it reads, counts as a step."""
    fed = [node.name for node in graph.nodes.values() if node.kind == "placeholder"]
    return plan(graph, [node.name], frozenset(fed)).increment > 0


_MODEL_FN_TAKES = ("features", "labels", "mode", "params", "config")
_INPUT_FN_TAKES = ("mode", "params", "config")


@attrs.frozen(eq=False)
class ModelFn:
    """A model function.

    Args:
        fn: the function.

    Raises:
        ArgumentTypeError: it is none.
        UsageError: it has a parameter that it cannot have.
    """

    fn: Callable[..., EstimatorSpec]
    _names: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        names = names_taken(self.fn, "model_fn", _MODEL_FN_TAKES)
        object.__setattr__(self, "_names", names)

    def build(
        self, input_fn: Callable[..., Iterable[Any]], mode: str, given: Mapping[str, Any]
    ) -> tuple[Graph, EstimatorSpec]:
        """Build it on the batches of an input.

        Args:
            input_fn: gives the batches.
            mode: one of :class:`ModeKeys`.
            given: ``params`` and ``config``.

        Raises:
            UsageError: the input has no batch, or the function did not return what it
                should.
        """
        given = {**given, "mode": mode}
        wanted = names_taken(input_fn, "input_fn", _INPUT_FN_TAKES)
        batches = BatchedInput(
            lambda: input_fn(**{name: given[name] for name in wanted}),
            labelled=mode != ModeKeys.PREDICT,
        )
        graph = Graph()
        features, labels = batches.add_to(graph)
        if labels is not None and "labels" not in self._names:
            raise UsageError(
                "model_fn has no parameter labels, and input_fn gives labels: name it"
            )
        given |= {"features": features, "labels": labels}
        try:
            spec = self.fn(**{name: given[name] for name in self._names})
        except UnknownNodeError as error:
            if labels is None:
                error.add_note(f"hookbus: {_why_no_labels(mode)}")
            raise
        return graph, _checked(spec, mode, graph)


def _checked(spec: Any, mode: str, graph: Graph) -> EstimatorSpec:
    """Return a spec with its nodes; have its loss shown."""
    if not isinstance(spec, EstimatorSpec):
        raise UsageError(
            f"model_fn should return an EstimatorSpec. It returned a {type(spec).__name__}"
        )
    if spec.mode != mode:
        raise UsageError(
            f"model_fn was called with mode={mode!r} and returned an EstimatorSpec for "
            f"{spec.mode!r}: pass mode on"
        )
    found = spec.resolved(graph)
    if found.loss is not None and "loss" not in graph.declared:
        graph.summary.scalar("loss", found.loss)
    return found


def _why_no_labels(mode: str) -> str:
    if mode == ModeKeys.PREDICT:
        return "there are no labels in a prediction: add what reads them in other modes"
    return "input_fn gives no labels: it yields features, not pairs (features, labels)"


def check_ends(call: str, graph: Graph, fetches: Any) -> None:
    """Refuse a call that goes on to the end of an input which it does not read.

    Raises:
        UsageError: it does not read it.
    """
    if not inputs_of(graph, graph.resolve_all(fetches, call)):
        raise UsageError(
            f"{call} would never end: nothing that the model_fn has it compute reads "
            "features or labels"
        )


def number_of(loss: Any) -> float:
    """Return the value of a loss as a float.

    Raises:
        UsageError: it is not one number.
    """
    number = number_in(loss)
    if number is None:
        raise UsageError(
            f"Loss must be scalar: loss of the EstimatorSpec gives a {type(loss).__name__} "
            f"of the shape {tuple(getattr(loss, 'shape', ()))}"
        )
    return number
