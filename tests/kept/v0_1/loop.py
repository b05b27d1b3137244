"""Trains twelve steps of a NumPy loop; its tracked objects are of every plain kind."""

import random

import numpy as np

from hookbus import MonitoredTrainingSession

weights = np.zeros(3)
counts = {"seen": 0, "names": ["a", "b"], "best": None}

with MonitoredTrainingSession(checkpoint_dir="runs", save_checkpoint_steps=6) as session:
    session.track(weights=weights, counts=counts)
    for _ in session.epochs(2):
        for index, row in session.enumerate(np.arange(18.0).reshape(6, 3)):
            with session.step() as step:
                weights *= 0.5
                weights += row * (index + 1) + random.randrange(8)
                counts["seen"] += 1
                counts["best"] = max(counts["best"] or 0.0, float(weights.sum()))
                step.report(loss=-weights.sum())

print(weights.tolist(), counts)
