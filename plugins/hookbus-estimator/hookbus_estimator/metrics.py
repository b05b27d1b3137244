"""Adds metrics to a graph, which accumulates them batch by batch.

Each metric adds variables that accumulate, an op with the value so far, and a train op that
adds a batch to them and does not count as a step. So metrics run on every backend.
Before the first batch the value is 0, as in TensorFlow.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus import Graph, Node, UsageError
from hookbus.errors import ArgumentTypeError


@attrs.frozen(eq=False)
class Metric:
    """A metric of a graph.

    Attributes:
        value: the node of the value so far.
        update: the node to fetch with each batch.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> metric = mean(x)
    >>> metric.value.name, metric.update.name
    ('mean/value', 'mean/update')
    """

    value: Node
    update: Node


def mean(values: Node, weights: Node | None = None, name: str = "mean") -> Metric:
    """Add the mean of all values, weighted or not.

    Args:
        values: a node with an array of any shape, or a number.
        weights: a node with weights of the same shape, or one that broadcasts to it.
        name: the prefix of the nodes' names; a number is added if it is taken.

    >>> graph = Graph()
    >>> values, weights = graph.placeholder("values"), graph.placeholder("weights")
    >>> metric = mean(values, weights)
    >>> from hookbus import SingularMonitoredSession
    >>> with SingularMonitoredSession(graph) as session:
    ...     _ = session.run(metric.update, {"values": [1.0, 5.0], "weights": [3.0, 1.0]})
    ...     float(session.run(metric.value))
    2.0
    """
    return _ratio(name, weights, lambda values: (values, 1.0), values=values)


def accuracy(
    labels: Node, predictions: Node, weights: Node | None = None, name: str = "accuracy"
) -> Metric:
    """Add the share of predictions that equal their labels.

    Args:
        labels: a node with the true values, of any shape.
        predictions: a node with values of the same shape.
        weights: as in :func:`mean`.
        name: as in :func:`mean`.

    >>> graph = Graph()
    >>> labels, predictions = graph.placeholder("labels"), graph.placeholder("predictions")
    >>> metric = accuracy(labels, predictions)
    >>> from hookbus import SingularMonitoredSession
    >>> batch = {"labels": [1, 2, 3, 4], "predictions": [1, 2, 3, 0]}
    >>> with SingularMonitoredSession(graph) as session:
    ...     _ = session.run(metric.update, batch)
    ...     float(session.run(metric.value))
    0.75
    """
    return _ratio(
        name, weights, lambda y, p: (y == p, 1.0), labels=labels, predictions=predictions
    )


def precision(
    labels: Node, predictions: Node, weights: Node | None = None, name: str = "precision"
) -> Metric:
    """Add the share of predicted positives that are positive; nonzero values are positive.

    The arguments are those of :func:`accuracy`.

    >>> graph = Graph()
    >>> labels, predictions = graph.placeholder("labels"), graph.placeholder("predictions")
    >>> metric = precision(labels, predictions)
    >>> from hookbus import SingularMonitoredSession
    >>> batch = {"labels": [1, 0, 0, 1], "predictions": [1, 1, 0, 0]}
    >>> with SingularMonitoredSession(graph) as session:
    ...     _ = session.run(metric.update, batch)
    ...     float(session.run(metric.value))
    0.5
    """
    return _ratio(
        name, weights, lambda y, p: (y != 0, p != 0), labels=labels, predictions=predictions
    )


def recall(
    labels: Node, predictions: Node, weights: Node | None = None, name: str = "recall"
) -> Metric:
    """Add the share of positives that are predicted; nonzero values are positive.

    The arguments are those of :func:`accuracy`.

    >>> graph = Graph()
    >>> labels, predictions = graph.placeholder("labels"), graph.placeholder("predictions")
    >>> metric = recall(labels, predictions)
    >>> from hookbus import SingularMonitoredSession
    >>> batch = {"labels": [1, 1, 1, 1], "predictions": [1, 0, 0, 0]}
    >>> with SingularMonitoredSession(graph) as session:
    ...     _ = session.run(metric.update, batch)
    ...     float(session.run(metric.value))
    0.25
    """
    return _ratio(
        name, weights, lambda y, p: (p != 0, y != 0), labels=labels, predictions=predictions
    )


def auc(
    labels: Node,
    predictions: Node,
    weights: Node | None = None,
    num_thresholds: int = 200,
    name: str = "auc",
) -> Metric:
    """Add the area under the ROC curve, from counts at evenly spaced thresholds.

    Args:
        labels: a node with 0 or 1, or bools, of any shape.
        predictions: a node with scores from 0 to 1, of the same shape.
        weights: as in :func:`mean`.
        num_thresholds: the number of thresholds; more of them give a more exact area.
        name: as in :func:`mean`.

    Raises:
        UsageError: there are fewer than two thresholds.

    >>> graph = Graph()
    >>> labels, scores = graph.placeholder("labels"), graph.placeholder("scores")
    >>> metric = auc(labels, scores)
    >>> from hookbus import SingularMonitoredSession
    >>> batch = {"labels": [0, 1, 0, 1], "scores": [0.1, 0.9, 0.6, 0.8]}
    >>> with SingularMonitoredSession(graph) as session:
    ...     _ = session.run(metric.update, batch)
    ...     round(float(session.run(metric.value)), 3)
    1.0
    """
    if num_thresholds < 2:
        raise UsageError(
            f"auc: num_thresholds={num_thresholds}: expected an integer of at least 2"
        )
    last = num_thresholds - 1
    # The outer two lie just beyond the scores, so that the curve has both its ends.
    thresholds = [-1e-7, *(i / last for i in range(1, last)), 1 + 1e-7]

    def gather(xp: Any, labels: Any, predictions: Any, weights: Any) -> Any:
        above = xp.reshape(predictions, (1, -1)) > xp.reshape(
            xp.asarray(thresholds), (-1, 1)
        )
        weight = xp.reshape(xp.ones_like(predictions) * weights, (1, -1))
        true = xp.reshape(xp.asarray(labels != 0, dtype=float), (1, -1)) * weight
        return (above * true).sum(axis=1), (above * (weight - true)).sum(axis=1)

    def area(xp: Any, hits: Any, alarms: Any) -> Any:
        # Thresholds rise, so both rates fall from 1 to 0.
        rates = [part / (part[0] + 1e-12 * (part[0] == 0)) for part in (hits, alarms)]
        heights = (rates[0][:-1] + rates[0][1:]) / 2
        return xp.sum(heights * (rates[1][:-1] - rates[1][1:]))

    nodes = {"labels": labels, "predictions": predictions}
    zeros = importlib.import_module("numpy").zeros(num_thresholds)
    return _metric(name, nodes, weights, gather, area, {"hits": zeros, "alarms": zeros})


def _ratio(
    name: str,
    weights: Node | None,
    select: Callable[..., tuple[Any, Any]],
    **nodes: Node,
) -> Metric:
    """Add a weighted mean; *select* returns the values and a factor for their weights."""

    def gather(xp: Any, *batch: Any) -> tuple[Any, Any]:
        values, factor = select(*batch[:-1])
        values = xp.asarray(values, dtype=float)  # half precision cannot count far
        weights = batch[-1] * factor
        return xp.sum(values * weights), xp.sum(xp.ones_like(values) * weights)

    def divide(xp: Any, total: Any, count: Any) -> Any:  # noqa: ARG001 (called by position)
        # Without a branch, so that a library can compile it.
        return total * (count != 0) / (count + (count == 0))

    return _metric(name, nodes, weights, gather, divide, {"total": 0.0, "count": 0.0})


def _metric(
    name: str,
    nodes: Mapping[str, Node],
    weights: Node | None,
    gather: Callable[..., tuple[Any, ...]],
    value: Callable[..., Any],
    sums: Mapping[str, Any],
) -> Metric:
    """Add the *sums*, an update that adds the result of *gather*, and their *value*."""
    data = {**nodes, **({} if weights is None else {"weights": weights})}
    graph = _graph_of(data)
    prefix = _free(graph, name)
    parts = {
        key: graph.variable(f"{prefix}/{key}", zero, saved=False)
        for key, zero in sums.items()
    }

    def add(xp: Any, *values: Any) -> tuple[Any, ...]:
        given, before = values[: len(data)], values[len(data) :]
        batch = _arrays(xp, name, dict(zip(data, given, strict=True)))
        more = gather(xp, *batch, *([1.0] if weights is None else []))
        return tuple(old + new for old, new in zip(before, more, strict=True))

    update = graph.train_op(
        _taking(add, "xp", *data, *parts),
        name=f"{prefix}/update",
        reads={**data, **parts},
        updates=tuple(parts.values()),
        increment=0,
    )
    read = graph.op(_taking(value, "xp", *parts), name=f"{prefix}/value", reads=parts)
    return Metric(read, update)


def _arrays(xp: Any, name: str, batch: Mapping[str, Any]) -> list[Any]:
    """Return the arrays of a batch, none of which may broadcast the first one."""
    arrays = {parameter: xp.asarray(value) for parameter, value in batch.items()}
    (first, shape), *others = [(key, tuple(a.shape)) for key, a in arrays.items()]
    for key, other in others:
        if not (_broadcasts(other, shape) if key == "weights" else other == shape):
            raise UsageError(
                f"metric {name!r}: {first} have the shape {shape}, and {key} have the "
                f"shape {other}, which does not fit"
            )
    return list(arrays.values())


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether an array of one shape broadcasts to another shape."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def _taking(fn: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return a function with exactly these parameters, from which a graph finds nodes."""

    def call(*values: Any) -> Any:
        return fn(*values)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _graph_of(nodes: Mapping[str, Node]) -> Graph:
    """Return the graph that all nodes belong to."""
    for parameter, node in nodes.items():
        if not isinstance(node, Node):
            raise ArgumentTypeError(
                f"{parameter} of a metric is {node!r}; expected a node, like "
                "graph.resolve(name)"
            )
    graph: Graph = next(iter(nodes.values())).graph
    return graph


def _free(graph: Graph, name: str) -> str:
    """Return *name*, with a number if the graph has a metric of that name already."""
    names = (f"{name}_{number}" if number else name for number in itertools.count())
    return next(free for free in names if f"{free}/update" not in graph)
