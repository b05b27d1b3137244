"""Trains the model of the suite for backends in a custom loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from hookbus import Config, MonitoredTrainingSession, Outcome
from hookbus.testing.scenarios import Cut, Training

QUIET = Config(autoload=False, header=False)


def custom_loop(training: Training, **session: Any) -> tuple[Outcome, float]:
    """Train in a custom loop with NumPy."""
    w = np.zeros(())

    def batches() -> Iterator[float]:
        yield from count(1.0)

    with MonitoredTrainingSession(**session) as opened:
        opened.track(w=w)
        for x in opened.iterate(batches(), name="x"):
            with opened.step() as step:
                w += x + step.feeds.get("bias", 0.0)
                step.report(loss=training.loss(opened.global_step), w=w.copy())
            if opened.global_step == training.cut:
                raise Cut
            if opened.global_step >= training.steps:
                break
    return opened.outcome, float(w)
