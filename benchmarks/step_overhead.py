"""Measures what a step costs on the bus, against a plain loop that calls the same hooks.

Five hooks each fetch one value in every run of a trivial step. In one variant they make a
new request for each run, as most hooks do; in the other they reuse one. The two loops take
turns in one process, and the benchmark compares the medians of many short rounds: on a
shared machine only a ratio within one run means anything.

Then it measures the steps of an Estimator, on the digits, against a session with the same
graph and the same plugins. Each round is a training. A clock in the input runs from one of
the first batches to the last, so that opening and closing a session do not count.

    python benchmarks/step_overhead.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook

import hookbus
from hookbus import (
    Estimator,
    Graph,
    ModeKeys,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)

HOOKS = 5
WARM = 20
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Watcher(SessionRunHook):
    """Fetches one value and keeps it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = None

    def before_run(self, run_context):
        return SessionRunArgs(self.name)

    def after_run(self, run_context, run_values):
        self.last = run_values.results


class ReadyWatcher(Watcher):
    """Does the same, with one request for all runs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.request = SessionRunArgs(name)

    def before_run(self, run_context):
        return self.request


def trivial_graph() -> Graph:
    """Return a graph of one op that adds, and a value for each hook."""
    graph = Graph()
    graph.variable("x", 1)
    for number in range(HOOKS):
        graph.variable(f"v{number}", number)

    @graph.op
    def step(x):
        return x + 1

    return graph


def plain_steps(hooks: list[Watcher]) -> Callable[[int], None]:
    """Return a loop as written by hand: a step and ten method calls."""
    context = object()
    values = {f"v{number}": number for number in range(HOOKS)}
    results = [
        hookbus.SessionRunValues(value, hookbus.RunOptions(), hookbus.RunMetadata(), 0)
        for value in values.values()
    ]
    before = [hook.before_run for hook in hooks]
    after = [(hook.after_run, result) for hook, result in zip(hooks, results, strict=True)]

    def step(x: int) -> int:
        return x + 1

    def run(count: int) -> None:
        for _ in range(count):
            for ask in before:
                ask(context)
            step(1)
            for tell, result in after:
                tell(context, result)

    return run


def session_steps(session: MonitoredSession) -> Callable[[int], None]:
    """Return the same loop on the bus."""

    def run(count: int) -> None:
        for _ in range(count):
            session.run("step")

    return run


def measure(loops: dict[str, Callable[[int], None]], rounds: int, steps: int) -> dict:
    """Time the loops in turn; return the seconds a step of each, by round."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop(steps)
    for _ in range(rounds):
        for name, loop in loops.items():
            start = time.perf_counter()
            loop(steps)
            times[name].append((time.perf_counter() - start) / steps)
    return times


class Timed:
    """Yields digits in batches; its clock runs from an early batch to the last."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.seconds = 0.0

    def __call__(self) -> Iterator[Any]:
        for place, batch in enumerate(self.batches):
            if place == WARM:
                start = time.perf_counter()
            yield batch
        self.seconds = (time.perf_counter() - start) / (len(self.batches) - WARM)


def estimator_training(digits: Any, batches: Timed) -> None:
    """Train the Estimator of the example to the end of the input."""
    with tempfile.TemporaryDirectory() as directory:
        Estimator(digits.model_fn, directory, params=digits.PARAMS).train(batches)


def session_training(digits: Any, batches: Timed) -> None:
    """Train the same model in a session with the plugins that an Estimator has."""
    graph = Graph()
    graph.input("input", batches)
    features = graph.op(lambda input: input[0], name="features")
    labels = graph.op(lambda input: input[1], name="labels")
    spec = digits.model_fn(features, labels, ModeKeys.TRAIN, digits.PARAMS)
    graph.summary.scalar("loss", spec.loss)
    hooks = [LoggingTensorHook({"loss": spec.loss}, 100), NanTensorHook(spec.loss)]
    with (
        tempfile.TemporaryDirectory() as directory,
        MonitoredTrainingSession(graph, checkpoint_dir=directory, hooks=hooks) as session,
    ):
        while not session.should_stop():
            session.run([spec.train_op, spec.loss])


def compare_estimator(rounds: int) -> None:
    """Time trainings of both kinds in turn and print the result."""
    sys.path.insert(0, str(EXAMPLES))
    digits = importlib.import_module("estimator_digits")
    batches = Timed([*digits.train_input()])
    kinds = {"session": session_training, "Estimator": estimator_training}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    with contextlib.redirect_stderr(io.StringIO()):
        for place in range(rounds + 1):
            for name in [*kinds][:: 1 if place % 2 else -1]:
                kinds[name](digits, batches)
                times[name].append(batches.seconds)
    report("an Estimator on the digits", {name: v[1:] for name, v in times.items()})


def main() -> None:
    """Compare the two loops for both kinds of hooks, then the two kinds of training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    for title, hook in (
        ("requests made anew in each step", Watcher),
        ("requests made once", ReadyWatcher),
    ):
        compare(title, [hook(f"v{number}") for number in range(HOOKS)], options)
    compare_estimator(options.rounds)


def compare(title: str, hooks: list[Watcher], options: argparse.Namespace) -> None:
    """Time both loops with these hooks and print the result."""
    config = hookbus.Config(autoload=False)
    with MonitoredSession(trivial_graph(), hooks=hooks, config=config) as session:
        loops = {"plain loop": plain_steps(hooks), "session": session_steps(session)}
        times = measure(loops, options.rounds, options.steps)
    report(title, times)


def report(title: str, times: dict[str, list[float]]) -> None:
    """Print the medians of two kinds, and the ratio of the second to the first."""
    print(title)
    for name, values in times.items():
        print(f"  {name:10} {statistics.median(values) * 1e6:8.3f} us a step")
    first, second = times.values()
    ratios = sorted(b / a for a, b in zip(first, second, strict=True))
    print(
        f"  ratio      {statistics.median(ratios):8.3f}  "
        f"(rounds from {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


if __name__ == "__main__":
    main()
