"""Measures what hooks cost in a PyTorch loop, against the same loop written by hand.

Five things happen beside the training: it stops after a number of steps, saves a checkpoint
at the end of each block of steps, logs the loss ten times a block, watches it for NaN in
each step, and writes it for TensorBoard ten times a block. One loop does nothing of that,
one does it by hand with the same durability, and one leaves it to hookbus' plugins. Ignite
and Lightning do it with their own handlers, if they are installed.

The loops take turns. In each round every one trains for a block, after some steps that do
not count. The first three take turns of a tenth of a second, so that a machine that becomes
slower slows all of them; Ignite and Lightning own their loops and train for the block at
once. A ratio compares two loops of one round, and the benchmark shows the median over the
rounds with its extremes. The steps last 50 microseconds, 1 and 20 milliseconds.

    python benchmarks/torch_loop.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import logging
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch
from by_hand import ByHand
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from safetensors.torch import save_file

from hookbus import Config, MonitoredTrainingSession

WARM = 20
STEPS = {
    "50 us": (50e-6, 2000, 1000),
    "1 ms": (1e-3, 1000, 100),
    "20 ms": (20e-3, 100, 5),
}
"""Name to the seconds of a step, and the number of steps in a block and in a turn."""


@attrs.define(eq=False)
class Task:
    """One run: a step, and how often the other things happen.

    Attributes:
        model: two small tensors, which a step changes in place.
        work: what a step computes besides, to last as long as it is to.
        block: the steps from one checkpoint to the next.
        directory: where checkpoints and event files go.
        is_over: whether the training is to end.
    """

    model: torch.nn.Module
    work: Callable[[], float]
    block: int
    directory: Path
    is_over: bool = False

    @property
    def steps(self) -> int:
        """The steps that count."""
        return self.block

    def step(self) -> torch.Tensor:
        """Do one step; return its loss."""
        self.work()
        weight = self.model.weight
        loss = weight.square().mean()
        weight.data.mul_(0.999)
        return loss.detach()


class Clock:
    """Takes the time from the first step that counts to the last one, in a foreign loop."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self.began = self.seconds = 0.0

    def tick(self) -> bool:
        """Count a step; return whether it was the last one."""
        self.done += 1
        if self.done == WARM:
            self.began = time.perf_counter()
        if self.done == WARM + self.steps:
            self.seconds = time.perf_counter() - self.began
            return True
        return False


Steps: TypeAlias = Iterator[None]
"""Does one step whenever it is asked for the next value, until the task is over."""


def bare(task: Task) -> Steps:
    """Train, and do nothing else."""
    while not task.is_over:
        task.step()
        yield


def by_hand(task: Task) -> Steps:
    """Do all five things in the loop, as somebody would who knows how."""

    def states() -> dict[str, Any]:
        return {
            "model": dict(task.model.state_dict()),
            "random": {"torch": torch.get_rng_state()},
        }

    place, every = task.directory / "by_hand", task.block // 10
    things = ByHand(place, save_file, states, every, task.block, 10 * task.block)
    while not task.is_over and things.after_step(task.step().item()):
        yield
    things.writer.close()


def with_hookbus(task: Task) -> Steps:
    """Leave all five things to plugins."""
    every = task.block // 10
    directory = task.directory / "hookbus"
    hooks = [
        StopAtStepHook(last_step=10 * task.block),
        LoggingTensorHook("loss", every_n_iter=every),
        NanTensorHook("loss"),
        SummarySaverHook(save_steps=every, output_dir=str(directory), tensors="loss"),
        CheckpointSaverHook(save_steps=task.block),
    ]
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=None,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    ) as session:
        session.track(model=task.model)
        while not task.is_over:
            with session.step() as step:
                step.report(loss=task.step())
            yield


def with_ignite(task: Task) -> float:
    """Do all five things with Ignite's handlers."""
    engine = importlib.import_module("ignite.engine")
    handlers = importlib.import_module("ignite.handlers")
    boards = importlib.import_module("ignite.handlers.tensorboard_logger")
    clock, every = Clock(task.steps), task.block // 10
    directory, log = task.directory / "ignite", logging.getLogger("ignite_loop")
    trainer = engine.Engine(lambda *_: {"loss": task.step()})
    events = engine.Events
    trainer.add_event_handler(
        events.ITERATION_COMPLETED, handlers.TerminateOnNan(lambda output: output["loss"])
    )
    trainer.add_event_handler(
        events.ITERATION_COMPLETED(every=every),
        lambda e: log.info("step %d: loss %g", e.state.iteration, e.state.output["loss"]),
    )
    board = boards.TensorboardLogger(log_dir=str(directory))
    board.attach_output_handler(
        trainer,
        events.ITERATION_COMPLETED(every=every),
        tag="training",
        output_transform=lambda output: {"loss": output["loss"].item()},
    )
    saver = handlers.DiskSaver(str(directory), require_empty=False)
    keeper = handlers.Checkpoint({"model": task.model}, saver, n_saved=5)
    trainer.add_event_handler(events.ITERATION_COMPLETED(every=task.block), keeper)

    @trainer.on(events.ITERATION_COMPLETED)
    def stop(running: Any) -> None:
        if clock.tick():
            running.terminate()

    trainer.run(range(WARM + task.steps + 1), max_epochs=1)
    board.close()
    return clock.seconds


def with_lightning(task: Task) -> float:
    """Do all five things with Lightning's callbacks."""
    lightning = importlib.import_module("lightning.pytorch")
    loggers = importlib.import_module("lightning.pytorch.loggers")
    callbacks = importlib.import_module("lightning.pytorch.callbacks")
    clock, every = Clock(task.steps), task.block // 10

    class Module(lightning.LightningModule):
        """The step of the task, optimized by hand."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = task.model
            self.automatic_optimization = False

        def training_step(self, *_: Any) -> None:
            loss = task.step()
            # Lightning counts the steps of optimizers.
            self.optimizers().step()
            self.log("loss", loss, prog_bar=False)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    class Guard(callbacks.Callback):
        """Watches for NaN, and stops at the end."""

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if math.isnan(trainer.callback_metrics["loss"].item()):
                raise ValueError("the loss is NaN")
            if clock.tick():
                trainer.should_stop = True

    directory = str(task.directory / "lightning")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        min_steps=0,
        log_every_n_steps=every,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=loggers.TensorBoardLogger(directory),
        callbacks=[
            Guard(),
            callbacks.ModelCheckpoint(
                directory, every_n_train_steps=task.block, save_top_k=-1
            ),
        ],
    )
    trainer.fit(Module(), list(range(WARM + task.steps + 1)))
    return clock.seconds


OWN = {"bare": bare, "by hand": by_hand, "hookbus": with_hookbus}
FOREIGN = {"ignite": with_ignite, "lightning": with_lightning}
"""Loops that train for a block at once, and return the seconds of the steps that count."""


def in_turns(tasks: Mapping[str, Task], turn: int) -> dict[str, float]:
    """Train all of our own loops, so many steps of each at a time; return their seconds."""
    loops = {name: OWN[name](task) for name, task in tasks.items()}
    seconds = dict.fromkeys(loops, 0.0)
    for steps in loops.values():
        _do(steps, WARM)
    (block,) = {task.block for task in tasks.values()}
    for _ in range(block // turn):
        for name, steps in loops.items():
            seconds[name] += _do(steps, turn)
    for name, steps in loops.items():
        tasks[name].is_over = True
        next(steps, None)
    return seconds


def _do(steps: Steps, count: int) -> float:
    """Do so many steps; return the seconds that they take."""
    began = time.perf_counter()
    for _ in range(count):
        next(steps)
    return time.perf_counter() - began


def work_of(seconds: float) -> Callable[[], float]:
    """Return a computation with which a step takes about so long."""
    left, right = torch.rand(64, 64), torch.rand(64, 64)

    def repeat(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            torch.mm(left, right)
        return time.perf_counter() - began

    model = torch.nn.Linear(8, 8, bias=False)
    times = 1

    def once() -> float:
        return repeat(times)

    step = Task(model, once, 1, Path()).step
    while (taken := _shortest(step)) < seconds:
        times += max(1, round(times * min(1.0, 0.9 * (seconds - taken) / taken)))
    return once


def _shortest(step: Callable[[], object]) -> float:
    """Return the seconds of a short step among many."""
    times = []
    for _ in range(50):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.quantiles(times, n=4)[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send log lines to nobody, and ignore what libraries warn of."""
    logging.basicConfig(stream=io.StringIO(), level=logging.INFO, force=True)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _task(work: Callable[[], float], block: int, directory: Path) -> Task:
    directory.mkdir()
    return Task(torch.nn.Linear(8, 8, bias=False), work, block, directory)


def measure(name: str, rounds: int) -> None:
    """Print how the loops compare with steps of one length."""
    seconds, block, turn = STEPS[name]
    work = work_of(seconds)
    foreign = {n: loop for n, loop in FOREIGN.items() if importlib.util.find_spec(n)}
    times: dict[str, list[float]] = {loop: [] for loop in (*OWN, *foreign)}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place, quiet():
            tasks = {loop: _task(work, block, Path(place, loop)) for loop in times}
            taken = in_turns({loop: tasks[loop] for loop in OWN}, turn)
            taken |= {loop: run(tasks[loop]) for loop, run in foreign.items()}
            for loop, total in taken.items():
                times[loop].append(total / block)
    print(f"steps of {name}, blocks of {block}, {rounds} rounds")
    for loop, taken in times.items():
        shown = f"  {loop:10}{statistics.median(taken) * 1e6:10.1f} us a step"
        for other in ("bare", "by hand"):
            ratios = [a / b for a, b in zip(taken, times[other], strict=True)]
            middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
            shown += f"   {middle:6.3f} x {other} ({low:.3f} to {high:.3f})"
        print(shown)


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def main() -> None:
    """Measure each length of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", choices=STEPS, nargs="*", default=[*STEPS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.steps:
        measure(name, options.rounds)
    names = ("hookbus", "torch", "pytorch-ignite", "lightning")
    found = [f"{name} {version(name)}" for name in names if _is_installed(name)]
    print(f"Python {sys.version.split()[0]}, {', '.join(found)}")


if __name__ == "__main__":
    main()
