"""Tests that a hook which was never due says so when a run ends."""

from __future__ import annotations

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_profiler import ProfilerHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook
from hookbus_throughput import ThroughputHook
from hookbus_weight_average import WeightAverageHook

from hookbus import Config, Graph, MonitoredTrainingSession
from tests.support.watching import lines as lines

OFF = Config(autoload=False)
BEST = {"keep_best": 1, "best_from_evaluations": True}
HOOKS = {
    "early-stopping": (
        lambda: EarlyStoppingHook(patience=3, run_every_secs=60),
        {"event": "only the first step was checked", "run_every_secs": 60, "steps": 5},
    ),
    "early-stopping of evaluations": (
        lambda: EarlyStoppingHook("val/loss", patience=3),
        {"event": "no evaluation came", "from_evaluations": "val"},
    ),
    "profiler": (
        lambda: ProfilerHook(save_steps=100),
        {"event": "no timeline was saved", "save_steps": 100},
    ),
    "profiler in seconds": (
        lambda: ProfilerHook(save_secs=100.0),
        {"event": "no timeline was saved", "save_secs": 100.0},
    ),
    "throughput": (
        lambda: ThroughputHook(),
        {"event": "nothing was measured", "every_n_steps": 100},
    ),
    "weight-average": (
        lambda: WeightAverageHook(start_step=50),
        {"event": "no average was made", "start_step": 50},
    ),
    "reduce-lr-on-plateau": (
        lambda: ReduceLROnPlateauHook(),
        {"event": "the learning rate was not reduced", "checks": 1, "patience": 10},
    ),
    "reduce-lr-on-plateau of evaluations": (
        lambda: ReduceLROnPlateauHook(evaluation="val"),
        {"event": "no evaluation came", "evaluation": "val"},
    ),
    "checkpoint-saver": (
        lambda: CheckpointSaverHook(save_steps=100, **BEST),
        {"event": "no evaluation came", "best_metric": "loss"},
    ),
}
"""Hooks whose period is longer than the training, each with what it says."""


def train(hook, directory, steps):
    """Train so many steps."""
    graph = Graph()
    graph.variable("w", 4.0)
    graph.variable("lr", 0.1)
    graph.op(lambda w: w * w, name="loss")
    graph.train_op(lambda w: w * 0.9, name="train", updates="w")
    with MonitoredTrainingSession(
        graph, checkpoint_dir=directory, hooks=[hook], config=OFF, save_summaries_steps=None
    ) as session:
        for _ in range(steps):
            session.run("train")


@pytest.mark.parametrize("case", HOOKS)
def test_a_hook_that_was_never_due_says_so_at_the_end(case, tmp_path, lines):
    """One line names the hook, and the setting that is too long."""
    make, told = HOOKS[case]
    train(make(), tmp_path, 5)
    found = [line for line in lines if line["event"] == told["event"]]
    assert len(found) == 1
    assert told.items() <= found[0].items()
    assert found[0]["by"] == case.partition(" ")[0]


@pytest.mark.parametrize("case", HOOKS)
def test_a_session_without_a_step_says_nothing_of_it(case, tmp_path, lines):
    """No hook could be due there."""
    make, told = HOOKS[case]
    train(make(), tmp_path, 0)
    if told["event"] != "no evaluation came":
        assert told["event"] not in [line["event"] for line in lines]


WORKING = {
    "early-stopping": lambda: EarlyStoppingHook(patience=3),
    "profiler": lambda: ProfilerHook(save_steps=2),
    "throughput": lambda: ThroughputHook(every_n_steps=2),
    "weight-average": lambda: WeightAverageHook(),
    "reduce-lr-on-plateau": lambda: ReduceLROnPlateauHook(every_n_steps=1, patience=2),
}


@pytest.mark.parametrize("case", WORKING)
def test_a_hook_that_was_due_says_nothing_of_it(case, tmp_path, lines):
    """Its settings fit the training."""
    train(WORKING[case](), tmp_path, 5)
    assert {told["event"] for _, told in HOOKS.values()}.isdisjoint(
        line["event"] for line in lines
    )
