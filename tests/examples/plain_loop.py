"""The loop of examples/custom_loop.py as it was before it had a session."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

Array = np.ndarray
CLASSES, BATCH = np.arange(10), 64


def batches(images: Array, labels: Array, draw: np.random.Generator) -> Iterator:
    """Yield the batches of one pass, shuffled at its first one."""
    shuffled = draw.permutation(len(images))
    for start in range(0, len(images) - BATCH + 1, BATCH):
        chosen = shuffled[start : start + BATCH]
        yield images[chosen], labels[chosen]


def main() -> None:
    """Train, then measure on the fifth of the digits that was held out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16, labels, test_size=0.2, random_state=0, stratify=labels
    )
    model = SGDClassifier("log_loss", alpha=1e-5, random_state=0)
    draw = np.random.default_rng(7)
    for _ in range(options.epochs):
        for x, y in batches(x_train, y_train, draw):
            # A little noise makes the classifier robust.
            noisy = x + draw.normal(0, 0.05, x.shape)
            model.partial_fit(noisy, y, CLASSES)
    print(f"held-out accuracy: {model.score(x_test, y_test):.1%}")


if __name__ == "__main__":
    main()
