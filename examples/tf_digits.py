"""Train a two-layer network on the handwritten digits with a TensorFlow 1 graph.

The graph, the hooks and the loop are those of a program for ``tf.compat.v1.train``. Only
the import of ``train`` is another one. Flags decide what else to log and save: see
``hookbus run --help``.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf
from hookbus_tensorflow import train
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HIDDEN, CLASSES, BATCH = 64, 10, 64
v1 = tf.compat.v1


def batches(images: np.ndarray, labels: np.ndarray, epochs: int) -> tuple[tf.Tensor, ...]:
    """Return the next batch of images and labels; each epoch has another order."""
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.shuffle(len(images), seed=7).batch(BATCH, drop_remainder=True)
    return v1.data.make_one_shot_iterator(data.repeat(epochs)).get_next()


def logits_of(x: tf.Tensor) -> tf.Tensor:
    """Compute the scores of the classes."""
    shapes = {"w1": [64, HIDDEN], "b1": [HIDDEN], "w2": [HIDDEN, CLASSES], "b2": [CLASSES]}
    with v1.variable_scope("net", reuse=v1.AUTO_REUSE):
        start = v1.glorot_uniform_initializer(seed=1)
        zero = v1.zeros_initializer()
        w1, b1, w2, b2 = (
            v1.get_variable(name, shape, initializer=start if "w" in name else zero)
            for name, shape in shapes.items()
        )
    return tf.nn.relu(x @ w1 + b1) @ w2 + b2


def network(images: np.ndarray, labels: np.ndarray, epochs: int) -> tf.Operation:
    """Add input, loss, accuracy and summaries to the graph; return the train op."""
    x, y = batches(images, labels, epochs)
    logits = logits_of(x)
    right = tf.equal(tf.argmax(logits, 1), y)
    accuracy = tf.reduce_mean(tf.cast(right, tf.float32), name="accuracy")
    scores = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    loss = tf.reduce_mean(scores, name="loss")
    v1.summary.scalar("training/loss", loss)
    v1.summary.scalar("training/accuracy", accuracy)
    step = v1.train.get_or_create_global_step()
    return v1.train.MomentumOptimizer(0.2, 0.9).minimize(loss, global_step=step)


def main() -> None:
    """Train, then measure on the held-out fifth of the digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--checkpoint-dir", default="runs/tf_digits")
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.2, random_state=0
    )
    with tf.Graph().as_default():
        train_op = network(x_train, y_train, options.epochs)
        held_out = tf.equal(tf.argmax(logits_of(tf.constant(x_test)), 1), y_test)
        share = tf.reduce_mean(tf.cast(held_out, tf.float32))
        final = v1.train.FinalOpsHook(share)
        hooks = [v1.train.NanTensorHook("loss:0"), final]
        with train.MonitoredTrainingSession(
            checkpoint_dir=options.checkpoint_dir, hooks=hooks
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    print(f"held-out accuracy: {final.final_ops_values:.1%}")


if __name__ == "__main__":
    main()
