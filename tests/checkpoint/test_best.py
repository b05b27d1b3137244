"""best_checkpoint() chooses by the values that hooks have recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import (
    CheckpointError,
    Config,
    MonitoredSession,
    UsageError,
    best_checkpoint,
    hookimpl,
)

RUNS = Path("runs")
QUIET = Config(autoload=False, header=False)


class RatesHook:
    """Records a value for each evaluation, under a name of its own."""

    def begin(self, checkpoints):
        self.checkpoints = checkpoints

    @hookimpl
    def evaluated(self, metrics, global_step):
        self.checkpoints.record_values({"rate": 1 - metrics["loss"]}, global_step)


def train(losses, *hooks, **settings):
    """Train one step for each loss, and evaluate the model after it."""
    saver = CheckpointSaverHook(RUNS, save_steps=1, **settings)
    with MonitoredSession(hooks=[saver, *hooks], config=QUIET) as session:
        for loss in losses:
            with session.step():
                pass
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=loss)


def keeping(count, **settings):
    """Return settings of checkpoint-saver that keep the best ones."""
    return {"keep_best": count, "best_metric": "val/loss", "max_to_keep": 2, **settings}


@pytest.mark.parametrize(("mode", "step"), [("min", 2), ("max", 1)])
def test_it_is_the_one_with_the_lowest_or_the_highest_value(mode, step):
    """The lowest by default."""
    train([0.9, 0.2, 0.5], **keeping(9, max_to_keep=None))
    assert best_checkpoint(RUNS, "val/loss", mode=mode) == RUNS / f"ckpt-{step}"
    assert best_checkpoint(str(RUNS), "val/loss") == RUNS / "ckpt-2"


def test_of_equal_values_the_first_step_counts():
    """As in the rule that keeps them."""
    train([0.5, 0.2, 0.2, 0.7], **keeping(1))
    assert best_checkpoint(RUNS, "val/loss") == RUNS / "ckpt-2"


def test_only_those_that_still_exist_count():
    """The best that keep_best kept may be removed by hand, or damaged."""
    train([0.9, 0.2, 0.3, 0.5, 0.7], **keeping(2))
    assert best_checkpoint(RUNS, "val/loss") == RUNS / "ckpt-2"
    shutil.rmtree(RUNS / "ckpt-2")
    assert best_checkpoint(RUNS, "val/loss") == RUNS / "ckpt-3"
    (RUNS / "ckpt-3/manifest.json").write_text("{")
    assert best_checkpoint(RUNS, "val/loss") == RUNS / "ckpt-4"


def test_any_hook_may_have_recorded_the_value():
    """Not only checkpoint-saver."""
    train([0.9, 0.2, 0.5], RatesHook(), max_to_keep=None)
    assert best_checkpoint(RUNS, "rate", mode="max") == RUNS / "ckpt-2"


def test_an_unknown_name_lists_the_known_ones():
    train([0.9, 0.2], RatesHook(), **keeping(2))
    told = (
        r"no checkpoint in 'runs' has a value 'val/los'; the values there are "
        r"'rate', 'val/loss'; did you mean 'val/loss'\?$"
    )
    with pytest.raises(UsageError, match=told):
        best_checkpoint(RUNS, "val/los")


def test_without_any_value_it_says_how_to_record_one():
    train([0.9])
    told = "has a value 'val/loss', nor any other: hooks record them, like checkpoint-saver"
    with pytest.raises(UsageError, match=told):
        best_checkpoint(RUNS, "val/loss")


def test_without_a_checkpoint_it_is_an_error():
    with pytest.raises(CheckpointError, match=r"^there is no checkpoint in 'runs'$"):
        best_checkpoint(RUNS, "val/loss")


def test_another_mode_is_an_error():
    told = r"^the mode of best_checkpoint\(\) is min or max, given: 'lowest'$"
    with pytest.raises(UsageError, match=told):
        best_checkpoint(RUNS, "val/loss", mode="lowest")


def test_it_changes_nothing():
    """Not even what is damaged."""
    train([0.9, 0.2], **keeping(2))
    (RUNS / "ckpt-1/manifest.json").write_text("{")
    before = {p: p.stat().st_mtime_ns for p in RUNS.rglob("*")}
    best_checkpoint(RUNS, "val/loss")
    assert {p: p.stat().st_mtime_ns for p in RUNS.rglob("*")} == before
