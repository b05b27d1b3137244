"""The hooks that come with hookbus pass the conformance suite."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.profiles import cases

SETTINGS = {
    "checkpoint-saver": ["checkpoint_dir=saved"],
    "early-stopping": ["mode=no_increase", "patience=3", "run_every_steps=1"],
    "feed-fn": ["feed_fn=builtins:dict"],
    "final-ops": ["final_ops=loss,w"],
    "global-step-waiter": ["wait_until_step=0"],
    "gradient-accumulation": ["runs=2", "gradients=x"],
    "gradient-clipping": ["norm=1.0", "gradients=x"],
    "in-memory-evaluator": ["evaluate=metrics:weight", "every_n_iter=2"],
    "live": ["every_n_steps=2"],
    "logging-tensor": ["every_n_iter=2"],
    "lr-finder": ["variable=w", "steps=2", "output_dir=found"],
    "metrics-writer": ["directory=written", "every_n_steps=2"],
    "monitor": ["names=w", "every_n_steps=2"],
    "nan-tensor": [],
    "prediction-writer": ["values=loss,accuracy"],
    "profiler": ["save_steps=1", "output_dir=timelines"],
    "progress": ["every_secs=0"],
    "reduce-lr-on-plateau": ["every_n_steps=2"],
    "spike-rollback": ["warmup=2"],
    "step-counter": ["every_n_steps=2"],
    "stop-at-checkpoint-step": [
        "model_dir=chief",
        "last_step=4",
        "wait_after_file_check_secs=0",
    ],
    "stop-at-step": ["num_steps=4"],
    "summary-saver": ["output_dir=curves", "save_steps=2"],
    "throughput": ["every_n_steps=2"],
    "time-limit": ["limit=1h", "kind=stopped"],
    "weight-average": ["decay=0.5"],
}
"""Settings for each hook, so that it acts in the few steps."""
IN_LOOPS = {"gradient-accumulation": ["runs=2"], "lr-finder": None}
"""Other settings in custom loops; None for a hook that ends them, as its page says."""
ELSEWHERE = {"batch-size-finder"}
"""Hooks that need what the suite's sessions lack, like an input that a loop names."""
METRICS = """
def weight(session):
    return {"w": session.run("w") if session.graph.variables else 0.0}
"""
CLASSES = {
    entry.name: entry.value
    for entry in entry_points(group="hookbus")
    if entry.dist.name == f"hookbus-{entry.name}"
}


def test_every_hook_is_tested():
    """The table above has all hooks of the plugins that come with hookbus."""
    assert CLASSES.keys() == SETTINGS.keys() | ELSEWHERE


@pytest.mark.long
@pytest.mark.parametrize(
    "name", cases(["checkpoint-saver", "logging-tensor"], list(SETTINGS))
)
def test_a_hook_that_comes_with_hookbus_passes(conformance, name):
    """It keeps each rule, also where a warning is an error; one is for those with state."""
    Path("metrics.py").write_text(METRICS, "utf-8")
    runs = {"": SETTINGS[name]}
    if name in IN_LOOPS:
        runs = {"not custom_loop": SETTINGS[name]}
        if IN_LOOPS[name] is not None:
            runs["custom_loop"] = IN_LOOPS[name]
    passed: set[str] = set()
    for chosen, given in runs.items():
        settings = [f"--hook-setting={setting}" for setting in given]
        results = conformance(
            "--hook", CLASSES[name], *settings, "-W", "error", "-k", chosen
        )
        (found,) = results.values()
        assert found["failed"] == {}
        passed |= found["passed"].keys()
    assert {"test_it_survives", "test_it_cleans_up"} <= passed
