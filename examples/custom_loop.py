"""Train a scikit-learn classifier on the handwritten digits, in a custom loop.

This file contains the model and the loop. Flags decide what hooks log, save and watch: see
``hookbus run --help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from hookbus import MonitoredTrainingSession

Array = np.ndarray
CLASSES, BATCH = np.arange(10), 64


class Classifier(SGDClassifier):
    """A linear classifier whose state is a dict of arrays and numbers."""

    def state_dict(self) -> dict[str, object]:
        learned = ("classes_", "coef_", "intercept_", "t_")
        return {name: getattr(self, name) for name in learned if hasattr(self, name)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)


def batches(images: Array, labels: Array, draw: np.random.Generator) -> Iterator:
    """Yield the batches of one pass, shuffled at its first one."""
    shuffled = draw.permutation(len(images))
    for start in range(0, len(images) - BATCH + 1, BATCH):
        chosen = shuffled[start : start + BATCH]
        yield images[chosen], labels[chosen]


def main() -> None:
    """Train, then measure on the held-out fifth of the digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint-dir", default="runs/custom_loop")
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16, labels, test_size=0.2, random_state=0, stratify=labels
    )
    model = Classifier("log_loss", alpha=1e-5, random_state=0)
    draw = np.random.default_rng(7)
    with MonitoredTrainingSession(checkpoint_dir=options.checkpoint_dir) as session:
        session.track(model=model, draw=draw)
        for _ in session.epochs(options.epochs):
            for x, y in session.iterate(batches(x_train, y_train, draw)):
                with session.step() as step:
                    # A little noise makes the classifier robust.
                    noisy = x + draw.normal(0, 0.05, x.shape)
                    model.partial_fit(noisy, y, CLASSES)
                    step.report(
                        loss=log_loss(y, model.predict_proba(x), labels=CLASSES),
                        accuracy=lambda: model.score(x_test, y_test),
                    )
            with session.evaluation("held_out") as evaluation:
                evaluation.report(accuracy=model.score(x_test, y_test))
    print(f"held-out accuracy: {model.score(x_test, y_test):.1%}")


if __name__ == "__main__":
    main()
