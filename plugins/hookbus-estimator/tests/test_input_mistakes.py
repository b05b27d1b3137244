"""Tests what an Estimator refuses of its input, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import Estimator, EstimatorSpec, Node, UsageError
from hookbus.errors import UnknownNodeError
from tests.support.estimating import RUN, estimator, numbers


@pytest.mark.parametrize("input_fn", [None, 5, [np.ones(2)], numbers(3)()], ids=type)
def test_an_input_fn_is_a_function(input_fn):
    """Its result would not be a function."""
    made = estimator().train(numbers(1))
    for call in made.train, made.evaluate, lambda given: list(made.predict(given)):
        with pytest.raises(TypeError, match="input_fn must be a function, given: "):
            call(input_fn)


def test_an_input_fn_with_a_wrong_parameter_is_refused():
    """With those that there are."""
    with pytest.raises(UsageError, match=r"input_fn has .*'batch_size'; it may have mode,"):
        estimator().train(lambda batch_size: [])


def test_an_input_fn_that_does_not_tell_its_parameters_is_refused():
    """Some that are built in do not."""
    with pytest.raises(TypeError, match="cannot read the parameters of input_fn: wrap"):
        estimator().train(dict)


@pytest.mark.parametrize(
    "returned",
    [None, 5, "batches", b"batches", {"x": np.ones(2)}, (np.ones(2), np.ones(2))],
    ids=type,
)
def test_an_input_fn_returns_an_iterable_of_batches(returned):
    """One batch alone is not; the message says how it becomes one."""
    name = type(returned).__name__
    with pytest.raises(
        TypeError, match=f"input_fn returned a {name}; expected an iterable of batches"
    ):
        estimator().train(lambda: returned)


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_an_empty_input_is_refused(call):
    """A run that does nothing is a mistake, as is a mean of nothing."""
    made = estimator().train(numbers(1))
    with pytest.raises(UsageError, match="input_fn gave no batch: its input is empty"):
        list(getattr(made, call)(lambda: iter([])))


X, Y = np.ones(2), np.zeros(2)
CHANGES = [
    ((X, {"x": X}), "in one array, no labels, a later one has features with the keys"),
    (
        (X, (X, Y)),
        "no labels, a later one has features in one array and labels in one array",
    ),
    (
        ((X, Y), X),
        "and labels in one array, a later one has features in one array, no labels",
    ),
    (({"x": X}, {"y": X}), r"with the keys \['x'\], no labels, .* with the keys \['y'\]"),
    (((X, Y), (X, {"y": Y})), r"labels in one array, .* labels with the keys \['y'\]"),
]


@pytest.mark.parametrize(("batches", "told"), CHANGES)
@pytest.mark.parametrize("first", ["features", "labels"])
def test_batches_of_changing_structure_are_refused(batches, told, first):
    """The message tells both; whichever of the nodes is read first."""

    def model_fn(features, labels, mode):
        graph = features.graph
        part = labels if first == "labels" and labels is not None else features
        node = part if isinstance(part, Node) else next(iter(part.values()))
        graph.op(lambda x: float(np.sum(x)), name="loss", reads={"x": node})
        graph.variable("w", 0.0)
        graph.train_op(lambda w, loss: w + loss, name="train", updates="w")
        return EstimatorSpec(mode, loss="loss", train_op="train")

    with pytest.raises(UsageError, match=f"changed the structure .*{told}"):
        Estimator(model_fn, RUN).train(lambda: list(batches))


def test_an_error_of_the_input_leaves_as_it_is():
    """Whenever it comes."""

    def fails(after):
        yield from numbers(after)()
        raise ZeroDivisionError("no disk")

    for after in 0, 2:
        with pytest.raises(ZeroDivisionError, match="no disk"):
            estimator().train(lambda after=after: fails(after))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda made: made.train(lambda: [X]), "input_fn gives no labels: it yields feat"),
        (lambda made: next(made.predict(lambda: [(X, Y)])), "predictions have no labels"),
    ],
)
def test_an_op_that_reads_labels_is_told_why_there_are_none(call, why):
    """They may be missing in the input, and always are in a prediction."""

    def model_fn(features, labels, mode):
        features.graph.op(lambda labels: labels, name="same")

    made = Estimator(model_fn, RUN)
    estimator().train(lambda: [X])
    with pytest.raises(UnknownNodeError, match="no node 'labels'") as raised:
        call(made)
    assert why in raised.value.__notes__[0]
