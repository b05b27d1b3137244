"""Tests that an evaluation inside contexts of PyTorch and accelerate leaves their modes."""

from __future__ import annotations

import contextlib

import pytest
import torch
from accelerate import Accelerator
from torch import nn

import hookbus
from hookbus import MonitoredTrainingSession
from hookbus.evaluating import swapped

OFF = hookbus.Config(autoload=False)


def half():
    """Return a context of mixed precision."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


CONTEXTS = {
    "autocast": half,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast and no_grad": lambda: _both(half(), torch.no_grad()),
    "accelerate": lambda: Accelerator(cpu=True, mixed_precision="bf16").autocast(),
}


@contextlib.contextmanager
def _both(one, other):
    with one, other:
        yield


def modes(model):
    """Return all that an evaluation may have switched."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        [part.training for part in model.modules()],
        [parameter.requires_grad for parameter in model.parameters()],
    )


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_evaluation_leaves_every_mode_of_the_context_around_it(context):
    """It may end or fail. Inside, the context applies, without gradients and dropout."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()
    model[0].bias.requires_grad_(False)
    with MonitoredTrainingSession(config=OFF) as session:
        session.track(model=model)
        with CONTEXTS[context]():
            before = modes(model)
            with session.evaluation() as evaluation:
                inside = modes(model)
                evaluation.report(sum=model(torch.ones(4, 2)).sum())
            assert modes(model) == before
            with contextlib.suppress(ArithmeticError), session.evaluation():
                raise ArithmeticError
            assert modes(model) == before
    assert inside[2:5] == before[2:5]
    assert (inside[0], inside[5]) == (False, [False] * 4)
    assert modes(model)[:3] == (True, False, False)


@pytest.mark.parametrize("context", ["autocast", "accelerate"])
def test_an_evaluation_in_mixed_precision_sees_the_weights_of_now(context):
    """The copies in half precision are those of the weights that a hook has swapped."""
    model = nn.Linear(2, 1)
    with MonitoredTrainingSession(config=OFF) as session:
        session.track(model=model)
        with CONTEXTS[context]():
            with session.step():
                trained = model(torch.ones(1, 2))
            values = {
                "model.weight": torch.full((1, 2), 64.0),
                "model.bias": torch.zeros(1),
            }
            with swapped(session, values), session.evaluation() as evaluation:
                seen = model(torch.ones(1, 2))
                evaluation.report(seen=seen.sum())
            with session.step():
                again = model(torch.ones(1, 2))
                again.sum().backward()
    assert seen.item() == 128
    assert torch.equal(trained, again)
    assert model.weight.grad is not None
