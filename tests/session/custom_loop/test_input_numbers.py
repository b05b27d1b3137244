"""A hook knows which value of an input a run works on, and what the loop tracks."""

from __future__ import annotations

import numpy as np

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
)

QUIET = Config(autoload=False)


class Noting(SessionRunHook):
    """Notes the numbers in each run."""

    def __init__(self):
        self.before, self.after, self.graph = [], [], None

    def begin(self, graph):
        self.graph = graph

    def before_run(self, run_context):
        self.before.append(dict(run_context.input_numbers))

    def after_run(self, run_context):
        self.after.append(dict(run_context.input_numbers))


def test_a_loop_has_the_number_of_the_value_in_its_pass():
    """From 0 in each pass; a name is that of the pass."""
    noting = Noting()
    with MonitoredSession(hooks=[noting], config=QUIET) as session:
        for _ in session.epochs(2):
            for _ in session.iterate("ab", name="letters"):
                with session.step():
                    pass
    assert noting.before == noting.after == [{"letters": 0}, {"letters": 1}] * 2


def test_the_innermost_pass_counts_and_without_a_pass_there_is_none():
    """A pass without a name is called iterate."""
    noting = Noting()
    with MonitoredSession(hooks=[noting], config=QUIET) as session:
        with session.step():
            pass
        for _ in session.iterate("ab", name="outer"):
            for _ in session.iterate("xy"):
                with session.step():
                    pass
    inner = [{"iterate": 0}, {"iterate": 1}]
    assert noting.after == [{}, *inner, *inner]


def test_a_resumed_loop_counts_on():
    """The numbers are those of a loop that was not cut short."""
    seen = []
    for count in (2, 4):
        noting = Noting()
        with MonitoredTrainingSession(
            checkpoint_dir="runs", hooks=[noting], config=QUIET
        ) as session:
            session.track(w=np.zeros(1))
            for _ in session.iterate(range(count)):
                with session.step():
                    pass
        seen += noting.after
    assert seen == [{"iterate": number} for number in range(4)]


def test_a_graph_has_the_numbers_of_its_inputs():
    """After the run; before it the values are still to come."""
    noting, graph = Noting(), Graph()
    graph.input("x", lambda: range(3))
    graph.train_op(lambda x: None, name="train")
    with MonitoredSession(graph, hooks=[noting], config=QUIET) as session:
        for _ in session.loop():
            pass
    assert noting.after == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert noting.before[:2] == [{}, {"x": 0}]


def test_the_graph_knows_what_the_loop_tracks():
    """By the names that the loop gives, as soon as it is tracked."""
    noting = Noting()
    w, counts = np.zeros(1), {"n": 1}
    with MonitoredSession(hooks=[noting], config=QUIET) as session:
        assert dict(noting.graph.tracked) == {}
        session.track(w=w)
        session.track(counts=counts)
        assert noting.graph.tracked["w"] is w
        assert [*noting.graph.tracked] == ["w", "counts"]
