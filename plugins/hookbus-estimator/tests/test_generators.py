"""Evaluations and predictions leave the process's random generators where they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    RunConfig,
    SessionRunHook,
    TrainSpec,
    metrics,
    train_and_evaluate,
)
from tests.support.estimating import RUN, WatchHook, estimator, numbers


def generators() -> tuple[Any, ...]:
    """Return where Python's generator and NumPy's stand."""
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, keys.tobytes(), rest


def draw(*_given: Any) -> float:
    """Draw from both."""
    return random.random() + np.random.normal()


class DrawsHook(SessionRunHook):
    """Draws a number in each of its events."""

    def begin(self):
        draw()

    after_create_session = before_run = after_run = end = lambda self: draw() and None


def drawing(features: Any, mode: str) -> EstimatorSpec:
    """Build a model that draws: weights when it is built, noise in each step."""
    made = features.graph
    made.variable("w", draw() * np.ones(3))

    @made.op
    def noisy(features):
        return features.mean() + np.random.normal(size=3) * random.random()

    made.op(lambda noisy, w: float((noisy - w).mean() ** 2), name="loss")
    made.train_op(lambda w, noisy: w + 0.1 * noisy, name="train", updates="w")
    made.op(lambda noisy, features: features + noisy[0], name="guess")
    found = {"mean": metrics.mean(made.resolve("noisy"))}
    given = {"train_op": "train", "predictions": "guess", "eval_metric_ops": found}
    return EstimatorSpec(mode, loss="loss", **given)


def shuffled(count: int = 20) -> Iterator[np.ndarray]:
    """Give batches in an order of chance, passes without end of their own."""
    for _ in range(3):
        for number in np.random.permutation(count):
            yield np.full(2, number + random.random())


@pytest.fixture
def drawn() -> Estimator:
    """An Estimator of a model that draws, which has trained."""
    return Estimator(drawing, RUN, RunConfig(save_checkpoints_steps=5)).train(
        shuffled, steps=5
    )


def test_looking_at_the_first_batch_draws_no_number():
    """The model function is the first to draw, though the input also draws."""
    built = []

    def model_fn(features, mode):
        built.append(draw())
        return drawing(features, mode)

    random.seed(4)
    np.random.seed(4)
    expected = draw()
    random.seed(4)
    np.random.seed(4)
    Estimator(model_fn, RUN).train(shuffled, steps=1)
    assert built == [expected]


def test_an_evaluation_leaves_the_generators_alone(drawn):
    """Though its model, its input and its hooks draw."""
    before = generators()
    drawn.evaluate(shuffled, 7, [DrawsHook()])
    assert generators() == before


def test_an_evaluation_that_fails_leaves_the_generators_alone(drawn):
    """Wherever it fails: in a hook, in the input, in the model function."""

    class FailsHook(DrawsHook):
        def after_run(self):
            raise ZeroDivisionError(draw())

    def fails(*_given):
        raise ZeroDivisionError(draw())

    before = generators()
    other = Estimator(lambda features: fails(), RUN)
    for made, batches, hook in (
        (drawn, shuffled, FailsHook()),
        (drawn, lambda: map(fails, "ab"), DrawsHook()),
        (other, shuffled, DrawsHook()),
    ):
        with pytest.raises(ZeroDivisionError):
            made.evaluate(batches, hooks=[hook])
        assert generators() == before


@pytest.mark.long
def test_predictions_leave_the_generators_alone(drawn):
    """After each next(), when it is closed early, and at its end."""
    before = generators()
    for left in 1, 5, 200:
        predictions = drawn.predict(shuffled, hooks=[DrawsHook()])
        assert generators() == before
        for _ in range(left):
            next(predictions, None)
            assert generators() == before
        predictions.close()
        assert generators() == before


def test_a_consumer_may_draw_between_two_predictions(drawn):
    """Its numbers are those that it would have drawn without."""
    random.seed(3)
    alone = [random.random() for _ in range(9)]
    random.seed(3)
    predictions = drawn.predict(shuffled)
    assert [random.random() for _ in zip(range(9), predictions)] == alone  # noqa: B905


def test_predictions_draw_on_from_batch_to_batch():
    """As if all of them were made at once."""

    def noise(graph):
        return graph.op(lambda features: np.random.normal(size=features.shape), name="own")

    made = estimator(predictions=noise).train(numbers(1))
    np.random.seed(4)
    together = np.random.normal(size=6).tolist()
    np.random.seed(4)
    assert list(made.predict(numbers(3))) == together


def whole(evaluates: bool, directory: str) -> tuple[Any, ...]:
    """Train, with evaluations in between or without; return all that came of it."""
    random.seed(1)
    np.random.seed(2)
    made = Estimator(drawing, directory, RunConfig(save_checkpoints_steps=4))
    watch = WatchHook()
    if evaluates:
        spec = EvalSpec(shuffled, 5, throttle_secs=0, hooks=[DrawsHook()])
        result, _ = train_and_evaluate(made, TrainSpec(shuffled, 50, [watch]), spec)
        assert result is not None
    else:
        made.train(shuffled, [watch], max_steps=50)
    content = [Path(directory, "ckpt-50", "arrays.safetensors").read_bytes()]
    return made.get_variable_value("w").tobytes(), watch.events, generators(), content


def test_evaluations_in_between_leave_the_training_bit_for_bit_as_it_is():
    """Weights, generators, events and the last checkpoint are those without."""
    assert whole(True, "with") == whole(False, "without")
