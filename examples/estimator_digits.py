"""Train, evaluate and predict with an Estimator: handwritten digits, in plain NumPy.

As a script this file does all three. The commands ``hookbus train``, ``hookbus evaluate``
and ``hookbus predict`` do one each, with the functions ``estimator`` and ``train_input`` or
``test_input`` of this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hookbus import Estimator, EstimatorSpec, ModeKeys, Node, RunConfig, metrics

Array = np.ndarray
CLASSES, BATCH, EPOCHS = 10, 64, 25
PARAMS = {"hidden": 64, "rate": 0.5}

IMAGES, LABELS = load_digits(return_X_y=True)
X_TRAIN, X_TEST, Y_TRAIN, Y_TEST = train_test_split(
    IMAGES / 16, LABELS, test_size=0.2, random_state=0, stratify=LABELS
)


def train_input() -> Iterator[tuple[Array, Array]]:
    """Yield the batches of all epochs, each epoch in a new order."""
    order = np.random.default_rng(7)
    for _ in range(EPOCHS):
        shuffled = order.permutation(len(X_TRAIN))
        for start in range(0, len(X_TRAIN) - BATCH + 1, BATCH):
            chosen = shuffled[start : start + BATCH]
            yield X_TRAIN[chosen], Y_TRAIN[chosen]


def test_input() -> Iterator[tuple[Array, Array]]:
    """Yield the held-out fifth of the digits, once."""
    for start in range(0, len(X_TEST), BATCH):
        yield X_TEST[start : start + BATCH], Y_TEST[start : start + BATCH]


def model_fn(
    features: Node, labels: Node, mode: str, params: dict[str, Any]
) -> EstimatorSpec:
    """Build two layers, and a loss and metrics if there are labels."""
    draw, hidden_units = np.random.default_rng(1), params["hidden"]
    graph = features.graph
    graph.variable("w1", draw.normal(0, 0.1, (IMAGES.shape[1], hidden_units)))
    graph.variable("b1", np.zeros(hidden_units))
    graph.variable("w2", draw.normal(0, 0.1, (hidden_units, CLASSES)))
    graph.variable("b2", np.zeros(CLASSES))

    @graph.op
    def hidden(features, w1, b1):
        return np.maximum(features @ w1 + b1, 0)

    @graph.op
    def probabilities(hidden, w2, b2):
        logits = hidden @ w2 + b2
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    @graph.op
    def digit(probabilities):
        return probabilities.argmax(axis=1)

    predictions = {"digit": digit, "probabilities": probabilities}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)

    @graph.op
    def loss(probabilities, labels):
        return -np.log(probabilities[np.arange(len(labels)), labels]).mean()

    @graph.train_op(updates=["w1", "b1", "w2", "b2"])
    def train(features, labels, hidden, probabilities, w1, b1, w2, b2):
        error = (probabilities - np.eye(CLASSES)[labels]) / len(labels)
        back = (error @ w2.T) * (hidden > 0)
        rate = params["rate"]
        return (
            w1 - rate * features.T @ back,
            b1 - rate * back.sum(axis=0),
            w2 - rate * hidden.T @ error,
            b2 - rate * error.sum(axis=0),
        )

    accuracy = {"accuracy": metrics.accuracy(labels, digit)}
    return EstimatorSpec(mode, predictions, loss, train, accuracy)


def estimator(model_dir: str = "runs/estimator_digits") -> Estimator:
    """Return the Estimator."""
    config = RunConfig(save_checkpoints_steps=100)
    return Estimator(model_fn, model_dir, config, PARAMS)


def main() -> None:
    """Train, evaluate, and show the prediction that the model is least sure of."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-steps", type=int, default=300)
    options = parser.parse_args()

    model = estimator()
    model.train(train_input, max_steps=options.max_steps)
    found = model.evaluate(test_input)
    print(f"held-out accuracy: {found['accuracy']:.1%}")
    least = min(model.predict(test_input), key=lambda one: one["probabilities"].max())
    share = least["probabilities"].max()
    print(f"least sure of a {least['digit']}: {share:.0%}")


if __name__ == "__main__":
    main()
