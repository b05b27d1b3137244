"""A value that hooks read has no effect on the training, even if it draws numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hookbus import SessionRunArgs, SessionRunHook, random_state
from hookbus.tracked import objects
from tests.support.dice import install_dice


class EverySecond(SessionRunHook):
    """Fetches in every second step, as a logger does that is due then."""

    def __init__(self, fetches):
        self.request = SessionRunArgs(fetches)
        self.results = []

    def before_run(self, run_context):
        return self.request if run_context.global_step % 2 == 0 else None

    def after_run(self, run_values):
        if run_values.results is not None:
            self.results.append(run_values.results)


class Derived(EverySecond):
    """Adds a value that draws numbers to what the loop reports."""

    def begin(self, graph):
        graph.op(lambda loss: loss + random.random() + np.random.rand(), name="noisy")


class Declared(EverySecond):
    """Fetches all summaries."""

    def after_create_session(self, session):
        self.request = SessionRunArgs(session.graph.summaries)


def drawn_by(session, report, draw):
    """Return the numbers that six steps draw themselves."""
    random.seed(1)
    np.random.seed(1)
    numbers = []
    for _ in range(6):
        with session.step() as step:
            numbers.append((random.random(), np.random.rand(), draw.random()))
            report(step, draw)
    return numbers


def draws(draw):
    """Draw from all generators that are restored."""
    return random.random() + np.random.rand() + draw.random()


def states(draw):
    """Return the states of all generators that are restored."""
    return {**random_state.capture(), "own": draw.bit_generator.state}


READERS = {
    "report": (lambda: EverySecond("score"), lambda s, d: s.report(score=lambda: draws(d))),
    "metrics": (
        lambda: EverySecond("hookbus.metrics"),
        lambda s, d: s.report(loss=lambda: draws(d)),
    ),
    "summary": (
        lambda: Declared(None),
        lambda s, d: s.summary.scalar("score", lambda: draws(d)),
    ),
    "derived": (lambda: Derived("noisy"), lambda s, d: s.report(loss=lambda: draws(d))),
}


@pytest.mark.parametrize("way", READERS)
def test_a_lazy_value_that_draws_changes_no_number_of_the_training(own, way):
    """The training draws the same numbers, whether or not a hook reads the value."""
    made, report = READERS[way]
    numbers, hook = [], made()
    for hooks in ((), (hook,)):
        draw = np.random.default_rng(1)
        with own(*hooks) as session:
            session.track(draw=draw)
            numbers.append(drawn_by(session, report, draw))

    assert len(hook.results) == 3
    assert numbers[0] == numbers[1]


def test_reading_between_steps_draws_nothing(own):
    """session.run() leaves the generators as they were, and so does a hook's reading."""

    class Reader(SessionRunHook):
        def after_run(self, run_context):
            run_context.session.run("first")

    draw = np.random.default_rng(1)
    with own(Reader()) as session:
        session.track(draw=draw)
        before = states(draw)
        with session.step() as step:
            step.report(first=lambda: draws(draw), second=lambda: draws(draw))
        session.run("second")
        assert random_state.same(states(draw), before)


def test_a_lazy_value_that_fails_draws_nothing(own, fetch):
    """The generators are restored although the function raises an error."""

    def fail():
        random.random()
        raise ZeroDivisionError

    with own(fetch("loss")) as session:
        before = random_state.capture()
        with pytest.raises(ZeroDivisionError), session.step() as step:
            step.report(loss=fail)
        assert random_state.same(random_state.capture(), before)


@pytest.mark.parametrize("fetched", [None, "loss"])
def test_no_generator_is_captured_while_no_lazy_value_is_read(
    own, fetch, monkeypatch, fetched
):
    """A step in which no function is called does not look at the generators."""
    captured = []
    sources = random_state.sources

    def counted():
        captured.append(1)
        return sources()

    monkeypatch.setattr(objects, "sources", counted)
    hook = fetch(fetched)
    with own(hook) as session:
        with session.step() as step:
            step.report(loss=1.0, accuracy=lambda: 0.5)
        assert captured == []
        if fetched:
            hook.request = SessionRunArgs("accuracy")
        with session.step() as step:
            step.report(loss=1.0, accuracy=lambda: 0.5)
        assert bool(captured) == bool(fetched)


def test_a_lazy_value_computes_as_in_an_evaluation(own, tmp_path, monkeypatch):
    """A value that is read, a derived one and an evaluation do not train a model."""
    library = install_dice(tmp_path, monkeypatch)
    model = library.Model()

    class Twice(EverySecond):
        def begin(self, graph):
            graph.op(lambda score: score + model(), name="twice")

    hook = Twice(["score", "twice"])
    with own(hook) as session:
        assert session.track(model=model) is model
        for _ in range(2):
            with session.step() as step:
                model()
                step.report(score=model)
        before = library.common.getstate()
        with session.evaluation() as evaluation:
            evaluation.report(score=model())
        with pytest.raises(ZeroDivisionError), session.evaluation():
            raise ZeroDivisionError(model())

    assert len(hook.results) == 1
    assert (model.calls, model.training) == (2, True)
    assert library.common.getstate() == before
