"""Fit a line to scikit-learn's diabetes data, in the style of slim, in plain NumPy.

One call trains, and another one evaluates its last checkpoint on held-out patients. What
else to log, save and watch is decided when it is started: see ``hookbus run --help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from hookbus import Graph, evaluation, latest_checkpoint, learning, metrics

Array = np.ndarray
BATCH, RATE = 32, 0.1


def shuffled(x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    """Yield batches without end, each pass in a new order."""
    order = np.random.default_rng(7)
    while True:
        chosen = order.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            batch = chosen[start : start + BATCH]
            yield x[batch], y[batch]


def model(x: Array, y: Array, training: bool) -> Graph:
    """Build the graph: the input, the prediction error, the loss, and one training op."""
    graph = Graph()
    graph.input("batch", lambda: shuffled(x, y) if training else [(x, y)])
    graph.variable("w", np.zeros(x.shape[1]))
    graph.variable("b", 0.0)

    @graph.op
    def error(batch, w, b):
        return batch[0] @ w + b - batch[1]

    @graph.op
    def squares(error):
        return error**2

    @graph.op
    def loss(squares):
        return squares.mean()

    @graph.train_op(updates=("w", "b"))
    def train(batch, error, w, b):
        step = RATE / len(error)
        return w - step * batch[0].T @ error, b - step * error.sum()

    return graph


def main() -> None:
    """Train, then measure on the held-out fifth of the patients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--logdir", default="runs/diabetes")
    options = parser.parse_args()

    x, y = load_diabetes(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x / x.std(axis=0), y, test_size=0.2, random_state=0
    )
    graph = model(x_train, y_train, training=True)
    loss = learning.train(
        graph.nodes["train"],
        options.logdir,
        number_of_steps=options.steps,
        log_every_n_steps=100,
    )
    if loss is not None:  # a run that is started again has nothing left to train
        print(f"loss of the last step: {loss:.0f}")

    newest = latest_checkpoint(options.logdir)
    if newest is None:
        raise SystemExit("nothing was saved, so there is nothing to evaluate")
    graph = model(x_test, y_test, training=False)
    error = metrics.mean(graph.nodes["squares"])
    held_out = evaluation.evaluate_once(
        newest.path,
        graph=graph,
        eval_ops=error.update,
        final_ops={"error": error.value},
        logdir=options.logdir,
    )
    print(f"held-out squared error: {held_out['error']:.0f} (variance {y_test.var():.0f})")


if __name__ == "__main__":
    main()
