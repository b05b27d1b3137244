"""Measures what each built-in hook adds to a step in which it is due, and to the others.

The step does next to nothing: it adds 1.0 to a variable, and its loss is a float. Sessions
with one hook and a session without hooks take turns, in blocks of steps, and the fastest
block of each counts: on a quiet machine the code takes this time. "Due" is a hook with a
period of one step. Of that, the first part is the session's work for any hook that is due:
it is measured with a hook that fetches the loss and does nothing with it.

    python benchmarks/hook_costs.py [--rounds 200] [--page]

With --page it writes the table into docs/explanation/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_progress import ProgressHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from ratios import Loop
from tables import Marked, number, table
from watchers import NEVER

from hookbus import (
    Config,
    Due,
    Graph,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)

PAGE = Marked(
    Path(__file__).resolve().parents[1] / "docs" / "explanation" / "performance.md",
    "benchmarks/hook_costs.py",
)
QUIET = Config(autoload=False, header=False)
BLOCK, DISK_BLOCK = 200, 5
HEADINGS = (
    "`run()`, not due",
    "`run()`, due",
    "of these its own",
    "`step()`, not due",
    "`step()`, due",
    "of these its own",
)


class Idle(SessionRunHook):
    """Fetches the loss in its runs, and does nothing with it."""

    def __init__(self, every: int) -> None:
        self.every = every

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(global_step + self.every)

    def before_run(self) -> SessionRunArgs:
        return _LOSS

    def after_run(self, run_context: Any, run_values: Any) -> None: ...


_LOSS = SessionRunArgs("loss")


@attrs.frozen
class Subject:
    """A hook to measure.

    Attributes:
        make: makes it with a period, in a directory.
        waits: whether it is ever not due.
        repeats: whether it can be due in each step; if not, it ends the session.
        block: how many steps are timed at once.
    """

    make: Callable[[int, str], SessionRunHook]
    waits: bool = True
    repeats: bool = True
    block: int = BLOCK


NOTHING = "a hook that only fetches"
SUBJECTS: Mapping[str, Subject] = {
    NOTHING: Subject(lambda every, _: Idle(every)),
    "nan-tensor": Subject(lambda *_: NanTensorHook("loss"), waits=False),
    "stop-at-step": Subject(
        lambda every, _: StopAtStepHook(last_step=every), repeats=False
    ),
    "step-counter": Subject(lambda every, _: StepCounterHook(every)),
    "logging-tensor": Subject(lambda every, _: LoggingTensorHook("loss", every)),
    "progress": Subject(lambda every, _: ProgressHook(0.0 if every == 1 else 1e6)),
    "summary-saver": Subject(
        lambda every, place: SummarySaverHook(every, output_dir=place, tensors="loss")
    ),
    "checkpoint-saver": Subject(
        lambda every, place: CheckpointSaverHook(place, save_steps=every), block=DISK_BLOCK
    ),
}


def graph() -> Graph:
    """Return the graph of the step."""
    graph = Graph()
    graph.variable("w", 0.0)
    step = lambda w: (w + 1.0, {"loss": w})  # noqa: E731 (as short as can be)
    graph.train_op(step, name="train", updates="w", outputs=("loss",))
    return graph


def loop_of(session: MonitoredSession, custom: bool) -> Loop:
    """Return the loop of a session."""

    def run(count: int) -> None:
        for _ in range(count):
            session.run("train")

    def step(count: int) -> None:
        loss = 0.0
        for _ in range(count):
            with session.step() as step:
                loss += 1.0
                step.report(loss=loss)

    return step if custom else run


@contextlib.contextmanager
def opened(hooks: list[Any], custom: bool) -> Iterator[Loop]:
    """Open a session, warm it up, and yield its loop."""
    model = None if custom else graph()
    with MonitoredSession(model, hooks=hooks, config=QUIET) as session:
        loop = loop_of(session, custom)
        loop(20)
        yield loop


def fastest(loops: Mapping[str, tuple[Loop, int]], rounds: int) -> dict[str, float]:
    """Time loops in turns; return the microseconds of a step in the fastest blocks."""
    best = dict.fromkeys(loops, float("inf"))
    for _ in range(rounds):
        for name, (loop, block) in loops.items():
            began = time.perf_counter()
            loop(block)
            best[name] = min(best[name], (time.perf_counter() - began) / block * 1e6)
    return best


def last_step(subject: Subject, custom: bool, rounds: int) -> float:
    """Return the microseconds of the step in which a hook ends the session, the fastest."""
    best = float("inf")
    for _ in range(rounds):
        with opened([subject.make(21, "")], custom) as loop:
            began = time.perf_counter()
            loop(1)
            best = min(best, (time.perf_counter() - began) * 1e6)
    return best


def measured(custom: bool, rounds: int) -> dict[str, tuple[float | None, float]]:
    """Return the cost of each hook in a step in which it is not due, and in which it is.

    The first is None for a hook that is due in each.
    """
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        loops = {"": (stack.enter_context(opened([], custom)), BLOCK)}
        for name, subject in SUBJECTS.items():
            for every in (NEVER, 1):
                if subject.repeats or every == NEVER:
                    folder = str(Path(place, f"{name} {every}"))
                    loop = stack.enter_context(
                        opened([subject.make(every, folder)], custom)
                    )
                    block = BLOCK if every == NEVER else subject.block
                    loops[f"{name} {every}"] = loop, block
        micros = fastest(loops, rounds)
    bare, found = micros[""], {}
    for name, subject in SUBJECTS.items():
        due = micros.get(f"{name} 1")
        if due is None:
            due = last_step(subject, custom, rounds)
        waiting = micros[f"{name} {NEVER}"] - bare if subject.waits else None
        found[name] = waiting, due - bare
    return {"no hook, the whole step": (None, bare), **found}


def told(rounds: int) -> str:
    """Measure; return the text of the page."""
    run, step = measured(custom=False, rounds=rounds), measured(custom=True, rounds=rounds)
    rows: dict[str, list[str]] = {}
    for name in run:
        rows[name] = []
        for found in (run, step):
            waiting, due = found[name]
            waits = name not in SUBJECTS or SUBJECTS[name].waits
            own = due - (found[NOTHING][1] if waits else 0.0)
            cells = waiting, due, own if name in SUBJECTS else None
            rows[name] += ["" if c is None else number(max(0.0, c)) for c in cells]
    where = f"hookbus {version('hookbus')}, Python {platform.python_version()}"
    today = datetime.now(UTC).date().isoformat()
    return (
        f"\nMeasured on {today} with {where}: microseconds, the fastest of {rounds} blocks "
        f"of {BLOCK} steps (of {DISK_BLOCK} for checkpoints).\n\n{table(HEADINGS, rows)}\n"
    )


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--page", action="store_true", help="write the page")
    options = parser.parse_args()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        text = told(options.rounds)
    print(text)
    if options.page:
        PAGE.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
