"""Has scripts for ``hookbus certify``, exact ones and ones with a fault, and runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs
from hookbus_certify.command import certify

from tests.support.zoo import SCRIPT

QUIET = ("-p", "no:progress", "-p", "no:step-counter")
EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = """
import numpy as np
from hookbus import MonitoredTrainingSession, SessionRunHook

weights, hooks = np.ones(3), []


def opened():
    return MonitoredTrainingSession(
        checkpoint_dir="runs/own", hooks=hooks, save_summaries_steps=None
    )
"""
BODY = """
with opened() as session:
    session.track(weights=weights)
    for x in session.iterate(range(12)):
        with session.step():
            {step}
"""
EXACT = HEAD + BODY.format(step="weights += x * np.random.normal(size=3)")


@attrs.frozen
class Fault:
    """A script that does not resume exactly, or differs from run to run.

    Attributes:
        script: its text.
        leaf: the first value that differs.
        step: the first step at which it does; None where that is left to chance.
        cause: what the cause names.
    """

    script: str
    leaf: str
    step: int | None
    cause: str


def scripted(before: str, step: str) -> str:
    """Return a script with code before the session, and code in each step."""
    return HEAD + before + BODY.format(step=step.strip().replace("\n", "\n" + " " * 12))


FAULTS = {
    "generator": Fault(
        scripted("draw = np.random.default_rng(3)", "weights += draw.normal(size=3)"),
        "tracked/weights",
        7,
        "the random generator draw is not tracked",
    ),
    "counter": Fault(
        scripted(
            "seen = 0",
            """
seen += 1
weights += x if seen % 8 == 0 else 1
""",
        ),
        "tracked/weights",
        8,
        "the variable seen is not tracked",
    ),
    "hook": Fault(
        scripted(
            """
class Decay(SessionRunHook):
    def __init__(self):
        self.count = 0

    def after_run(self, run_context):
        self.count += 1
        if self.count % 4 == 0:
            now = run_context.session.variables()["weights"]
            run_context.assign({"weights": now * 0.5})


hooks.append(Decay())
""",
            "weights += x",
        ),
        "tracked/weights",
        8,
        "the hook decay keeps count, which its state_dict() lacks",
    ),
    "dataset": Fault(
        scripted(
            "data = [1.0, 2.0, 3.0, 4.0]",
            """
data[x % 4] *= 1.5
weights += data[x % 4]
""",
        ),
        "tracked/weights",
        7,
        "the variable data is not tracked",
    ),
    "optimizer": Fault(
        scripted(
            """
class Momentum:
    def __init__(self):
        self.speed = np.zeros(3)

    def update(self, gradient):
        self.speed = 0.9 * self.speed - 0.1 * gradient
        return self.speed


optimizer = Momentum()
""",
            "weights += optimizer.update(weights * x)",
        ),
        "tracked/weights",
        7,
        "the variable optimizer.speed is not tracked",
    ),
    "hash order": Fault(
        HEAD
        + """
names = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"}
with opened() as session:
    session.track(weights=weights)
    for name in session.iterate([*names]):
        with session.step():
            weights += 0.5 * weights + ord(name[0]) * len(name)
""",
        "tracked/weights",
        None,
        "a set or a dict is used in hash order",
    ),
    "clock": Fault(
        scripted(
            "import time\nnp.random.seed(time.time_ns() % 2**32)",
            "weights += np.random.normal(size=3)",
        ),
        "tracked/weights",
        1,
        "the time is used as a seed or as a value",
    ),
    "cache": Fault(
        scripted(
            """
import os

np.random.seed(1)
if os.path.exists("cache.npy"):
    data = np.load("cache.npy")
else:
    data = np.random.normal(size=12)
    np.save("cache.npy", data)
""",
            "weights += data[x] * np.random.normal(size=3)",
        ),
        "tracked/weights",
        1,
        "the script leaves files in its folder, and a later start uses them: cache.npy",
    ),
    "thread": Fault(
        scripted(
            """
import threading, time

np.random.seed(1)


def augment():
    while True:
        np.random.random()
        time.sleep(0.0005)


threading.Thread(target=augment, daemon=True).start()
""",
            """
weights += x * np.random.normal(size=3)
time.sleep(0.005)
""",
        ),
        "",
        None,
        "a thread draws from a global random generator",
    ),
    "reduction": Fault(
        scripted(
            """
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

parts = [1e16, 1.0, -1e16, 3.0, 1e-3, 7.0, 1e15, -1e15]
pool = ThreadPoolExecutor(8)


def work(part):
    time.sleep(time.perf_counter_ns() % 97 / 50_000)
    return part
""",
            """
total = 0.0
for future in as_completed([pool.submit(work, part) for part in parts]):
    total += future.result()
weights += total
""",
        ),
        "tracked/weights",
        None,
        "threads finish in another order from run to run",
    ),
}
"""Faults by name. Those of the resume are shown by a kill at step 7."""


def certified_in_zoo(module: str, name: str) -> int:
    """Certify a training run of a zoo, interrupted in each way; return the exit code."""
    words = (str(SCRIPT), f"tests.support.{module}", name)
    return certify(["--runs", "4", *QUIET, *words])


def certified_example(name: str) -> int:
    """Certify a copy of an example in the current folder; return the exit code."""
    shutil.copy(EXAMPLES / f"{name}.py", ".")
    return certify(["--runs", "4", *QUIET, f"{name}.py"])
