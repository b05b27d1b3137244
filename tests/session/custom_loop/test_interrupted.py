"""A custom loop that is interrupted at any step, in any way, ends as one that is not."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import latest_checkpoint
from tests.support.handlers import handlers
from tests.support.profiles import cases

STEPS = 20
points = np.random.default_rng(0).normal(size=(STEPS, 8, 3))
batches = [(x, (x.sum(axis=1) > 0).astype(int)) for x in points]


def train(saved, directory, hooks=(), interrupt=None):
    """Train from the newest checkpoint on; return the bits of everything at the end."""
    from sklearn.linear_model import SGDClassifier  # takes a second to import

    w, layers = np.zeros(3), {"a": np.zeros((2, 2)), "b": [np.ones(2), 0]}
    draw, model = np.random.default_rng(7), SGDClassifier(random_state=0)

    def learned():
        names = ("classes_", "coef_", "intercept_", "t_")
        return {name: getattr(model, name) for name in names if hasattr(model, name)}

    pair = (learned, vars(model).update)
    with saved(*hooks, every=3, directory=directory) as session:
        session.track(w=w, layers=layers, draw=draw, model=pair)
        for x, y in session.iterate(batches):
            with session.step():
                w += draw.normal(size=3)
                if interrupt is not None:
                    interrupt(session.global_step + 1)
                layers["a"] += np.outer(w[:2], x[0, :2])
                layers["b"][0] *= 1 + 0.1 * np.random.random()
                layers["b"][1] += 1
                model.partial_fit(x + draw.normal(size=x.shape), y, classes=[0, 1])
    arrays = [w, layers["a"], layers["b"][0], model.coef_, model.intercept_]
    bits = [array.tobytes() for array in arrays]
    return session.global_step, bits, layers["b"][1], model.t_, draw.random()


def by_kill(saved, directory, at):
    """Kill the process in the middle of a step."""

    def kill(step):
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            train(saved, directory, interrupt=kill)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def by_sigterm(saved, directory, at):
    """Send SIGTERM in the middle of a step."""

    def terminate(step):
        if step == at:
            signal.raise_signal(signal.SIGTERM)

    with handlers(signal.default_int_handler), contextlib.suppress(SystemExit):
        train(saved, directory, interrupt=terminate)
    assert latest_checkpoint(directory).global_step == at


def by_hook(saved, directory, at):
    """Stop after a step, as --stop-at-step does."""
    assert train(saved, directory, [StopAtStepHook(last_step=at)])[0] == at


def by_error(saved, directory, at):
    """Raise an error in the middle of a step."""

    def fail(step):
        if step == at:
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        train(saved, directory, interrupt=fail)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("interrupt", [by_kill, by_sigterm, by_hook, by_error])
def test_an_interrupted_loop_ends_as_an_uninterrupted_one(saved, interrupt):
    """An array, a dict of arrays, a generator and a model have the same bits at the end."""
    np.random.seed(3)
    straight = train(saved, "straight")
    assert straight[0] == STEPS

    for at in cases((1, 6, 8, STEPS), range(1, STEPS + 1)):
        directory = f"interrupted-{at}"
        np.random.seed(3)
        interrupt(saved, directory, at)
        np.random.seed(4)  # the seed comes from the checkpoint
        assert latest_checkpoint(directory) is not None
        assert train(saved, directory) == straight
