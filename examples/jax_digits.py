"""Train a two-layer network on the handwritten digits with JAX.

The parameters, their velocities and the key of the random numbers are variables of the
graph. Each run compiles its ops into one function. Flags decide what to log and save: see
``hookbus run --help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from hookbus_jax import JaxGraph
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hookbus import MonitoredTrainingSession

HIDDEN, CLASSES, BATCH, RATE, MOMENTUM = 64, 10, 64, 0.2, 0.9
Params = dict[str, jax.Array]


def batches(
    images: np.ndarray, labels: np.ndarray, epochs: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of all epochs, each epoch in a new order."""
    order = np.random.default_rng(7)
    for _ in range(epochs):
        shuffled = order.permutation(len(images))
        for start in range(0, len(images) - BATCH + 1, BATCH):
            chosen = shuffled[start : start + BATCH]
            yield {"x": images[chosen], "y": labels[chosen]}


def logits_of(params: Params, x: jax.Array) -> jax.Array:
    """Compute the scores of the classes."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def network(images: np.ndarray, labels: np.ndarray, epochs: int) -> JaxGraph:
    """Build the graph: input, loss, accuracy, and one training op."""
    first, second, key = jax.random.split(jax.random.key(1), 3)
    params = {
        "w1": 0.1 * jax.random.normal(first, (images.shape[1], HIDDEN)),
        "b1": jnp.zeros(HIDDEN),
        "w2": 0.1 * jax.random.normal(second, (HIDDEN, CLASSES)),
        "b2": jnp.zeros(CLASSES),
    }
    graph = JaxGraph(donate=True)
    graph.variable("params", params)
    graph.variable("speed", jax.tree.map(jnp.zeros_like, params))
    graph.variable("key", key)
    graph.input("batch", lambda: batches(images, labels, epochs))

    @graph.train_op(updates=("params", "speed", "key"), outputs="loss")
    def train(params, speed, key, batch):
        key, noise = jax.random.split(key)
        x = batch["x"] + 0.05 * jax.random.normal(noise, batch["x"].shape)

        def loss_of(params: Params) -> jax.Array:
            chosen = jax.nn.log_softmax(logits_of(params, x))
            return -chosen[jnp.arange(BATCH), batch["y"]].mean()

        loss, slopes = jax.value_and_grad(loss_of)(params)
        speed = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, speed, slopes)
        return (jax.tree.map(jnp.add, params, speed), speed, key), {"loss": loss}

    @graph.op
    def accuracy(params, batch):
        return (logits_of(params, batch["x"]).argmax(axis=1) == batch["y"]).mean()

    return graph


def main() -> None:
    """Train, then measure on the held-out fifth of the digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--checkpoint-dir", default="runs/jax_digits")
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16, labels, test_size=0.2, random_state=0, stratify=labels
    )
    graph = network(x_train, y_train, options.epochs)
    with MonitoredTrainingSession(graph, checkpoint_dir=options.checkpoint_dir) as session:
        for _ in session.loop():
            pass
        held_out = {"x": x_test, "y": y_test}
        accuracy = session.run("accuracy", feed_dict={"batch": held_out}, kind="aux")
    print(f"held-out accuracy: {accuracy:.1%}")


if __name__ == "__main__":
    main()
