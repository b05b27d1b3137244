"""Tests hooks that collect in evaluations against kills of real processes."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import (
    Config,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from tests.support.profiles import cases
from tests.support.zoo import KINDS, Cutter, Run, in_process

EPOCHS, STEPS = 3, 2


class Errors(SessionRunHook):
    """Keeps the errors of all batches of each evaluation; a checkpoint has them."""

    options = HookOptions(kinds=("train", "eval"), only_observes=True)

    def __init__(self):
        self.open, self.done = [], []

    @hookimpl(wrapper=True)
    def evaluating(self, session, name):
        self.open = []
        yield
        if self.open:
            self.done.append([session.global_step, name, self.open])

    def before_run(self, run_context):
        return SessionRunArgs("errors") if run_context.kind == "eval" else None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval":
            self.open.append(run_values.results.tolist())

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = [*state["done"]]


def training(run: Run):
    """Train, and evaluate after each epoch, and in the middle of each."""
    errors, w = Errors(), np.zeros(2)
    hooks = [errors, *([Cutter(*run.cut)] if run.cut else [])]

    def evaluate(session, name):
        with session.evaluation(name) as evaluation:
            for _ in range(2):
                with evaluation.step() as step:
                    step.report(errors=w - np.random.random(2), loss=float(w @ w))

    with MonitoredTrainingSession(
        checkpoint_dir="runs",
        hooks=hooks,
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    ) as session:
        session.track(w=w)
        for _ in session.epochs(EPOCHS):
            for i in session.iterate(range(STEPS)):
                if i == 1:
                    evaluate(session, "inside")
                with session.step():
                    w += np.random.random(2)
            evaluate(session, "val")
    return [list(map(str, errors.done)), w]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the result of a run without a cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        done = in_process(training, Run())
    assert done.code == 0, done.log
    assert len(done.result[0]) == 2 * EPOCHS
    return done.result


@pytest.mark.parametrize("kind", cases(["sigterm", "sigkill"], KINDS))
@pytest.mark.parametrize("at", cases([5], range(1, EPOCHS * STEPS)))
def test_a_collecting_hook_ends_the_same(whole, kind, at, tmp_path, monkeypatch):
    """Cut short after any step, in any way, and resumed."""
    monkeypatch.chdir(tmp_path)
    cut = in_process(training, Run(cut=(kind, at)))
    assert cut.result != whole
    again = in_process(training, Run())
    assert (again.code, again.result) == (0, whole), again.log
