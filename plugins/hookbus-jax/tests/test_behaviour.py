"""Every built-in hook does with JAX what it does in every other kind of session."""

from __future__ import annotations

from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hookbus_jax import JaxGraph

from hookbus import Graph, MonitoredTrainingSession, Outcome
from tests.support.kinds import Cut, Model, of_graphs, run_graph
from tests.support.scenarios import SCENARIOS, all_at_once


@jax.jit
def step_of(params: Any, x: Any, losses: Any, step: Any) -> Any:
    return {"w": params["w"] + x}, losses[jnp.minimum(step, len(losses) - 1)]


def custom_loop(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train in a custom loop with a dict of arrays."""
    state = {"params": {"w": jnp.zeros(())}}
    losses = jnp.array(model.losses)
    with MonitoredTrainingSession(**session) as opened:
        opened.track(state=state)
        for x in opened.iterate(count(1.0)):
            with opened.step() as step:
                given, now = x + step.feeds.get("bias", 0.0), opened.global_step
                state["params"], loss = step_of(state["params"], given, losses, now)
                step.report(loss=loss, w=state["params"]["w"])
            if opened.global_step == model.cut:
                raise Cut
            if opened.global_step >= model.steps:
                break
    return opened.outcome, float(state["params"]["w"])


def graph_of(model: Model, donate: bool = False) -> JaxGraph:
    """Return the model as a graph of compiled functions."""
    graph = JaxGraph(donate=donate)
    graph.variable("w", 0.0)
    graph.input("x", lambda: count(1.0))
    losses = jnp.array(model.losses)

    @graph.op
    def loss(global_step):
        return losses[jnp.minimum(global_step, len(losses) - 1)]

    if model.fed:
        graph.placeholder("bias")

        @graph.train_op(updates="w")
        def train(w, x, bias):
            return w + x + bias

    else:

        @graph.train_op(updates="w")
        def train(w, x):
            return w + x

    return graph


class Last:
    """Reads ``w`` at the end."""

    w = float("nan")

    def end(self, session):
        self.w = float(session.run("w"))


def graph(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train a graph."""
    last = Last()
    session["hooks"] = [*session["hooks"], last]
    return run_graph(graph_of(model), model, session), last.w


def donating(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train a graph whose runs donate."""
    last = Last()
    session["hooks"] = [*session["hooks"], last]
    return run_graph(graph_of(model, donate=True), model, session), last.w


@pytest.mark.parametrize("kind", [custom_loop, graph])
@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_hook_does_the_same_with_jax(plugin, kind, tmp_path):
    SCENARIOS[plugin](kind, tmp_path)


@pytest.mark.parametrize("kind", [custom_loop, graph, donating])
def test_all_hooks_together_leave_the_same_behind(kind, tmp_path):
    """JAX or not: the same steps, values and files, also after a cut."""
    expected = all_at_once(of_graphs(Graph), tmp_path / "embedded")
    assert all_at_once(kind, tmp_path / "jax") == expected
