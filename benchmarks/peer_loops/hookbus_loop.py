# /// script
# dependencies = ["hookbus"]
# ///
"""Runs hooks around the op of a graph with session.run(), and around a custom loop.

A hook that fetches reads a variable of the graph, one of its own; in the custom loop it
reads a value that the step reports.
"""

from worker import Loop, Peer, over_batches, plain, serve, step, timed

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)

QUIET = Config(autoload=False, header=False)


class Empty(SessionRunHook):
    def __init__(self, name: str) -> None:
        pass

    def before_run(self, run_context):
        pass

    def after_run(self, run_context, run_values):
        pass


class Fetching(SessionRunHook):
    def __init__(self, name: str) -> None:
        self.name = name

    def before_run(self, run_context):
        return SessionRunArgs(self.name)

    def after_run(self, run_context, run_values):
        self.last = run_values.results


HOOKS = {"empty": Empty, "fetch": Fetching}


def by_hand(steps: int) -> None:
    """Do what the op of the graph does."""
    for _ in range(steps):
        step(1)


def of_graph(kind: str, count: int) -> Loop:
    names = [f"v{number}" for number in range(count)]
    graph = Graph()
    graph.variable("batch", 1)
    for number, name in enumerate(names):
        graph.variable(name, number)
    graph.op(step, name="step")
    hooks = [HOOKS[kind](name) for name in names]
    session = MonitoredSession(graph, hooks=hooks, config=QUIET)

    def run(steps: int) -> None:
        for _ in range(steps):
            session.run("step")

    return timed(run)


def of_custom_loop(kind: str, count: int) -> Loop:
    names = [f"v{number}" for number in range(count)]
    hooks = [HOOKS[kind](name) for name in names]
    session = MonitoredTrainingSession(hooks=hooks, config=QUIET)
    values = dict.fromkeys(names, 1.0)

    def train(batches):
        for batch in batches:
            with session.step():
                step(batch)

    def reporting(batches):
        for batch in batches:
            with session.step() as running:
                step(batch)
                running.report(**values)

    return over_batches(reporting if kind == "fetch" else train)


serve(
    {
        "hookbus, session.run()": Peer(timed(by_hand), of_graph, tuple(HOOKS)),
        "hookbus, session.step()": Peer(over_batches(plain), of_custom_loop, tuple(HOOKS)),
    }
)
