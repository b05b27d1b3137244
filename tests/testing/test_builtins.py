"""The hooks that come with hookbus pass the conformance suite."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

SETTINGS = {
    "checkpoint-saver": ["checkpoint_dir=saved"],
    "logging-tensor": ["every_n_iter=2"],
    "nan-tensor": [],
    "progress": ["every_secs=0"],
    "step-counter": ["every_n_steps=2"],
    "stop-at-step": ["num_steps=4"],
    "summary-saver": ["output_dir=curves", "save_steps=2"],
}
"""What each hook is given, so that it acts in the few steps that there are."""
CLASSES = {
    entry.name: entry.value
    for entry in entry_points(group="hookbus")
    if entry.dist.name == f"hookbus-{entry.name}"
}


def test_every_hook_is_tested():
    """The table above has all hooks of the plugins that come with hookbus."""
    assert CLASSES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_hook_that_comes_with_hookbus_passes(conformance, name):
    """It keeps each rule, also where a warning is an error; one is for those with state."""
    settings = [f"--hook-setting={setting}" for setting in SETTINGS[name]]
    results = conformance("--hook", CLASSES[name], *settings, "-W", "error")
    (found,) = results.values()
    assert found["failed"] == {}
    assert {"test_it_survives", "test_it_cleans_up"} <= found["passed"].keys()
