"""Calls a model_fn, and checks the EstimatorSpec that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import attrs

from hookbus import CheckpointSaverListener, Graph, HookObject, Node, Scaffold, UsageError
from hookbus.errors import ArgumentTypeError, UnknownNodeError
from hookbus.validation import as_hooks, names_taken, number_in
from hookbus_estimator.graphs import inputs_of, op_behind, ops_of
from hookbus_estimator.inputs import BatchedInput
from hookbus_estimator.metrics import Metric

NodeOrName: TypeAlias = Node | str


class ModeKeys:
    """The values of a model_fn's argument ``mode``.

    Attributes:
        TRAIN: ``train``.
        EVAL: ``eval``.
        PREDICT: ``infer``.

    >>> ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT
    ('train', 'eval', 'infer')
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def _or_empty(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {} if given is None else given


def hooks_field(name: str) -> Any:
    """Return an attrs field for a list of hooks."""
    return attrs.field(default=(), converter=lambda hooks: as_hooks(hooks, name))


def check_listeners(given: Iterable[Any] | None) -> tuple[CheckpointSaverListener, ...]:
    """Return the listeners of an argument as a tuple.

    Raises:
        ArgumentTypeError: it is not a list of listeners.
    """
    is_list = isinstance(given, Iterable | None)
    listeners = tuple(given or ()) if is_list else ()
    wrong = [each for each in listeners if not isinstance(each, CheckpointSaverListener)]
    if wrong or not is_list:
        raise ArgumentTypeError(
            "saving_listeners must be a list of CheckpointSaverListener, given: "
            f"{(wrong[0] if is_list else given)!r}"
        )
    return listeners


@attrs.frozen(eq=False)
class EstimatorSpec:
    """Describes the nodes that a model_fn has added to the graph for one mode.

    Nodes may be given as nodes or by name. Fields of other modes are ignored, so a model_fn
    can always return all of them.

    Args:
        mode: one of :class:`ModeKeys`.
        predictions: a node, or a dict key to node, with one row for each example; needed to
            predict.
        loss: a node with one number; needed to train and to evaluate.
        train_op: the train op; needed to train.
        eval_metric_ops: name to metric, from :mod:`hookbus.metrics`, or to a pair (value,
            update) of nodes: the update runs with each batch, the value is read at the end.
        export_outputs: for exporters; hookbus itself does not use it.
        training_chief_hooks: hooks of the process that saves, called first.
        training_hooks: hooks for training, called after the hooks given to ``train``.
        scaffold: how to initialize the session.
        evaluation_hooks: hooks for evaluations.
        prediction_hooks: hooks for predictions.

    Raises:
        UsageError: a field that the mode needs is missing, or a metric has the name of
            another entry in the result of ``evaluate``.
        ArgumentTypeError: a field has the wrong type.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> loss = graph.op(lambda x: x**2, name="loss")
    >>> EstimatorSpec(ModeKeys.EVAL, predictions=x, loss="loss").loss
    'loss'
    """

    RESERVED: ClassVar = ("loss", "global_step")

    mode: str
    predictions: NodeOrName | Mapping[str, NodeOrName] | None = None
    loss: NodeOrName | None = None
    train_op: NodeOrName | None = None
    eval_metric_ops: Mapping[str, Any] = attrs.field(default=None, converter=_or_empty)
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: Sequence[HookObject] = hooks_field("training_chief_hooks")
    training_hooks: Sequence[HookObject] = hooks_field("training_hooks")
    scaffold: Scaffold | None = None
    evaluation_hooks: Sequence[HookObject] = hooks_field("evaluation_hooks")
    prediction_hooks: Sequence[HookObject] = hooks_field("prediction_hooks")

    def __attrs_post_init__(self) -> None:
        if self.mode not in _MODES:
            raise UsageError(f"mode={self.mode!r}: expected one of {', '.join(_MODES)}")
        self._check_required()
        if self.scaffold is not None and not isinstance(self.scaffold, Scaffold):
            raise ArgumentTypeError(
                f"scaffold must be a Scaffold, given: {self.scaffold!r}"
            )
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
                    f"Missing {field}. An EstimatorSpec for {self.mode} needs it"
                )

    def _check_metrics(self) -> None:
        if not isinstance(self.eval_metric_ops, Mapping):
            raise ArgumentTypeError(
                "eval_metric_ops must be a dict, name to metric, given: "
                f"{self.eval_metric_ops!r}"
            )
        for name in self.eval_metric_ops:
            if not isinstance(name, str):
                raise ArgumentTypeError(
                    f"the name of a metric must be a str, given: {name!r}"
                )
        for name in self.RESERVED:
            if name in self.eval_metric_ops:
                raise UsageError(
                    f"Metric with name {name!r} is not allowed, because the result of "
                    "evaluate() has an entry of that name itself"
                )

    def resolved(self, graph: Graph) -> EstimatorSpec:
        """Return a spec with nodes in place of names.

        Raises:
            UnknownNodeError, GraphError: the graph has no such node.
            UsageError: the train op does not train.
        """
        found: dict[str, Any] = {
            field: _node(graph, getattr(self, field), field)
            for field in ("loss", "train_op")
            if getattr(self, field) is not None
        }
        if "train_op" in found:
            found["train_op"] = op_behind(graph, found["train_op"])
        if self.mode == ModeKeys.TRAIN and not any(
            operation.increment for operation in ops_of(graph, [found["train_op"]])
        ):
            raise UsageError(
                f"train_op of the EstimatorSpec is {found['train_op']!r}, which trains "
                "nothing or does not count as a step: make it with graph.train_op"
            )
        predicted: Any = self.predictions
        if isinstance(predicted, Mapping):
            predicted = {k: _node(graph, v, "predictions") for k, v in predicted.items()}
        elif predicted is not None:
            predicted = _node(graph, predicted, "predictions")
        metrics = dict(self._metrics(graph))
        return attrs.evolve(self, predictions=predicted, eval_metric_ops=metrics, **found)

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
            field = f"eval_metric_ops[{name!r}]"
            yield name, Metric(*(_node(graph, node, field) for node in pair))


def _node(graph: Graph, given: Any, field: str) -> Node:
    """Return the node of a spec's field, which may hold its name.

    Raises:
        ArgumentTypeError: the field is neither a node nor a name.
        UnknownNodeError, GraphError: the graph has no such node.
    """
    asker = f"{field} of the EstimatorSpec"
    if not isinstance(given, Node | str):
        raise ArgumentTypeError(f"{asker} must be a node or its name, given: {given!r}")
    return graph.resolve(given, asker)


_MODEL_FN_TAKES = ("features", "labels", "mode", "params", "config")
_INPUT_FN_TAKES = ("mode", "params", "config")


@attrs.frozen(eq=False)
class ModelFn:
    """A model function.

    Args:
        fn: the function.
        graph: makes the graphs.

    Raises:
        ArgumentTypeError: *fn* is not a function.
        UsageError: the function has an unknown parameter.
    """

    fn: Callable[..., EstimatorSpec]
    graph: Callable[[], Graph] = Graph
    _names: tuple[str, ...] = attrs.field(init=False)

    @_names.default
    def _names_taken(self) -> tuple[str, ...]:
        return names_taken(self.fn, "model_fn", _MODEL_FN_TAKES)

    def build(
        self, input_fn: Callable[..., Iterable[Any]], mode: str, given: Mapping[str, Any]
    ) -> tuple[Graph, EstimatorSpec]:
        """Build the model's graph on the batches of an input.

        Args:
            input_fn: returns the batches.
            mode: one of :class:`ModeKeys`.
            given: ``params`` and ``config``.

        Raises:
            UsageError: the input has no batch, or the function does not return a fitting
                EstimatorSpec.
        """
        given = {**given, "mode": mode}
        wanted = names_taken(input_fn, "input_fn", _INPUT_FN_TAKES)
        batches = BatchedInput(
            lambda: input_fn(**{name: given[name] for name in wanted}),
            labelled=mode != ModeKeys.PREDICT,
        )
        graph = self.graph()
        features, labels = batches.add_to(graph)
        if labels is not None and "labels" not in self._names:
            raise UsageError(
                "input_fn gives labels, and model_fn has no parameter 'labels': add it"
            )
        given |= {"features": features, "labels": labels}
        try:
            spec = self.fn(**{name: given[name] for name in self._names})
        except UnknownNodeError as error:
            if labels is None:
                error.add_note(_why_no_labels(mode))
            raise
        return graph, _checked(spec, mode, graph)


def _checked(spec: Any, mode: str, graph: Graph) -> EstimatorSpec:
    """Return a checked spec with nodes in place of names; declare its loss a summary."""
    if not isinstance(spec, EstimatorSpec):
        raise UsageError(
            f"model_fn should return an EstimatorSpec. It returned a {type(spec).__name__}"
        )
    if spec.mode != mode:
        raise UsageError(
            f"model_fn was called with mode={mode!r} and returned an EstimatorSpec for "
            f"{spec.mode!r}: give the spec the same mode"
        )
    found = spec.resolved(graph)
    if found.loss is not None and "loss" not in graph.declared:
        graph.summary.scalar("loss", found.loss)
    return found


def _why_no_labels(mode: str) -> str:
    if mode == ModeKeys.PREDICT:
        return "predictions have no labels: add the ops that read them in other modes only"
    return "input_fn gives no labels: it yields features, not pairs (features, labels)"


def check_ends(call: str, graph: Graph, fetches: Any) -> None:
    """Check that a call which runs until its input ends reads the input.

    Raises:
        UsageError: nothing that the call fetches reads it.
    """
    if not inputs_of(graph, graph.resolve_all(fetches, call)):
        raise UsageError(
            f"{call} would never end: none of the nodes that the model_fn gave it reads "
            "features or labels; let one of them read these"
        )


def number_of(loss: Any) -> float:
    """Return the value of a loss as a float.

    Raises:
        UsageError: the value is not one number.
    """
    number = number_in(loss)
    if number is None:
        raise UsageError(
            f"Loss must be scalar: loss of the EstimatorSpec gives a {type(loss).__name__} "
            f"of the shape {tuple(getattr(loss, 'shape', ()))}"
        )
    return number
