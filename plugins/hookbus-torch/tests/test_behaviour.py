"""Every built-in hook does with PyTorch what it does in every other kind of session."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import Graph, MonitoredTrainingSession, Outcome
from tests.support.kinds import Cut, Model, of_graphs, run_graph
from tests.support.scenarios import SCENARIOS, all_at_once


class Sum(nn.Module):
    """Has one number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def add(self, x: float) -> None:
        with torch.no_grad():
            self.w.add_(x)


def custom_loop(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train in a custom loop around a module."""
    module = Sum()
    with MonitoredTrainingSession(**session) as opened:
        opened.track(model=module, w=module.w)
        for x in opened.iterate(count(1.0)):
            with opened.step() as step:
                module.add(x + step.feeds.get("bias", 0.0))
                step.report(loss=torch.tensor(model.loss(opened.global_step)))
            if opened.global_step == model.cut:
                raise Cut
            if opened.global_step >= model.steps:
                break
    return opened.outcome, module.w.item()


def graph(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train a graph with an eager train op."""
    module = Sum()
    graph = TorchGraph(module, w=module.w)
    graph.input("x", lambda: count(1.0))

    @graph.op
    def loss(global_step):
        return torch.tensor(model.loss(global_step))

    if model.fed:
        graph.placeholder("bias")

        @graph.train_op
        def train(x, bias):
            module.add(x + bias)

    else:

        @graph.train_op
        def train(x):
            module.add(x)

    return run_graph(graph, model, session), module.w.item()


@pytest.mark.parametrize("kind", [custom_loop, graph])
@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_hook_does_the_same_with_pytorch(plugin, kind, tmp_path):
    SCENARIOS[plugin](kind, tmp_path)


@pytest.mark.parametrize("kind", [custom_loop, graph])
def test_all_hooks_together_leave_the_same_behind(kind, tmp_path):
    """PyTorch or not: the same steps, values and files, also after a cut."""
    expected = all_at_once(of_graphs(Graph), tmp_path / "embedded")
    assert all_at_once(kind, tmp_path / "torch") == expected
