"""Tests that what a resumed program repeats up to the checkpoint has no effect."""

from __future__ import annotations

import contextlib
import random
import signal

import numpy as np
import pytest

from hookbus import SessionRunHook, hookimpl
from tests.support.dice import install_dice
from tests.support.handlers import handlers
from tests.support.profiles import cases

EPOCHS, LENGTH = 3, 3


class Cut(Exception):
    """An error that cuts a session short, so that it saves nothing at its end."""


class Schedule:
    """Counts epochs like a scheduler, and changes a rate that it was restored with."""

    def __init__(self):
        self.epochs, self.rate = 0, np.ones(2)

    def step(self):
        self.epochs += 1
        self.rate *= 0.5 + random.random()

    def state_dict(self):
        return {"epochs": self.epochs, "rate": self.rate}

    def load_state_dict(self, state):
        self.epochs, self.rate = state["epochs"], state["rate"]


class SavesBetween(SessionRunHook):
    """Asks for a checkpoint after each evaluation and at the end of each epoch."""

    def begin(self, checkpoints):
        self.checkpoints = checkpoints

    @hookimpl
    def evaluated(self):
        self.checkpoints.request_save("evaluated")

    @hookimpl
    def epoch_ended(self):
        self.checkpoints.request_save("epoch ended")


class Places:
    """Counts the places of a program that it passes, and interrupts it at one of them."""

    def __init__(self, at=None, interrupt=None):
        self.passed, self.at, self.interrupt = 0, at, interrupt

    def __call__(self):
        self.passed += 1
        if self.passed == self.at:
            self.interrupt()

    def moments(self, first, distance):
        """Return some of the places, also the two after all steps; in the full run all."""
        some = [*range(first, self.passed - 1, distance), self.passed - 1, self.passed]
        return cases(some, range(1, self.passed + 1))


def shuffled(draw, here):
    """Return a function that returns the values of a pass, in an order that it draws."""

    def values():
        for value in draw.permutation(LENGTH).tolist():
            here()
            yield value

    return values


class Stateful:
    """A loader that keeps its own position, and that of its next pass at the end of one."""

    def __init__(self):
        self.draw, self.order, self.given = random.Random(5), None, 0

    def __len__(self):
        return LENGTH

    def __iter__(self):
        if self.order is None:
            self.order, self.given = self.draw.sample(range(LENGTH), LENGTH), 0
        while self.given < LENGTH:
            self.given += 1
            yield self.order[self.given - 1]
        self.order = None

    def state_dict(self):
        return {"order": self.order, "given": self.given, "draw": self.draw.getstate()}

    def load_state_dict(self, state):
        self.order, self.given = state["order"], state["given"]
        self.draw.setstate(state["draw"])


def train(saved, here, hooks=(), every=1, watches=False, inputs=shuffled):
    """Train, with changes before, in and after each pass; return all states at the end."""
    random.seed(1)
    np.random.seed(1)
    w, draw, schedule = np.zeros(2), np.random.default_rng(1), Schedule()
    steps, values = [], inputs(draw, here)

    with saved(*hooks, every=every) as session:
        session.track(w=w, draw=draw, schedule=schedule)
        for epoch in range(EPOCHS):
            here()
            w += random.random()
            for value in session.iterate(values()):
                here()
                w *= 1 + draw.random() / 8
                if watches and session.should_stop():
                    break
                with session.step():
                    here()
                    number = value if isinstance(value, int) else sum(value)
                    w += schedule.rate * number * np.random.random()
                    steps.append((epoch, value))
                here()
            schedule.step()
            here()
            w += draw.normal(size=2)
            if watches and session.should_stop():
                break
            w *= 1.5
            here()
            with session.evaluation() as evaluation:
                evaluation.report(loss=random.random())
                here()
            w -= 0.25
        here()
    return session, steps, (w.tobytes(), schedule.epochs, schedule.rate.tobytes())


def cut():
    raise Cut


def terminate():
    signal.raise_signal(signal.SIGTERM)


with_hook = pytest.mark.parametrize("hooks", [(), (SavesBetween(),)], ids=["", "between"])


@pytest.mark.sampled(2)
@with_hook
@pytest.mark.parametrize("every", [1, 2])
def test_a_program_that_was_killed_anywhere_ends_as_if_it_was_not(
    saved, hooks, every, tmp_path_factory, monkeypatch
):
    """Objects, generators and input are as of the checkpoint when the program is there."""
    here = Places()
    _, steps, straight = train(saved, here, hooks, every)
    assert len(steps) == EPOCHS * LENGTH

    for at in here.moments(1, 17):
        monkeypatch.chdir(tmp_path_factory.mktemp("cut"))
        with contextlib.suppress(Cut):
            train(saved, Places(at, cut), hooks, every)
        assert train(saved, Places(), hooks, every)[2] == straight, at


@pytest.mark.sampled(2)
@with_hook
@pytest.mark.parametrize("watches", [False, True])
def test_a_program_that_got_a_signal_anywhere_ends_as_if_it_did_not(
    saved, hooks, watches, tmp_path_factory, monkeypatch
):
    """The checkpoint holds the state as of the stop, not what the program did after it."""
    here = Places()
    _, steps, straight = train(saved, here, hooks, 100, watches)

    for at in here.moments(1, 17):
        monkeypatch.chdir(tmp_path_factory.mktemp("signalled"))
        with handlers(signal.default_int_handler):
            stopped, first, _ = train(saved, Places(at, terminate), hooks, 100, watches)
        assert stopped.outcome.kind == "preempted"
        session, second, ended = train(saved, Places(), hooks, 100, watches)
        assert session.global_step == EPOCHS * LENGTH
        assert (first + second, ended) == (steps, straight), at


def stateful(draw, here):
    loader = Stateful()
    return lambda: loader


@pytest.fixture(params=["stateful", "common", "own"])
def inputs(request, tmp_path_factory, monkeypatch):
    """Return a function that makes a loader: with a state, or of a library."""
    if request.param == "stateful":
        return stateful
    library = install_dice(tmp_path_factory.mktemp("dice"), monkeypatch)

    def of_library(draw, here):
        library.common.seed(2)
        own = library.Generator(3) if request.param == "own" else None
        loader = library.Loader(range(LENGTH), own)
        return lambda: loader

    return of_library


@pytest.mark.sampled(2)
@with_hook
@pytest.mark.parametrize("way", ["cut", "signal"])
def test_a_loader_continues_where_it_was(
    saved, way, hooks, inputs, tmp_path_factory, monkeypatch
):
    """A loader that keeps its position, or draws in the open, gives the same values."""
    here = Places()
    straight = train(saved, here, hooks, 1, True, inputs)[2]

    for at in here.moments(2, 25):
        monkeypatch.chdir(tmp_path_factory.mktemp("cut"))
        interrupt = cut if way == "cut" else terminate
        with handlers(signal.default_int_handler), contextlib.suppress(Cut):
            train(saved, Places(at, interrupt), hooks, 1, True, inputs)
        assert train(saved, Places(), hooks, 1, True, inputs)[2] == straight, at


def test_a_loader_of_a_library_draws_as_in_a_plain_loop(own, tmp_path_factory, monkeypatch):
    """Program and loader draw the same numbers in the same order as without hookbus."""
    library = install_dice(tmp_path_factory.mktemp("dice"), monkeypatch)

    def drawn(iterate):
        library.common.seed(4)
        loader = library.Loader(range(LENGTH))
        numbers = []
        for _ in range(EPOCHS):
            numbers += [(value, library.common.random()) for value in iterate(loader)]
        return numbers

    with own() as session:
        assert drawn(session.iterate) == drawn(iter)
