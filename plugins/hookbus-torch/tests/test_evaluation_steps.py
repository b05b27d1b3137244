"""Tests steps of an evaluation of a module: hooks get arrays; the training is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hookbus_prediction_writer import PredictionWriterHook

from hookbus import (
    Config,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
)

OFF = Config(autoload=False, header=False)
X = torch.linspace(-1, 1, 24).reshape(8, 3)


class Sees(SessionRunHook):
    """Keeps what it fetches in steps of evaluations."""

    options = HookOptions(kinds=("eval",))

    def __init__(self, *names):
        self.names, self.seen = names, []

    def before_run(self, run_context):
        if run_context.kind == "eval":
            return SessionRunArgs(list(self.names))
        return None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval":
            self.seen.append(run_values.results)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4),
        torch.nn.BatchNorm1d(4),
        torch.nn.Dropout(),
        torch.nn.Linear(4, 2),
    )


def train(directory, *hooks, evaluates=True, dies_at=None):
    """Train a model, and evaluate it after each epoch; return its state."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, save_checkpoint_steps=1, config=OFF
    ) as session:
        session.track(model=model, optimizer=optimizer)
        for _ in session.epochs(3):
            for rows in session.iterate((X[:4], X[4:])):
                with session.step() as step:
                    optimizer.zero_grad()
                    loss = model(rows).square().mean()
                    loss.backward()
                    optimizer.step()
                    step.report(loss=loss)
                if session.global_step == dies_at:
                    raise ArithmeticError
            if not evaluates:
                continue
            with session.evaluation("val") as evaluation:
                for rows in (X[:6], X[6:]):
                    with evaluation.step(weight=len(rows)) as step:
                        assert not model.training
                        found = model(rows)
                        assert not found.requires_grad
                        step.report(
                            predictions=found.argmax(1),
                            scores=lambda found=found: found.bfloat16(),
                            loss=found.square().mean(),
                        )
            assert set(evaluation.metrics) == {"loss"}
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_hooks_get_arrays_of_what_a_module_predicts(tmp_path):
    """And values inside the module by their names, as in any step."""
    hook = Sees("predictions", "loss", "model.0.weight")
    state = train(tmp_path, hook)
    assert [each[0].shape for each in hook.seen] == [(6,), (2,)] * 3
    assert isinstance(hook.seen[0][0], np.ndarray)
    np.testing.assert_array_equal(hook.seen[-1][2], state["0.weight"].numpy())


def test_it_changes_nothing_of_the_training(tmp_path):
    """Batch statistics, dropout and gradients are those of a run without it."""
    with_it = train(tmp_path / "with", Sees("predictions", "scores"))
    without = train(tmp_path / "without", evaluates=False)
    assert all(torch.equal(with_it[name], without[name]) for name in without)


def test_predictions_are_written_and_a_resumed_training_writes_the_same(tmp_path):
    """A kill between two steps changes no file."""

    def writer():
        return PredictionWriterHook(["predictions", "scores"])

    whole = train(tmp_path / "whole", writer())
    with pytest.raises(ArithmeticError):
        train(tmp_path / "cut", writer(), dies_at=3)
    cut = train(tmp_path / "cut", writer())
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    names = ["val-2.npz", "val-4.npz", "val-6.npz"]
    for name in names:
        both = [Path(tmp_path, each, "predictions", name) for each in ("whole", "cut")]
        assert both[0].read_bytes() == both[1].read_bytes()
    with np.load(both[0]) as found:
        assert (found["predictions"].shape, found["scores"].shape) == ((8,), (8, 2))


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_a_session_that_evaluates_or_predicts_restores_the_module_alone(tmp_path, kind):
    """It needs no optimizer, and writes one file."""
    state = train(tmp_path)
    model = make_model()
    hooks = [PredictionWriterHook(["predictions"])]
    with SingularMonitoredSession(
        hooks=hooks, checkpoint_dir=tmp_path, kind=kind, config=OFF
    ) as session:
        session.track(model=model.eval())
        for rows in session.iterate(X.split(3)):
            with session.step() as step:
                step.report(predictions=model(rows).detach())
    assert all(
        torch.equal(state[name], value) for name, value in model.state_dict().items()
    )
    with np.load(tmp_path / "predictions" / f"{kind}-6.npz") as found:
        assert found["predictions"].shape == (8, 2)
