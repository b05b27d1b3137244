"""Tests steps of an evaluation on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hookbus_prediction_writer import PredictionWriterHook

from hookbus import (
    Config,
    HookOptions,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
)
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)


@pytest.fixture(autouse=True)
def library(tmp_path):
    """Have a library whose ranks are threads."""
    with thread_library(tmp_path / "library"):
        yield


class Sums(SessionRunHook):
    """Keeps the sums of what all ranks report in steps of evaluations."""

    options = HookOptions(kinds=("train", "eval"))

    def __init__(self, stops=False):
        self.seen, self.stops = [], stops

    def before_run(self, run_context):
        if run_context.kind == "eval":
            return SessionRunArgs("right", reduce="sum")
        return None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval":
            self.seen.append(float(run_values.results))
            if self.stops:
                run_context.request_stop("seen enough")


def train(rank, *hooks):
    """Train four passes of two steps, and evaluate after each; return the means."""
    means = []
    with MonitoredSession(hooks=hooks, config=QUIET, watch_signals=False) as session:
        for _ in session.epochs(4):
            for _ in session.iterate(range(2)):
                with session.step() as step:
                    step.report(loss=1.0)
            with session.evaluation("val", reduce="mean") as evaluation:
                for number in range(2):
                    with evaluation.step(weight=1 + rank) as step:
                        right = float(10 * rank + number)
                        step.report(right=right, rows=[rank, number])
            means.append(evaluation.metrics["right"])
    return means, session.global_step, session.outcome.why


def test_hooks_reduce_what_ranks_report_in_the_same_step():
    """And the means are over all ranks, with the weights of their steps."""

    def does(rank):
        hook = Sums()
        return train(rank, hook)[:2], hook.seen

    mean = (1 * (0 + 1) + 2 * (10 + 11)) / (2 * 1 + 2 * 2)
    assert ranked(2, does) == [(([mean] * 4, 8), [10.0, 12.0] * 4)] * 2


def test_a_stop_of_one_rank_in_an_evaluation_ends_all_at_the_same_step():
    """It waits until all ranks agree, as one in a step of the training."""
    found = ranked(2, lambda rank: train(rank, Sums(stops=rank == 1)))
    assert found[0][1] == found[1][1] < 8
    assert [why for *_, why in found] == ["seen enough (rank 1)"] * 2


def test_each_rank_writes_its_own_predictions():
    """The files of all but the first say whose they are."""
    ranked(2, lambda rank: train(rank, PredictionWriterHook(["rows"], output_dir="out")))
    names = sorted(path.name for path in Path("out/predictions").iterdir())
    steps = (2, 4, 6, 8)
    wanted = [f"val-{step}{rank}.npz" for step in steps for rank in ("-rank1", "")]
    assert names == wanted
