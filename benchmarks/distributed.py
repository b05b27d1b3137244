"""Measures the cost per step of the agreement between the processes of a run.

Two ranks train a small network with DistributedDataParallel. One loop is PyTorch's alone,
one is a session without hooks, one a session with five. The loops take turns within a
round, and the benchmark shows the median of what a session adds, with its middle half. A
step computes so much that it takes about 2 and about 20 milliseconds in the bare loop.

    python benchmarks/distributed.py [--rounds 15] [--ranks 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from ratios import Loop, in_turns
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hookbus import Config, MonitoredTrainingSession, SessionRunHook

NEVER = 10**9
STEPS = {"about 2 ms": (2e-3, 50), "about 20 ms": (20e-3, 10)}
"""Name to the seconds of a step, and the number of steps in a turn."""


@attrs.frozen
class Added:
    """The time that a session adds to a step of the bare loop, in milliseconds.

    Attributes:
        loop: what is compared.
        step: a step of the bare loop.
        median, low, high: of the rounds; the middle half lies between low and high.
    """

    loop: str
    step: float
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        spread = f"({self.low:+.3f} to {self.high:+.3f})"
        return f"{self.loop:34} step {self.step:7.3f} ms, {self.median:+.3f} ms {spread}"


@attrs.define(eq=False)
class Task:
    """One run: a network and its optimizer, whose step does so many passes."""

    passes: int
    model: nn.Module = attrs.field(init=False)
    optimizer: torch.optim.Optimizer = attrs.field(init=False)
    x: torch.Tensor = attrs.field(factory=lambda: torch.randn(64, 256))

    def __attrs_post_init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))
        self.model = DistributedDataParallel(layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self) -> torch.Tensor:
        """Do one step; return its loss."""
        with torch.no_grad():  # as a larger network would compute
            for _ in range(self.passes):
                self.model.module(self.x)
        loss = self.model(self.x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def bare(task: Task) -> Loop:
    """Return PyTorch's loop."""

    def loop(steps: int) -> None:
        for _ in range(steps):
            task.step()

    return loop


def in_session(task: Task, session: MonitoredTrainingSession) -> Loop:
    """Return the same loop in a session."""
    session.track(model=task.model, optimizer=task.optimizer)

    def loop(steps: int) -> None:
        for _ in range(steps):
            with session.step() as step:
                step.report(loss=task.step())

    return loop


def session_of(directory: Path, hooks: list[SessionRunHook]) -> MonitoredTrainingSession:
    """Return a session with these hooks alone."""
    return MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    )


def five(directory: Path) -> list[SessionRunHook]:
    """Return five hooks of a real run; none of them is due while it is measured."""
    return [
        StopAtStepHook(last_step=NEVER),
        LoggingTensorHook("loss", every_n_iter=NEVER),
        NanTensorHook("loss"),
        SummarySaverHook(save_steps=NEVER, output_dir=str(directory), tensors="loss"),
        CheckpointSaverHook(save_steps=NEVER),
    ]


def passes_for(seconds: float) -> int:
    """Return how many passes make a step about so long; the same on each rank."""
    task = Task(0)
    loop = bare(task)
    loop(20)
    base = min(in_turns({"": loop}, 5, 20)[""])
    task.passes = 20
    each = (min(in_turns({"": loop}, 5, 20)[""]) - base) / 20
    found = torch.tensor([max(0, round((seconds - base) / each))])
    distributed.broadcast(found, 0)
    return int(found)


def measured(rounds: int, folder: Path) -> Iterator[Added]:
    """Compare the loops; each rank does, and the chief's times count."""
    for name, (seconds, steps) in STEPS.items():
        passes = passes_for(seconds)
        with ExitStack() as stack:
            loops = {"bare": bare(Task(passes))}
            for what, hooks in (("no hooks", []), ("five hooks", five(folder))):
                session = stack.enter_context(session_of(folder / f"{name} {what}", hooks))
                loops[what] = in_session(Task(passes), session)
            times = in_turns(loops, rounds, steps)
        for what in ("no hooks", "five hooks"):
            both = zip(times["bare"], times[what], strict=True)
            low, median, high = statistics.quantiles(((b - a) * 1e3 for a, b in both), n=4)
            step = statistics.median(times["bare"]) * 1e3
            yield Added(f"{what}, a step of {name}", step, median, low, high)


def train(options: argparse.Namespace) -> None:
    """Measure as one of the ranks."""
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = []
    for added in measured(options.rounds, options.folder):
        found.append(added)
        if distributed.get_rank() == 0:
            print(added, flush=True)
    if distributed.get_rank() == 0 and options.json is not None:
        versions = {"torch": torch.__version__, "ranks": distributed.get_world_size()}
        content = {**versions, "date": time.strftime("%Y-%m-%d"), "added": found}
        options.json.write_text(json.dumps(content, default=attrs.asdict, indent=2) + "\n")
    distributed.destroy_process_group()


def main() -> int:
    """Start the ranks, and measure in them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        train(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(options.ranks), __file__, "--folder", folder]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*launcher, *sys.argv[1:]], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
