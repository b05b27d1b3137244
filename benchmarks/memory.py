"""Trains for a million steps with every hook that watches, and measures what grows.

Two training runs, a graph and a custom loop, warm up for some thousand steps. From then on
Python's memory may grow by a megabyte at most, as tracemalloc counts it, and each file by
what was logged: event files by their records, and nothing else.

    python benchmarks/memory.py [--steps 1000000]

It exits with 1 if something grows that should not.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_profiler import ProfilerHook
from hookbus_progress import ProgressHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from hookbus_throughput import ThroughputHook
from watchers import NEVER

from hookbus import Config, Graph, MonitoredSession

MOST_GROWTH = 1 << 20
MOST_RECORD = 200
"""The bytes of one record of an event file, with its frame."""
QUIET = Config(autoload=False, header=False)


@attrs.frozen
class Grown:
    """The memory and the objects that a run has left.

    Attributes:
        what: which training.
        steps: the steps after the warm-up.
        growth: the bytes by which Python's memory has grown in them.
        sites: the lines that hold most of that.
        sizes: the bytes of each file at the end, by its path.
        records: how many records its event files have.
    """

    what: str
    steps: int
    growth: int
    sites: list[str]
    sizes: dict[str, int]
    records: int

    @property
    def faults(self) -> list[str]:
        """The things that have grown and should not have."""
        found = []
        if self.growth > MOST_GROWTH:
            found.append(f"{self.growth} bytes of memory: {'; '.join(self.sites)}")
        events = sum(n for name, n in self.sizes.items() if "events.out" in name)
        if events > self.records * MOST_RECORD + 4096:
            found.append(f"{events} bytes of events for {self.records} records")
        checkpoints = {name.partition("/")[0] for name in self.sizes if "ckpt-" in name}
        if len(checkpoints) > 5:
            found.append(f"{len(checkpoints)} checkpoints")
        return found

    def __str__(self) -> str:
        kept = ", ".join(f"{name} {size}" for name, size in sorted(self.sizes.items()))
        return (
            f"{self.what}: {self.steps} steps, {self.growth:+} bytes of memory, "
            f"{self.records} records; files in bytes: {kept}"
        )


def watchers(place: Path, every: int) -> list[Any]:
    """Return every hook that watches, with a period."""
    return [
        StepCounterHook(every),
        SummarySaverHook(every, output_dir=str(place), tensors="loss"),
        CheckpointSaverHook(str(place), save_steps=20 * every),
        NanTensorHook("loss"),
        LoggingTensorHook("loss", every),
        ProgressHook(0.5),
        ThroughputHook(every),
        EarlyStoppingHook(
            "loss",
            mode="no_decrease",
            patience=NEVER,
            run_every_secs=None,
            run_every_steps=every,
        ),
        InMemoryEvaluatorHook(lambda _: {"loss": 1.0}, every_n_iter=every),
        ProfilerHook(5 * every, output_dir=str(place / "timelines")),
        StopAtStepHook(last_step=NEVER),
    ]


def graph() -> Graph:
    """Return a graph that trains on an input which never ends."""
    graph = Graph()
    graph.variable("w", np.zeros(8))
    graph.input("x", lambda: iter(lambda: 0.5, None))

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: Any, x: float) -> Any:
        new = w * 0.9 + x
        return new, {"loss": float(new[0])}

    return graph


def training(custom: bool, steps: int, warm: int, every: int) -> Grown:
    """Train, and return what has grown after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        place, w = Path(folder), np.zeros(8)
        hooks = watchers(place, every)
        model = None if custom else graph()
        with MonitoredSession(model, hooks=hooks, config=QUIET) as session:

            def run(count: int) -> None:
                nonlocal w
                for _ in range(count):
                    if not custom:
                        session.run("train")
                        continue
                    with session.step() as step:
                        w = w * 0.9 + 0.5
                        step.report(loss=float(w[0]))

            run(warm)
            gc.collect()
            tracemalloc.start()
            try:
                run(warm)  # what is replaced in each period counts from here on
                gc.collect()
                before = tracemalloc.take_snapshot()
                run(steps)
                gc.collect()
                differences = tracemalloc.take_snapshot().compare_to(before, "lineno")
            finally:
                tracemalloc.stop()
        growth = sum(each.size_diff for each in differences)
        sites = [str(each) for each in differences[:5]]
        files = [path for path in place.rglob("*") if path.is_file()]
        sizes = {
            path.relative_to(place).as_posix(): path.stat().st_size
            for path in files
            if "timelines" not in path.parts  # one file each, as was asked for
        }
        # loss, global_step/sec and throughput's values, the last with a name for each
        records = (2 * warm + steps) // every * 5 + len(files)
    return Grown("custom loop" if custom else "graph", steps, growth, sites, sizes, records)


def main() -> int:
    """Train twice; return whether something has grown that should not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    every, faults = max(10, options.steps // 1000), []
    for custom in (False, True):
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            grown = training(custom, options.steps, warm=50 * every, every=every)
        print(grown, flush=True)
        faults += grown.faults
    print(*(f"grows: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
