"""Tests what a block beside the training leaves as it was, and what it may use."""

from __future__ import annotations

import contextlib
import random
import sys

import numpy as np
import pytest

import hookbus
from hookbus import Graph, MonitoredSession, SessionRunHook
from hookbus.evaluating import undisturbed
from hookbus.random_state import same


class Aside(SessionRunHook):
    """Does something beside the training, undisturbed, after some of the runs."""

    def __init__(self, do, steps=(2,)):
        self.do, self.steps = do, steps

    def after_run(self, run_context, run_values):
        if run_values.global_step in self.steps:
            with undisturbed(run_context.session):
                self.do(run_context.session)


def pulls(factory, *hooks, runs=6):
    """Return the values that runs of a graph with an input get."""
    graph = Graph()
    graph.input("x", factory)
    graph.train_op(lambda x: {"seen": x}, name="train", outputs=["seen"])
    config = hookbus.Config(autoload=False)
    with MonitoredSession(graph, hooks=hooks, config=config) as session:
        return [session.run(["train", "seen"])[1] for _ in range(runs)]


def test_generators_go_on_where_they_were():
    """Numbers drawn in the block come again behind it, Python's and NumPy's."""
    random.seed(3)
    np.random.seed(3)
    with undisturbed():
        inside = random.random(), np.random.random()
        random.seed(99)
        np.random.seed(99)
    assert (random.random(), np.random.random()) == inside


def test_generators_go_on_where_they_were_after_an_error():
    """A block that fails leaves no trace either."""
    random.seed(3)
    before = random.getstate()
    with pytest.raises(ZeroDivisionError), undisturbed():
        1 / round(random.random() * 0)
    assert random.getstate() == before


def test_numpy_is_not_loaded_for_it(monkeypatch):
    """A process without NumPy stays one."""
    monkeypatch.delitem(sys.modules, "numpy")
    with undisturbed():
        pass
    assert "numpy" not in sys.modules


@pytest.mark.parametrize("after", [(1,), (2, 3), (6,)])
def test_values_pulled_in_the_block_come_again(after):
    """The training sees each value once, in order, wherever the block comes."""
    seen = []
    aside = Aside(lambda session: seen.append(session.run(["x"])), after)
    assert pulls(lambda: iter(range(9)), aside) == [0, 1, 2, 3, 4, 5]
    assert seen == [[step] for step in after]


def test_a_shuffled_input_goes_on_in_its_order():
    """The order that an input drew when it was made is drawn again, and nothing else."""

    def shuffled():
        values = list(range(9))
        random.shuffle(values)
        return iter(values)

    random.seed(5)
    alone = pulls(shuffled)
    random.seed(5)
    assert pulls(shuffled, Aside(lambda session: session.run("x"), (1, 4))) == alone


def test_an_input_that_ends_in_the_block_goes_on():
    """Random numbers that the block uses up are there again."""

    def use_up(session):
        with contextlib.suppress(hookbus.OutOfRangeError):
            while True:
                session.run("x")

    assert pulls(lambda: iter(range(6)), Aside(use_up)) == [0, 1, 2, 3, 4, 5]


class Numbers:
    """An iterator that keeps its own position, in a dict that it goes on changing."""

    def __init__(self):
        self.state = {"next": 0}

    def __iter__(self):
        return self

    def __next__(self):
        self.state["next"] += 1
        return self.state["next"]

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = dict(state)


def test_an_iterator_that_keeps_its_position_is_sent_back_to_it():
    """Its own state is taken and given back, not a state that it still changes."""
    aside = Aside(lambda session: session.run("x"), (2, 4))
    assert pulls(Numbers, aside) == [1, 2, 3, 4, 5, 6]


def test_an_input_that_stands_still_is_not_made_anew():
    """A block that pulls nothing costs no second pass through the data."""
    made = []

    def factory():
        made.append(1)
        return iter(range(9))

    pulls(factory, Aside(lambda session: session.run("global_step"), (1, 2, 3)))
    assert made == [1]


@pytest.mark.parametrize(
    "other", [[1, 2], (1, 2), 1, True, "x", None, {"x": 1}, b"x", np.arange(3)], ids=repr
)
def test_an_array_is_not_the_same_as_another_value(other):
    """One that compares itself with each part of a value has no answer for the whole."""
    for array in (np.array([1, 2]), np.array(7)):
        assert not same(array, other)
        assert not same(other, array)
        assert not same({"key": [array]}, {"key": [other]})


def test_a_value_is_the_same_as_itself_and_as_its_equal():
    """NaN is, too, which is equal to nothing."""
    nan = float("nan")
    assert same(nan, nan)
    assert same({"a": (nan, [1, 2])}, {"a": (nan, [1, 2])})
    assert same(np.arange(3), np.arange(3))
    assert same(np.float64(0.5), 0.5)
    assert not same([1, 2], [1, 3])
