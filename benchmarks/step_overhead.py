"""Measures what hooks and sessions cost in a step, against plain loops that do the same.

"Direct" is a loop that calls the same bound methods of the same hooks around the same
trivial step. The overhead of a loop is its time for a step minus that of the bare step, and
the benchmark shows the ratio of two overheads, or of two steps. The loops of a comparison
take turns, a few hundred steps each, and a ratio compares two loops of one round: on a
shared machine only that means anything. Shown are medians over the rounds, with the middle
half of the rounds in brackets.

    python benchmarks/step_overhead.py [--rounds 60] [--json FILE] [--check]
    python benchmarks/step_overhead.py --short
    python benchmarks/step_overhead.py --page

With --check it exits with 1 if a ratio is above its bar by more than a tenth. --short is
for continuous integration: it measures a few parts in some seconds, and exits with 1 if a
ratio is far above its bar three times in a row. --page measures nothing: it shows the
results on PyTorch tensors, from docs/explanation/step_overhead.json, in a page and a plot.
To draw, it needs benchmarks/requirements.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import tensors
from by_hand import ByHand
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from ratios import Loop, Ratio, in_turns, overhead, ratio
from safetensors.numpy import save_file
from watchers import NEVER, IdleWatcher, ReadyWatcher, Watcher

import hookbus
from hookbus import (
    DrivenSession,
    Estimator,
    Graph,
    ModeKeys,
    MonitoredSession,
    MonitoredTrainingSession,
)

WARM = 20
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SLACK = 1.1
ATTEMPTS, SHORT_ROUNDS, SHORT_SLACK = 3, 20, 1.3

Part: TypeAlias = Callable[[int], Iterable[Ratio]]
"""Measures something in so many rounds."""


def directly(hooks: list[Watcher]) -> Loop:
    """Return a loop that calls each hook around a trivial step."""
    context = object()
    values = hookbus.SessionRunValues(0, hookbus.RunOptions(), hookbus.RunMetadata(), 0)
    before, after = [h.before_run for h in hooks], [h.after_run for h in hooks]

    def step(x: int, fed: int) -> int:
        return x + fed

    def loop(count: int) -> None:
        for _ in range(count):
            for ask in before:
                ask(context)
            step(1, 1)
            for tell in after:
                tell(context, values)

    return loop


def trivial_graph(values: int) -> Graph:
    """Return a graph of one op that adds, and a value for each hook."""
    graph = Graph()
    graph.variable("x", 1)
    graph.placeholder("fed")
    for number in range(values):
        graph.variable(f"v{number}", number)
    graph.op(lambda x, fed: x + fed, name="fed_step")
    graph.op(lambda x: x + 1, name="step")
    return graph


def session_loop(session: MonitoredSession, fed: bool) -> Loop:
    """Return the same loop on the bus, with a placeholder that is fed, or without."""

    def with_feed(count: int) -> None:
        for _ in range(count):
            session.run("fed_step", {"fed": 1})

    def without(count: int) -> None:
        for _ in range(count):
            session.run("step")

    return with_feed if fed else without


def step_loop(session: MonitoredTrainingSession, names: list[str]) -> Loop:
    """Return the same loop as a custom loop that reports some values."""
    values = dict.fromkeys(names, 1.0)

    def loop(count: int) -> None:
        for _ in range(count):
            with session.step() as step:
                step.report(**values)

    return loop


def hooks_that_fetch(
    rounds: int, counts: Iterable[int] = (1, 5, 20, 100, 1000)
) -> Iterator[Ratio]:
    """Compare hooks that each fetch one value with direct calls."""
    bars = {("ready", 5): 5.0, ("ready", 100): 4.5, ("fresh", 5): 3.0, ("fresh", 100): 2.5}
    for style, kind in (("ready", ReadyWatcher), ("fresh", Watcher)):
        for count in counts:
            hooks = [kind(f"v{number}") for number in range(count)]
            with MonitoredSession(trivial_graph(count), hooks=hooks) as session:
                loops = {
                    "bare": directly([]),
                    "direct": directly(hooks),
                    "session": session_loop(session, fed=True),
                    "without feeds": session_loop(session, fed=False),
                }
                steps = max(4, 1000 // count)
                times = in_turns(loops, rounds, steps)
            what = f"{count} {style} request{'s' if count > 1 else ''}"
            yield overhead(what, times, "session", bars.get((style, count)))
            yield overhead(f"{what}, nothing fed", times, "without feeds", None)


def hooks_in_a_custom_loop(rounds: int) -> Iterator[Ratio]:
    """Compare the same hooks around a custom loop."""
    for count in (5, 100):
        names = [f"v{number}" for number in range(count)]
        hooks = [ReadyWatcher(name) for name in names]
        with MonitoredTrainingSession(hooks=hooks) as session:
            loops = {
                "bare": directly([]),
                "direct": directly(hooks),
                "session": step_loop(session, names),
            }
            times = in_turns(loops, rounds, max(4, 1000 // count))
        yield overhead(f"{count} ready requests, custom loop", times, "session", None)


def other_requests(rounds: int) -> Iterator[Ratio]:
    """Compare a node, and two requests in turns, with the name of a node."""
    graph, hooks = trivial_graph(1), [ReadyWatcher("v0")]
    node = graph.nodes["step"]
    with MonitoredSession(graph, hooks=hooks) as session:

        def by_node(count: int) -> None:
            for _ in range(count):
                session.run(node)

        def in_turns_of_two(count: int) -> None:
            for _ in range(count // 2):
                session.run("step")
                session.run("x")

        loops = {
            "name": session_loop(session, fed=False),
            "node": by_node,
            "turns": in_turns_of_two,
        }
        times = in_turns(loops, rounds, 1000)
    yield ratio("a node as fetch", times, "node", "name", 1.1)
    yield ratio("two requests in turns", times, "turns", "name", 1.5)


def driven_steps(rounds: int) -> Iterator[Ratio]:
    """Compare steps that another loop drives with blocks that report the same."""
    for count in (1, 5):
        names = [f"v{number}" for number in range(count)]
        values = dict.fromkeys(names, 1.0)
        driven = DrivenSession(hooks=[ReadyWatcher(name) for name in names])
        driven.begin()
        driven.created()

        def drive(
            count: int, driven: DrivenSession = driven, values: dict[str, float] = values
        ) -> None:
            for _ in range(count):
                driven.before_step()
                driven.after_step(values)

        hooks = [ReadyWatcher(name) for name in names]
        with MonitoredTrainingSession(hooks=hooks) as session:
            loops = {"block": step_loop(session, names), "driven": drive}
            times = in_turns(loops, rounds, 500)
        driven.end()
        yield ratio(f"{count} ready requests, driven", times, "driven", "block", 1.25)


def hooks_that_are_not_due(rounds: int) -> Iterator[Ratio]:
    """Compare sessions with hooks that are not due with one without hooks."""
    with contextlib.ExitStack() as open_sessions:
        loops = {}
        for count in (0, 100, 1000):
            hooks = [IdleWatcher("x") for _ in range(count)]
            session = MonitoredSession(trivial_graph(1), hooks=hooks)
            open_sessions.enter_context(session)
            loops[f"{count} hooks"] = session_loop(session, fed=True)
        times = in_turns(loops, rounds, 1000)
    for name in [*loops][1:]:
        yield ratio(f"{name} that are not due", times, name, "0 hooks", 1.05)


class Regression:
    """A linear regression whose step takes so many seconds, more or less."""

    def __init__(self, seconds: float) -> None:
        self.rows = 500
        while True:
            random = np.random.default_rng(1)
            self.inputs = random.random((self.rows, 40))
            self.targets = self.inputs @ random.random(40)
            taken = self._time()
            if taken >= seconds:
                return
            self.rows = int(self.rows * min(2, 1.05 * seconds / taken)) + 10

    def step(self, w: Any) -> tuple[Any, dict[str, float]]:
        """Return new weights, and the loss."""
        error = self.inputs @ w - self.targets
        loss = float(error @ error) / len(error)
        return w - 0.01 * (self.inputs.T @ error) / len(error), {"loss": loss}

    def _time(self) -> float:
        loop = self.by_itself()
        loop(50)
        return min(in_turns({"": loop}, 20, 50)[""])

    def by_itself(self) -> Loop:
        """Return the plain loop."""
        w = np.zeros(40)

        def loop(count: int) -> None:
            nonlocal w
            for _ in range(count):
                w, _ = self.step(w)

        return loop

    def graph(self) -> Graph:
        """Return a graph that trains."""
        graph = Graph()
        graph.variable("w", np.zeros(40))
        graph.train_op(self.step, name="train", updates="w", outputs=("loss",))
        return graph

    def in_a_step(self, session: MonitoredTrainingSession) -> Loop:
        """Return the loop as a custom loop."""
        w = np.zeros(40)

        def loop(count: int) -> None:
            nonlocal w
            for _ in range(count):
                with session.step() as step:
                    w, out = self.step(w)
                    step.report(loss=out["loss"])

        return loop


def sessions_without_hooks(rounds: int) -> Iterator[Ratio]:
    """Compare sessions without hooks with plain loops."""
    small, larger = Regression(20e-6), Regression(50e-6)
    with MonitoredSession(small.graph()) as session:

        def run(count: int) -> None:
            for _ in range(count):
                session.run("train")

        times = in_turns({"plain": small.by_itself(), "run()": run}, rounds, 500)
    yield ratio("no hooks, a NumPy step of 20 us", times, "run()", "plain", 1.12)
    with MonitoredTrainingSession() as custom:
        loops = {"plain": larger.by_itself(), "step()": larger.in_a_step(custom)}
        times = in_turns(loops, rounds, 200)
    yield ratio("no hooks, a custom step of 50 us", times, "step()", "plain", 1.10)


def five_real_hooks(rounds: int) -> Iterator[Ratio]:
    """Compare plugins that do five things with a loop that does them by hand."""
    block, every, task = 1000, 100, Regression(20e-6)
    with tempfile.TemporaryDirectory() as place:
        w = np.zeros(40)
        states = {"weights": lambda: {"w": w}}
        things = ByHand(
            Path(place, "by_hand"),
            save_file,
            lambda: {name: state() for name, state in states.items()},
            every,
            block,
            NEVER,
        )

        def by_hand(count: int) -> None:
            nonlocal w
            for _ in range(count):
                w, out = task.step(w)
                if not things.after_step(out["loss"]):
                    break

        directory = Path(place, "session")
        hooks = [
            StopAtStepHook(last_step=NEVER),
            LoggingTensorHook("loss", every_n_iter=every),
            NanTensorHook("loss"),
            SummarySaverHook(save_steps=every, output_dir=str(directory), tensors="loss"),
            CheckpointSaverHook(save_steps=block),
        ]
        with MonitoredTrainingSession(
            task.graph(),
            checkpoint_dir=directory,
            hooks=hooks,
            save_checkpoint_steps=None,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
        ) as session:

            def run(count: int) -> None:
                for _ in range(count):
                    session.run("train")

            loops = {"plain": task.by_itself(), "by hand": by_hand, "hookbus": run}
            times = in_turns(loops, max(5, rounds // 3), block)
    yield ratio("five real hooks, a step of 20 us", times, "hookbus", "by hand", 1.15)
    yield ratio("the same by hand", times, "by hand", "plain", None)


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


def an_estimator(rounds: int) -> Iterator[Ratio]:
    """Compare the steps of an Estimator with those of a session with the same graph."""
    sys.path.insert(0, str(EXAMPLES))
    digits = importlib.import_module("estimator_digits")
    batches = Timed([*digits.train_input()])
    kinds = {"session": session_training, "Estimator": estimator_training}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for place in range(rounds // 4 + 2):
        for name in [*kinds][:: 1 if place % 2 else -1]:
            kinds[name](digits, batches)
            times[name].append(batches.seconds)
    del times["session"][0], times["Estimator"][0]
    yield ratio("an Estimator on the digits", times, "Estimator", "session", None)


PARTS: Sequence[Part] = (
    hooks_that_fetch,
    hooks_in_a_custom_loop,
    other_requests,
    driven_steps,
    hooks_that_are_not_due,
    sessions_without_hooks,
    five_real_hooks,
    an_estimator,
    tensors.hooks_around_tensors,
)
SHORT: Sequence[Part] = (
    partial(hooks_that_fetch, counts=(5, 100)),
    hooks_that_are_not_due,
    sessions_without_hooks,
)
"""The parts with bars that take no disk and little time."""


def measured(part: Part, rounds: int) -> list[Ratio]:
    """Return the ratios of a part; show them, and nothing else."""
    with contextlib.redirect_stderr(io.StringIO()):
        found = [*part(rounds)]
    print(*found, sep="\n", flush=True)
    return found


def above(found: Iterable[Ratio], slack: float) -> list[Ratio]:
    """Return those ratios that are above their bars, even with some slack."""
    return [
        each for each in found if each.bar is not None and each.median > each.bar * slack
    ]


def check_shortly(parts: Iterable[Part]) -> int:
    """Measure a few parts; return 1 if one is above its bar every time that it is measured.

    The slack is that of a busy machine. What it lets through is for the long form to find.
    """
    failed = False
    for part in parts:
        for _ in range(ATTEMPTS):
            high = above(measured(part, SHORT_ROUNDS), SHORT_SLACK)
            if not high:
                break
            print("above the bar:", *(each.what for each in high), sep="\n  ")
        else:
            failed = True
    return 1 if failed else 0


def main() -> int:
    """Measure all parts, and return whether one was above its bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 above a bar")
    parser.add_argument(
        "--short", action="store_true", help="check the bars in some seconds"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page, do not measure"
    )
    options = parser.parse_args()
    logging.basicConfig(stream=io.StringIO(), level=logging.INFO, force=True)
    if options.page:
        tensors.draw()
        return 0
    if options.short:
        return check_shortly(SHORT)
    found = [ratio for part in PARTS for ratio in measured(part, options.rounds)]
    versions = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "hookbus": version("hookbus"),
        "numpy": np.__version__,
        **tensors.versions(),
    }
    print(", ".join(f"{name} {found_version}" for name, found_version in versions.items()))
    if options.json is not None:
        ratios = [attrs.asdict(ratio) for ratio in found]
        options.json.write_text(json.dumps({**versions, "ratios": ratios}, indent=2) + "\n")
    high = above(found, SLACK) if options.check else []
    if high:
        print("above the bar:", *(each.what for each in high), sep="\n  ")
    return 1 if high else 0


if __name__ == "__main__":
    sys.exit(main())
