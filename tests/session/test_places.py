"""A stranger's hook gets the same values in a graph and in a loop with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import hookbus
from tests.support.places import BATCHES, EPOCHS, RATE, WEIGHT, check_place


@pytest.mark.long
def test_a_strangers_hook_in_a_graph(monkeypatch):
    """A session that runs a graph computes the loss for it."""

    def trains():
        graph = hookbus.Graph()
        graph.variable("weight", np.float32(WEIGHT))
        graph.op(lambda weight: weight**2, name="loss")
        graph.train_op(
            lambda weight: weight - RATE * 2 * weight, name="train", updates="weight"
        )
        with hookbus.MonitoredSession(graph) as session:
            for _ in range(EPOCHS * BATCHES):
                session.run("train")

    check_place(trains, monkeypatch)


@pytest.mark.long
def test_a_strangers_hook_in_a_loop_with_numpy(monkeypatch):
    """A loop reports the loss that it has computed."""

    def trains():
        weight = np.full(1, WEIGHT, "float32")
        with hookbus.MonitoredSession() as session:
            for _ in range(EPOCHS):
                for x in session.iterate(np.ones((BATCHES, 1), "float32")):
                    with session.step() as step:
                        step.report(loss=np.mean((weight * x) ** 2))
                        weight -= RATE * 2 * weight * x**2

    check_place(trains, monkeypatch)
