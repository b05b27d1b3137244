"""Metrics gathered batch by batch are what scikit-learn computes of all at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    Config,
    EmbeddedSession,
    Graph,
    GraphError,
    MonitoredTrainingSession,
    UsageError,
    metrics,
)
from hookbus.errors import ArgumentTypeError
from hookbus.metrics import Metric
from tests.support.profiles import examples

OFF = Config(autoload=False, header=False)
Batches = Sequence[Sequence[Any]]


def gathered(make: Callable[..., Metric], batches: Batches, **given: Any) -> Any:
    """Return the value of a metric after batches of what it reads, in its order."""
    graph = Graph()
    inputs = [graph.placeholder(f"part{n}") for n in range(len(batches[0]))]
    metric = make(*inputs, **given)
    graph.finalize()
    session = EmbeddedSession(graph)
    for batch in batches:
        assert session.run(metric.update, dict(zip(inputs, batch, strict=True))) is None
    assert session.global_step == 0
    return session.run(metric.value)


def joined(batches: Batches) -> list[np.ndarray]:
    """Return each part of all batches in one array."""
    parts = zip(*batches, strict=True)
    return [np.concatenate([np.ravel(each) for each in part]) for part in parts]


def batches_of(*columns: st.SearchStrategy) -> st.SearchStrategy:
    """Give one to four batches, of one to eight rows each, as arrays."""

    def transposed(rows):
        return [np.array(column) for column in zip(*rows, strict=True)]

    rows = st.lists(st.tuples(*columns), min_size=1, max_size=8)
    return st.lists(rows.map(transposed), min_size=1, max_size=4)


CLASSES = st.integers(0, 3)
BOOLS = st.integers(0, 1)
SCORES = st.integers(0, 20).map(lambda n: n / 20)
WEIGHTS = st.sampled_from([0.0, 0.25, 1.0, 2.0, 3.0])
NUMBERS = st.floats(-1e6, 1e6)


@settings(max_examples=examples(50))
@given(batches_of(NUMBERS))
def test_a_mean_is_that_of_all_values(batches):
    """However they are spread over batches."""
    (values,) = joined(batches)
    assert gathered(metrics.mean, batches) == pytest.approx(values.mean(), abs=1e-6)


@settings(max_examples=examples(50))
@given(batches_of(NUMBERS, WEIGHTS))
def test_a_weighted_mean_is_that_of_all_values(batches):
    """Where all weights are 0 it is 0."""
    values, weights = joined(batches)
    expected = np.average(values, weights=weights) if weights.any() else 0
    assert gathered(metrics.mean, batches) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=examples(50))
@given(batches_of(CLASSES, CLASSES))
def test_accuracy_is_that_of_all_predictions(batches):
    """Of any number of classes."""
    from sklearn.metrics import accuracy_score

    found = gathered(metrics.accuracy, batches)
    assert found == pytest.approx(accuracy_score(*joined(batches)))


SKLEARN = {
    metrics.accuracy: "accuracy_score",
    metrics.precision: "precision_score",
    metrics.recall: "recall_score",
}
"""Metric to the function of sklearn.metrics, which takes a second to import."""


def in_sklearn(metric):
    return getattr(importlib.import_module("sklearn.metrics"), SKLEARN[metric])


@pytest.mark.parametrize("metric", SKLEARN, ids=lambda metric: metric.__name__)
@settings(max_examples=examples(50))
@given(batches=batches_of(BOOLS, BOOLS, WEIGHTS))
def test_a_weighted_share_is_that_of_all_predictions(metric, batches):
    """Where nothing counts it is 0."""
    labels, predictions, weights = joined(batches)
    more = {} if metric is metrics.accuracy else {"zero_division": 0}
    expected = 0.0
    if weights.any():  # else scikit-learn refuses
        expected = in_sklearn(metric)(labels, predictions, sample_weight=weights, **more)
    assert gathered(metric, batches) == pytest.approx(expected)


@pytest.mark.parametrize("metric", [metrics.precision, metrics.recall])
@settings(max_examples=examples(50))
@given(batches=batches_of(BOOLS, BOOLS))
def test_precision_and_recall_are_those_of_all_predictions(metric, batches):
    """Where there is no positive they are 0."""
    expected = in_sklearn(metric)(*joined(batches), zero_division=0)
    assert gathered(metric, batches) == pytest.approx(expected)


@settings(max_examples=examples(50))
@given(batches=batches_of(BOOLS, SCORES), weighted=st.booleans(), data=st.data())
def test_the_area_is_exact_where_thresholds_tell_all_scores_apart(batches, weighted, data):
    """Ties count half; of one class only the area is 0."""
    from sklearn.metrics import roc_auc_score

    if weighted:
        some = st.sampled_from([0.5, 1.0, 3.0])
        batches = [
            (*batch, np.array([data.draw(some) for _ in batch[0]])) for batch in batches
        ]
    labels, scores, *more = joined(batches)
    weights = more[0] if more else None
    both = len(set(labels)) == 2
    expected = roc_auc_score(labels, scores, sample_weight=weights) if both else 0
    assert gathered(metrics.auc, batches) == pytest.approx(expected)


def test_the_area_is_nearer_the_more_thresholds_there_are():
    """Scores between two thresholds are not told apart."""
    from sklearn.metrics import roc_auc_score

    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 4000)
    scores = np.clip(generator.normal(0.4 + 0.2 * labels, 0.15), 0, 1)
    exact = roc_auc_score(labels, scores)
    batches = list(zip(np.split(labels, 40), np.split(scores, 40), strict=True))
    few, many = (gathered(metrics.auc, batches, num_thresholds=n) for n in (5, 500))
    assert abs(many - exact) < 1e-4 < abs(few - exact)


# Values of other kinds


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (0,)], ids=str)
def test_values_may_have_any_shape(shape):
    """Each number counts once; a batch may have none."""
    values = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape) + 2
    ones = np.ones(4)
    expected = np.concatenate([values.ravel(), ones]).mean()
    assert gathered(metrics.mean, [(values,), (ones,)]) == pytest.approx(expected)
    assert gathered(metrics.accuracy, [(values, values), (ones, ones * 2)]) == (
        values.size / (values.size + 4)
    )


@pytest.mark.parametrize("kind", [float, int, np.float32, np.int64, list])
def test_values_may_be_scalars_of_python_or_numpy_or_lists(kind):
    """The result of an op is taken as it is."""
    parts = [[2], [5]] if kind is list else [kind(2), kind(5)]
    assert gathered(metrics.mean, [(part,) for part in parts]) == 3.5
    assert gathered(metrics.accuracy, [(part, part) for part in parts]) == 1
    assert gathered(metrics.mean, [(part, 1) for part in parts]) == 3.5


def test_bools_are_labels_and_predictions():
    """Whatever is not 0 is positive."""
    labels, said = np.array([True, True, False, False]), np.array([0.5, 0, 2, 0])
    assert gathered(metrics.precision, [(labels, said)]) == 0.5
    assert gathered(metrics.recall, [(labels, said)]) == 0.5
    assert gathered(metrics.accuracy, [(labels, labels)]) == 1
    assert gathered(metrics.auc, [(labels, np.array([0.9, 0.8, 0.1, 0.2]))]) == 1


def test_words_are_classes():
    """Equality is enough."""
    labels, said = np.array(["cat", "dog"]), np.array(["cat", "cow"])
    assert gathered(metrics.accuracy, [(labels, said)]) == 0.5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8])
def test_small_types_lose_nothing(dtype):
    """Sums and counts have the precision of a float."""
    batches = [(np.full(2048, 3, dtype),)] * 40
    assert gathered(metrics.mean, batches) == 3
    one = [(np.ones(1, dtype),)] * 2100
    assert gathered(metrics.mean, [*one, (np.full(2100, 2, dtype),)]) == 1.5


def test_weights_may_be_stretched_to_the_values():
    """A weight for all, for each row, or for each column."""
    values = np.array([[1.0, 2.0], [3.0, 6.0]])
    for weights, expected in (
        (2.0, 3.0),
        (np.array([[1.0], [0.0]]), 1.5),
        (np.array([0.0, 1.0]), 4.0),
    ):
        assert gathered(metrics.mean, [(values, weights)]) == expected


@pytest.mark.parametrize("metric", [*SKLEARN, metrics.auc], ids=lambda m: m.__name__)
@pytest.mark.parametrize("shape", [(4, 1), (1,), (), (5,)], ids=str)
def test_labels_and_predictions_have_one_shape(metric, shape):
    """Else a column beside a row would be compared with all of it."""
    with pytest.raises(UsageError, match=r"labels have the shape \(4,\), and predictions"):
        gathered(metric, [(np.ones(4), np.ones(shape))])


@pytest.mark.parametrize("shape", [(4, 1), (3,), (1, 4)], ids=str)
def test_weights_do_not_stretch_the_values(shape):
    """That would count values several times."""
    with pytest.raises(UsageError, match=r"metric 'mean': values have .* and weights"):
        gathered(metrics.mean, [(np.ones(4), np.ones(shape))])


# Nodes, graphs, sessions


@pytest.mark.parametrize("metric", [metrics.mean, *SKLEARN, metrics.auc])
def test_before_any_batch_the_value_is_0(metric):
    """As in TensorFlow; nothing is divided by nothing."""
    graph = Graph()
    parts = [graph.placeholder("a"), graph.placeholder("b")]
    made = metric(*parts[: 1 if metric is metrics.mean else 2])
    assert EmbeddedSession(graph).run(made.value) == 0


def test_several_metrics_of_one_name_do_not_meet():
    """A number is added to the names of their nodes."""
    graph = Graph()
    x = graph.placeholder("x")
    made = [metrics.mean(x) for _ in range(3)] + [metrics.mean(x, name="own")]
    names = [metric.value.name for metric in made]
    assert names == ["mean/value", "mean_1/value", "mean_2/value", "own/value"]
    session = EmbeddedSession(graph)
    for metric, value in zip(made, (1.0, 2.0, 3.0, 4.0), strict=True):
        session.run(metric.update, {x: value})
    assert session.run([metric.value for metric in made]) == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", [5.0, "x", None, np.ones(2)], ids=repr)
def test_what_a_metric_reads_is_a_node(wrong):
    """A name is not enough: it does not tell the graph."""
    graph = Graph()
    x = graph.placeholder("x")
    with pytest.raises(
        ArgumentTypeError, match=r"values of a metric is .*; expected a node"
    ):
        metrics.mean(wrong)
    with pytest.raises(
        ArgumentTypeError, match=r"predictions of a metric is .*; expected a node"
    ):
        metrics.accuracy(x, wrong)


def test_what_a_metric_reads_is_of_one_graph():
    """The message names the node that is not."""
    graph, other = Graph(), Graph()
    with pytest.raises(GraphError, match="'y'> belongs to another graph"):
        metrics.accuracy(graph.placeholder("x"), other.placeholder("y"))


@pytest.mark.parametrize("number", [1, 0, -1])
def test_an_area_needs_two_thresholds(number):
    """The message names the argument."""
    graph = Graph()
    x = graph.placeholder("x")
    with pytest.raises(
        UsageError, match=f"num_thresholds={number}: expected an integer of at least 2"
    ):
        metrics.auc(x, x, num_thresholds=number)


def counting() -> tuple[Graph, Metric]:
    """Return a graph that trains on an input, and the mean of that."""
    graph = Graph()
    graph.input("batch", lambda: iter([1.0, 2.0, 6.0, 7.0]))
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph, metrics.mean(graph.resolve("batch"))


def test_in_a_session_by_hand_an_update_goes_with_each_run():
    """A value that is fetched with an update is that of before; at the end it is whole."""
    graph, metric = counting()
    with MonitoredTrainingSession(graph, config=OFF) as session:
        request = [metric.value, metric.update, "train"]
        before = [session.run(request)[0] for _ in range(3)]
        assert (before, session.run(metric.value)) == ([0, 1, 1.5], 3)
        assert session.global_step == 3


def test_an_update_alone_is_no_step():
    """It counts for nothing in the global step."""
    graph, metric = counting()
    with MonitoredTrainingSession(graph, config=OFF) as session:
        session.run(metric.update)
        assert session.global_step == 0


def test_what_was_gathered_is_in_no_checkpoint():
    """So it begins anew, and a graph with other metrics can be restored."""
    graph, metric = counting()
    given = {"checkpoint_dir": "run", "config": OFF, "save_summaries_steps": None}
    with MonitoredTrainingSession(graph, **given) as session:
        session.run([metric.update, "train"])
        assert session.run(metric.value) == 1
    content = (Path("run") / "ckpt-1" / "state.json").read_text()
    assert "mean" not in content
    graph, metric = counting()
    more = metrics.mean(graph.resolve("n"))
    with MonitoredTrainingSession(graph, **given) as session:
        assert session.run([metric.value, more.value, "n"]) == [0, 0, 1]


def test_metrics_of_several_sessions_do_not_meet():
    """Each has variables of its own."""
    graph, metric = counting()
    first, second = EmbeddedSession(graph), EmbeddedSession(graph)
    first.run(metric.update)
    assert first.run(metric.value) == 1
    assert second.run(metric.value) == 0
