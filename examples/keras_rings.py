"""Train a small Keras network to tell two rings of points apart.

It is an ordinary script with ``fit``. The line marked ``new`` has it run the hooks that are
switched on when it is started, see ``hookbus run --help``, and resume them after a kill.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from hookbus_keras import BusCallback


def rings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points around two circles, and the circle of each."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    angles = draw.uniform(0, 2 * np.pi, count)
    radius = 1 + labels + draw.normal(0, 0.15, count)
    points = np.stack([np.cos(angles), np.sin(angles)], 1) * radius[:, None]
    return points.astype("float32"), labels


def main() -> None:
    """Train, and show the accuracy on points that were held out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--backup-dir", default="runs/keras_rings")
    options = parser.parse_args()

    keras.utils.set_random_seed(7)
    layers = [keras.Input((2,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers, name="rings")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])

    backup = keras.callbacks.BackupAndRestore(options.backup_dir, double_checkpoint=True)
    with BusCallback(backup=backup) as bus:  # new
        model.fit(
            *rings(640, 1),
            batch_size=32,
            epochs=options.epochs,
            validation_data=rings(160, 2),
            verbose=0,
            callbacks=[bus],
        )
    accuracy = model.evaluate(*rings(160, 2), verbose=0, return_dict=True)["accuracy"]
    print(f"accuracy: {accuracy:.0%}")


if __name__ == "__main__":
    main()
