"""Every built-in hook does with JAX what it does in every other kind of session."""

from __future__ import annotations

from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hookbus import MonitoredTrainingSession, Outcome
from hookbus.testing import BackendModel
from hookbus.testing.scenarios import SCENARIOS, Cut, Training, all_at_once, of_graphs


@jax.jit
def step_of(params: Any, x: Any, losses: Any, step: Any) -> Any:
    return {"w": params["w"] + x}, losses[jnp.minimum(step, len(losses) - 1)]


def custom_loop(training: Training, **session: Any) -> tuple[Outcome, float]:
    """Train in a custom loop with a dict of arrays."""
    state = {"params": {"w": jnp.zeros(())}}
    losses = jnp.array(training.losses)
    with MonitoredTrainingSession(**session) as opened:
        opened.track(state=state)
        for x in opened.iterate(count(1.0), name="x"):
            with opened.step() as step:
                given, now = x + step.feeds.get("bias", 0.0), opened.global_step
                state["params"], loss = step_of(state["params"], given, losses, now)
                step.report(loss=loss, w=state["params"]["w"])
            if opened.global_step == training.cut:
                raise Cut
            if opened.global_step >= training.steps:
                break
    return opened.outcome, float(state["params"]["w"])


@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_hook_does_the_same_in_a_loop_with_jax(plugin, tmp_path):
    SCENARIOS[plugin](custom_loop, tmp_path)


def test_all_hooks_together_leave_the_same_behind(tmp_path):
    """JAX or not: the same steps, values and files, also after a cut."""
    expected = all_at_once(of_graphs(BackendModel()), tmp_path / "embedded")
    assert all_at_once(custom_loop, tmp_path / "jax") == expected
