"""Tests what the same command does when its run has finished: nothing drifts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.pages import ROOT
from tests.support.profiles import cases

PAGE = ROOT / "docs" / "how-to" / "resume-after-a-kill.md"

GRAPH = """
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.input("batch", lambda: range(BATCHES))
graph.variable("w", 0.0)

@graph.op
def loss(w):
    return max(8.0 - w, 4.0)

@graph.train_op(updates="w")
def train(w, batch):
    return w + 1.0

with MonitoredTrainingSession(graph, checkpoint_dir="runs") as session:
    while not session.should_stop():
        session.run("train")
print("after the block", session.global_step)
"""
CUSTOM = """
from hookbus import MonitoredTrainingSession

class Model:
    w = 0.0

    def state_dict(self):
        return {"w": self.w}

    def load_state_dict(self, state):
        self.w = state["w"]

model = Model()
with MonitoredTrainingSession(checkpoint_dir="runs") as session:
    session.track(model=model)
    for batch in INPUT:
        with session.step() as step:
            step.report(loss=max(8.0 - model.w, 4.0))
            model.w += 1.0
print("after the block", session.global_step)
"""
SLIM = """
from hookbus import Graph, learning

graph = Graph()
graph.input("batch", lambda: range(100))
graph.variable("w", 0.0)

@graph.train_op(updates="w", outputs=["loss"])
def train(w, batch):
    return w + 1.0, {"loss": w}

learning.train(train, "runs", number_of_steps=6, log_every_n_steps=0)
print("after the block")
"""
ESTIMATOR = """
from hookbus import (
    Estimator, EstimatorSpec, EvalSpec, TrainSpec, train_and_evaluate
)

def model_fn(features, mode):
    graph = features.graph
    graph.variable("w", 0.0)
    graph.op(lambda features: float(features), name="loss")

    @graph.train_op(updates="w")
    def train(w, loss):
        return w + 1.0

    return EstimatorSpec(mode, loss="loss", train_op="train")

def numbers():
    return range(BATCHES)

estimator = Estimator(model_fn, "runs")
CALL
print("after the block")
"""


@attrs.frozen
class Run:
    """A way to finish a run: a script, what stands in it, and flags."""

    script: str
    flags: tuple[str, ...] = ()
    batches: int = 100
    input: str = "session.iterate(range(BATCHES))"
    call: str = ""

    @property
    def text(self) -> str:
        """The text of the script."""
        filled = self.script.replace("INPUT", self.input).replace("CALL", self.call)
        return filled.replace("BATCHES", str(self.batches))


TO_STEP = ("--stop-at-step", "6")
STEPS = ("--stop-at-step-num-steps", "6")
EARLY = (
    *("--early-stopping", "loss", "--early-stopping-patience", "1"),
    *("--early-stopping-run-every-steps", "1"),
)
SPECS = "TrainSpec(numbers, max_steps=6), EvalSpec(numbers, steps=1)"
# The first cell of a row of the page's table -> the runs that it is about.
RUNS = {
    "`--stop-at-step 6`": {
        "graph": Run(GRAPH, TO_STEP),
        "custom loop": Run(CUSTOM, TO_STEP),
        "bare custom loop": Run(CUSTOM, TO_STEP, input="range(50)"),
    },
    "`--stop-at-step-num-steps 6`": {
        "graph": Run(GRAPH, STEPS),
        "custom loop": Run(CUSTOM, STEPS),
        "bare custom loop": Run(CUSTOM, STEPS, input="range(50)"),
    },
    "`--early-stopping loss`": {
        "graph": Run(GRAPH, EARLY),
        "custom loop": Run(CUSTOM, EARLY),
        "bare custom loop": Run(CUSTOM, EARLY, input="range(50)"),
    },
    "the end of the input": {
        "graph": Run(GRAPH, batches=6),
        "custom loop": Run(CUSTOM, batches=6),
        "epochs": Run(
            CUSTOM,
            input="(b for e in session.epochs(2) for b in session.iterate(range(3)))",
        ),
    },
    "the end of the input, with `--again`": {
        "graph": Run(GRAPH, ("--again",), batches=6),
        "custom loop": Run(CUSTOM, ("--again",), batches=6),
    },
    "the end of a loop without `session.iterate`": {
        "bare custom loop": Run(CUSTOM, input="range(6)"),
    },
    "`Estimator.train(input_fn)`": {
        "Estimator": Run(ESTIMATOR, call="estimator.train(numbers)", batches=6),
    },
    "`learning.train(number_of_steps=6)`": {"graph": Run(SLIM)},
    "`Estimator.train(max_steps=6)`": {
        "train": Run(ESTIMATOR, call="estimator.train(numbers, max_steps=6)"),
        "alternating": Run(ESTIMATOR, call=f"train_and_evaluate(estimator, {SPECS})"),
    },
    "`Estimator.train(steps=6)`": {
        "train": Run(ESTIMATOR, call="estimator.train(numbers, steps=6)"),
    },
}
EVERY = [(row, kind) for row, runs in RUNS.items() for kind in runs]
# The kinds differ most in the first row; a bare loop has to be left there.
SOME = [(row, k) for row, runs in RUNS.items() for k in runs if k == next(iter(runs))]
SOME += [
    (row, kind) for row, kind in EVERY if row == EVERY[0][0] and (row, kind) not in SOME
]
CASES = cases(SOME, EVERY)


def table() -> dict[str, list[int]]:
    """Return the page's table: how a run ends, and the step after each start."""
    rows = re.findall(r"^\| (.+?) \| (\d+(?:, \d+)+) \| .* \|$", PAGE.read_text(), re.M)
    return {ending: [int(step) for step in steps.split(", ")] for ending, steps in rows}


def test_the_page_lists_each_way_to_finish() -> None:
    """The table on the page has one row for each way below, and no other."""
    assert list(table()) == list(RUNS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("row", "kind"), CASES, ids=[f"{r}, {k}" for r, k in CASES])
def test_more_starts_of_a_finished_run_do_what_the_page_states(
    row: str, kind: str, hookbus: Callable[..., Any]
) -> None:
    """Step, variables, checkpoints, outcome, exit code and log are those of the table."""
    run, steps = RUNS[row][kind], table()[row]
    Path("train.py").write_text(run.text, "utf-8")
    first: Any = None
    for start, step in enumerate(steps):
        done = hookbus("run", "-p", "no:progress", *run.flags, "train.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("after the block"), done.stderr
        assert newest() == Path(f"runs/ckpt-{step}"), done.stderr
        state = json.loads((newest() / "state.json").read_text())
        assert number_in(state) == float(step)
        outcome = json.loads(Path("runs/outcome.json").read_text())
        nothing = start > 0 and step == steps[0]
        assert ("nothing to train" in done.stderr) is nothing, done.stderr
        assert ("checkpoint saved" in done.stderr) is not nothing
        first = first or (outcome, files())
        assert outcome == {**first[0], "step": step, "why": outcome["why"]}
        if nothing:
            assert (outcome, files()) == first


def newest() -> Path:
    """Return the newest checkpoint."""
    return max(Path("runs").glob("ckpt-*"), key=lambda path: int(path.name[5:]))


def files() -> dict[Path, tuple[int, bytes]]:
    """Return the files of all checkpoints: when they were written, and what they hold."""
    found = Path("runs").glob("ckpt-*/*")
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def number_in(state: dict[str, Any]) -> float:
    """Return the only variable of a checkpoint."""
    variables = state["variables"] or state["tracked"]["model"]
    return variables["w"]
