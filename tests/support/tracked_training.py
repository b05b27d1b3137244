"""Trains a tiny model in a process of its own, for tests of trackers.

Its arguments are the number of steps, the seconds after which it kills itself, or 0, and
the directory of its checkpoints.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

from hookbus import MonitoredTrainingSession

steps, kill_after, directory = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
model = {"w": np.full(4, 8.0)}
# The speed of a run that is killed is measured at other steps.
with MonitoredTrainingSession(
    checkpoint_dir=directory, log_step_count_steps=None
) as session:
    session.track(model=model)
    session.record({"lr": 0.1, "layers": [4, 1], "optimizer": {"name": "sgd"}})
    if kill_after:
        threading.Timer(kill_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    for number in session.iterate(range(steps)):
        with session.step() as step:
            model["w"] *= 0.99
            loss = float((model["w"] ** 2).mean())
            step.report(loss=float("nan") if number % 20 == 5 else loss)
        if number % 10 == 9:
            with session.evaluation(name="val") as evaluation:
                evaluation.report(accuracy=1 / loss, lowest=float("-inf"))
        sys.stdout.write(f"step {number}\n")  # in one piece, also where log lines go
        sys.stdout.flush()
        time.sleep(0.01)
sys.stdout.write(f"weights {model['w'].tolist()}\n")
