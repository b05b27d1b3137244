"""Trains twelve steps of an embedded graph with an input, and a hook that keeps a state."""

import numpy as np

from hookbus import Graph, MonitoredTrainingSession, SessionRunArgs, SessionRunHook


class LargestHook(SessionRunHook):
    """Keeps the largest value of a node over all runs."""

    def __init__(self):
        self.largest = float("-inf")

    def before_run(self):
        return SessionRunArgs("total")

    def after_run(self, run_context, run_values):
        self.largest = max(self.largest, float(run_values.results))

    def state_dict(self):
        return {"largest": self.largest}

    def load_state_dict(self, state):
        self.largest = state["largest"]


graph = Graph()
graph.input("row", lambda: list(np.arange(36.0).reshape(12, 3) % 7))
graph.variable("weights", np.zeros(3))


@graph.op
def total(weights, row):
    return float((weights + row).sum() + np.random.randint(8))


@graph.train_op(updates="weights")
def train(weights, row, total):
    return weights * 0.5 + row + total


hook = LargestHook()
with MonitoredTrainingSession(
    graph, checkpoint_dir="runs", save_checkpoint_steps=6, hooks=[hook]
) as session:
    for _ in session.loop():
        pass
    weights = session.run("weights", kind="aux")

print(weights.tolist(), hook.largest)
