"""Measures hooks around a PyTorch step, against the same loop written by hand.

The step lasts about 50 microseconds. Every hook fetches its loss: in each step, or in a
step that never comes. By hand, the loop brings the loss to the host once a step, and hands
it to each hook; where no hook is due it only compares two numbers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ratios import Loop, Ratio, in_turns
from tables import Marked, number, table
from watchers import NEVER, IdleWatcher, ReadyWatcher, Watcher

from hookbus import Config, MonitoredTrainingSession

COUNTS = (0, 1, 5, 20, 100)
KINDS: dict[str, type[Watcher]] = {"due": ReadyWatcher, "idle": IdleWatcher}
STEP = 50e-6
QUIET = Config(autoload=False, header=False)

EXPLANATION = Path(__file__).resolve().parents[1] / "docs" / "explanation"
PAGE = Marked(EXPLANATION / "peers.md", "benchmarks/step_overhead.py")
RESULTS = EXPLANATION / "step_overhead.json"
PICTURE = EXPLANATION.parent / "images" / "step_overhead.svg"


def is_there() -> bool:
    """Whether PyTorch and its plugin are installed."""
    return all(map(importlib.util.find_spec, ("torch", "hookbus_torch")))


def versions() -> dict[str, str]:
    """Return the version of PyTorch, if it is measured."""
    return {"torch": version("torch")} if is_there() else {}


class Training:
    """A linear regression on tensors."""

    def __init__(self, rows: int) -> None:
        import torch  # not installed everywhere

        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.inputs = torch.rand(rows, 40)
        self.targets = self.inputs @ torch.rand(40)
        self.weights = torch.zeros(40)

    def step(self) -> Any:
        """Do a step; return its loss."""
        error = self.inputs @ self.weights - self.targets
        self.weights -= 0.01 * (error @ self.inputs) / len(error)
        return error @ error / len(error)

    def plain(self, count: int) -> None:
        """Do so many steps and nothing else."""
        for _ in range(count):
            self.step()

    def by_hand(self, hooks: Sequence[Callable[[float], object]], due: int) -> Loop:
        """Return the loop that hands the loss to some functions from a step on."""
        done = 0

        def loop(count: int) -> None:
            nonlocal done
            for _ in range(count):
                loss = self.step()
                done += 1
                if done >= due:
                    value = loss.item()
                    for hook in hooks:
                        hook(value)

        return loop

    def in_a_session(self, session: MonitoredTrainingSession) -> Loop:
        """Return the loop as a custom loop that reports its loss."""

        def loop(count: int) -> None:
            for _ in range(count):
                with session.step() as step:
                    step.report(loss=self.step())

        return loop


class ByHand:
    """Keeps a value, like a hook that fetches it."""

    def after(self, value: float) -> None:
        self.last = value


def training_of(seconds: float) -> Training:
    """Return a run whose steps take so long, more or less."""
    rows = 100
    while True:
        training = Training(rows)
        taken = min(in_turns({"": training.plain}, 20, 100)[""])
        if taken >= seconds:
            return training
        rows = int(rows * min(2, 1.05 * seconds / taken)) + 10


def hooks_around_tensors(rounds: int) -> Iterator[Ratio]:
    """Compare hooks around a PyTorch step with the same by hand."""
    if not is_there():
        return
    training = training_of(STEP)
    loops: dict[str, Loop] = {"plain": training.plain}
    cases = [(count, kind) for kind in KINDS for count in COUNTS]
    with contextlib.ExitStack() as opened:
        for count, kind in cases:
            calls = [ByHand().after for _ in range(count)]
            due = 0 if kind == "due" and count else NEVER
            hooks = [KINDS[kind]("loss") for _ in calls]
            session = MonitoredTrainingSession(hooks=hooks, config=QUIET)
            opened.enter_context(session)
            loops[f"by hand {what(count, kind)}"] = training.by_hand(calls, due)
            loops[f"hookbus {what(count, kind)}"] = training.in_a_session(session)
        times = in_turns(loops, 2 * rounds, 50)
    for case in cases:
        shown = {loop: times[f"{loop} {what(*case)}"] for loop in ("by hand", "hookbus")}
        ratios = [b / a for a, b in zip(*shown.values(), strict=True)]
        yield Ratio.of(what(*case), ratios, {"plain": times["plain"], **shown})


def what(count: int, kind: str) -> str:
    """Return the name of a comparison: so many hooks of a kind."""
    return f"{count} hooks, {kind}, a PyTorch step of 50 us"


def told(results: dict[str, Any]) -> str:
    """Return the results as the page tells them."""
    found = {ratio["what"]: ratio for ratio in results["ratios"]}
    rows = {}
    for kind in KINDS:
        ratios = [found[what(count, kind)] for count in COUNTS]
        for loop in ("by hand", "hookbus"):
            rows[f"{kind}, {loop}"] = [number(each["micros"][loop]) for each in ratios]
        rows[f"{kind}, ratio"] = [f"{each['median']:.2f}" for each in ratios]
    names = ("python", "hookbus", "torch")
    shown = ", ".join(f"{name} {results[name]}" for name in names)
    headings = [f"{count} hook{'s' * (count != 1)}" for count in COUNTS]
    return f"\nMeasured on {results['date']}, {shown}.\n\n{table(headings, rows)}\n"


def draw() -> None:
    """Write the page and its picture."""
    from plots import Line, Panel, save  # needs a library that only this needs

    results = json.loads(RESULTS.read_text("utf-8"))
    PAGE.write(told(results))
    found = {ratio["what"]: ratio["micros"] for ratio in results["ratios"]}
    panels = []
    for kind, title in {"due": "Every hook is due", "idle": "No hook is due"}.items():
        times = [found[what(count, kind)] for count in COUNTS]
        lines = [
            Line(loop, COUNTS, [micros[loop] for micros in times], loop == "hookbus")
            for loop in ("plain", "by hand", "hookbus")
        ]
        panels.append(Panel(title, lines))
    save(PICTURE, panels, "hooks", "a step, µs", powers=False)
