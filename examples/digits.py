"""Train a two-layer network on scikit-learn's handwritten digits, in plain NumPy.

This file contains the model and the loop. Flags decide what hooks log, save and watch: see
``hookbus run --help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hookbus import Graph, MonitoredTrainingSession

Array = np.ndarray
HIDDEN, CLASSES, BATCH, RATE, MOMENTUM = 64, 10, 64, 0.2, 0.9


def batches(images: Array, labels: Array, epochs: int) -> list[tuple[Array, Array]]:
    """Return the batches of all epochs, each epoch in a new order."""
    order = np.random.default_rng(7)

    def epoch() -> Iterator[tuple[Array, Array]]:
        shuffled = order.permutation(len(images))
        for start in range(0, len(images) - BATCH + 1, BATCH):
            chosen = shuffled[start : start + BATCH]
            yield images[chosen], labels[chosen]

    return [batch for _ in range(epochs) for batch in epoch()]


def network(images: Array, labels: Array, epochs: int) -> Graph:
    """Build the graph: input, two layers, loss, accuracy, and one training op."""
    draw = np.random.default_rng(1)
    graph = Graph()
    graph.input("batch", lambda: batches(images, labels, epochs))
    graph.variable("w1", draw.normal(0, 0.1, (images.shape[1], HIDDEN)))
    graph.variable("b1", np.zeros(HIDDEN))
    graph.variable("w2", draw.normal(0, 0.1, (HIDDEN, CLASSES)))
    graph.variable("b2", np.zeros(CLASSES))
    weights = ("w1", "b1", "w2", "b2")
    for name in weights:
        graph.variable(f"{name}_speed", np.zeros_like(graph.nodes[name].source))

    @graph.op
    def x(batch):
        # A little noise makes the network robust; it comes from the global generator.
        return batch[0] + np.random.normal(0, 0.05, batch[0].shape)

    @graph.op
    def y(batch):
        return batch[1]

    @graph.op
    def hidden(x, w1, b1):
        return np.maximum(x @ w1 + b1, 0)

    @graph.op
    def probabilities(hidden, w2, b2):
        logits = hidden @ w2 + b2
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    @graph.op
    def loss(probabilities, y):
        return -np.log(probabilities[np.arange(len(y)), y]).mean()

    @graph.op
    def accuracy(probabilities, y):
        return (probabilities.argmax(axis=1) == y).mean()

    @graph.op
    def gradients(x, y, hidden, probabilities, w2):
        error = (probabilities - np.eye(CLASSES)[y]) / len(y)
        back = (error @ w2.T) * (hidden > 0)
        return x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)

    speeds = [f"{name}_speed" for name in weights]
    reads = dict(zip(("v1", "v2", "v3", "v4"), speeds, strict=True))

    @graph.train_op(updates=[*weights, *speeds], reads=reads)
    def train(gradients, w1, b1, w2, b2, v1, v2, v3, v4):
        pairs = zip((v1, v2, v3, v4), gradients, strict=True)
        new_speeds = [MOMENTUM * v - RATE * g for v, g in pairs]
        moved = zip((w1, b1, w2, b2), new_speeds, strict=True)
        return [*(w + v for w, v in moved), *new_speeds]

    return graph


def main() -> None:
    """Train, then measure on the held-out fifth of the digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--checkpoint-dir", default="runs/digits")
    options = parser.parse_args()

    np.random.seed(0)
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16, labels, test_size=0.2, random_state=0, stratify=labels
    )
    graph = network(x_train, y_train, options.epochs)
    with MonitoredTrainingSession(graph, checkpoint_dir=options.checkpoint_dir) as session:
        for _ in session.loop("loss"):
            pass
        held_out = session.run("accuracy", feed_dict={"x": x_test, "y": y_test}, kind="aux")
    print(f"held-out accuracy: {held_out:.1%}")


if __name__ == "__main__":
    main()
