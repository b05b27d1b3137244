"""Measures what a save of a large state costs, in memory and in time.

A custom loop tracks arrays of 400 MB in all, and saves in every step. The benchmark prints
two numbers. One is the peak of the process's memory beyond what the training holds, in
units of the state's size. The other is the time of a save, in units of a plain write of
the same bytes with an fsync; both replace an older file, and take turns. The same follows
for tensors if PyTorch and its plugin are installed. The bounds stand beside the numbers,
and the exit code is 1 if one is exceeded:

    python benchmarks/save.py [--megabytes 400] [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import hookbus
from hookbus.backend import library_of

ARRAYS = 10
LIBRARIES = ("numpy", "torch")
MOST_MEMORY = 0.3
"""What a save may need beyond the state itself, in units of the state's size."""
MOST_TIME = 1.5
"""What a save may take, in units of a plain write."""


def state_of(library: str, megabytes: int) -> dict[str, Any]:
    """Return arrays of a library with *megabytes* in all; empty if it is not installed."""
    size = megabytes * 1_000_000 // 4 // ARRAYS
    arrays = {
        f"w{n}": np.random.default_rng(n).random(size, dtype=np.float32)
        for n in range(ARRAYS)
    }
    if library == "numpy":
        return arrays
    with contextlib.suppress(ImportError):
        torch = importlib.import_module(library)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if library_of(tensors["w0"]) is not None:
            return tensors
    return {}


def plain_write(chunks: Iterable[Any], path: Path) -> float:
    """Write chunks to a file, sync it and replace the one before; return the seconds."""
    start, new = time.perf_counter(), path.with_suffix(".new")
    with new.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    return time.perf_counter() - start


def measure(library: str, megabytes: int, rounds: int, folder: Path) -> str:
    """Save a state of a library, and return a line with the costs; empty if it cannot."""
    state = state_of(library, megabytes)
    if not state:
        return ""
    chunks = [memoryview(np.asarray(array)) for array in state.values()]
    before = resident()
    saving, writing = [], []
    config = hookbus.Config(autoload=False).with_options(
        "checkpoint-saver", save_steps=1, max_to_keep=1
    )
    with hookbus.MonitoredTrainingSession(
        checkpoint_dir=folder / library,
        log_step_count_steps=None,
        save_summaries_steps=None,
        config=config,
    ) as session:
        session.track(state=(lambda: state, lambda _: None))
        for _ in range(rounds):
            writing.append(plain_write(chunks, folder / "plain"))
            start = time.perf_counter()
            with session.step():
                pass
            saving.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = (peak - before) / (megabytes * 1_000_000)
    seconds = statistics.median(saving)
    ratio = seconds / statistics.median(writing)
    return (
        f"{library:8} memory beyond the state: {memory:.2f} (at most {MOST_MEMORY})  "
        f"time: {seconds:.2f} s, {ratio:.2f} plain writes (at most {MOST_TIME})"
        f"{'  TOO MUCH' if memory > MOST_MEMORY or ratio > MOST_TIME else ''}"
    )


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def main() -> int:
    """Measure each library in a process of its own; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library", choices=LIBRARIES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.library:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(given.library, given.megabytes, given.rounds, Path(folder)))
        return 0
    lines = []
    for library in LIBRARIES:
        command = [sys.executable, __file__, "--library", library]
        command += [f"--megabytes={given.megabytes}", f"--rounds={given.rounds}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines += [line for line in done.stdout.splitlines() if line.startswith(library)]
    print("\n".join(lines))
    return int(any("TOO MUCH" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
