"""Every built-in hook does with PyTorch what it does in every other kind of session."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import MonitoredTrainingSession, Outcome
from hookbus.testing import BackendModel
from hookbus.testing.scenarios import SCENARIOS, Cut, Training, all_at_once, of_graphs


class Sum(nn.Module):
    """Has one number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def add(self, x: float) -> None:
        with torch.no_grad():
            self.w.add_(x)


def custom_loop(training: Training, **session: Any) -> tuple[Outcome, float]:
    """Train in a custom loop around a module."""
    module = Sum()
    with MonitoredTrainingSession(**session) as opened:
        opened.track(model=module, w=module.w)
        for x in opened.iterate(count(1.0), name="x"):
            with opened.step() as step:
                module.add(x + step.feeds.get("bias", 0.0))
                step.report(loss=torch.tensor(training.loss(opened.global_step)))
            if opened.global_step == training.cut:
                raise Cut
            if opened.global_step >= training.steps:
                break
    return opened.outcome, module.w.item()


@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_hook_does_the_same_in_a_loop_with_pytorch(plugin, tmp_path):
    SCENARIOS[plugin](custom_loop, tmp_path)


def test_all_hooks_together_leave_the_same_behind(tmp_path):
    """PyTorch or not: the same steps, values and files, also after a cut."""
    expected = all_at_once(of_graphs(BackendModel()), tmp_path / "embedded")
    assert all_at_once(custom_loop, tmp_path / "torch") == expected
