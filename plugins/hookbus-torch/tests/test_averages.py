"""The plugin weight-average in PyTorch loops: equal to a loop by hand, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hookbus_weight_average import WeightAverageHook
from torch import nn

from hookbus import Config, MonitoredTrainingSession, SessionRunHook, load_tracked
from hookbus.evaluating import swapped

QUIET = Config(autoload=False, header=False)
STEPS = 8


class Killed(Exception):
    """Ends a session without an end."""


def parts():
    """Return a model, its optimizer and a function that does a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)

    def step() -> None:
        x = torch.randn(6, 3)
        optimizer.zero_grad()
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()

    return model, optimizer, step


def by_hand(decay):
    """Return the weights and averages of a plain loop."""
    model, _, step = parts()
    averages: dict[str, torch.Tensor] = {}
    for done in range(STEPS):
        step()
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            if name not in averages:
                averages[name] = value.clone()
            elif decay is None:
                averages[name] = averages[name] + (value - averages[name]) / (done + 1)
            else:
                averages[name] = averages[name] * decay + value * (1 - decay)
    return model.state_dict(), averages


def train(hooks, directory, fails_at=None):
    """Train in a session; return the weights, and those that an evaluation sees."""
    model, optimizer, step = parts()
    seen = {}
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        session.track(model=model, optimizer=optimizer)
        while session.global_step < STEPS:
            if session.global_step == fails_at:
                raise Killed
            with session.step():
                step()
            with session.evaluation() as evaluation:
                seen = {name: value.clone() for name, value in model.state_dict().items()}
                evaluation.report(one=1.0)
    return model.state_dict(), seen


@pytest.mark.parametrize("decay", [0.9, None])
@pytest.mark.parametrize("fails_at", [None, 1, 5])
def test_averages_are_those_of_a_loop_by_hand(decay, fails_at, tmp_path):
    """Evaluations see them, and the weights are those of the plain loop; also resumed."""
    if fails_at is not None:
        with pytest.raises(Killed):
            train([WeightAverageHook(decay)], tmp_path, fails_at)
    weights, seen = train([WeightAverageHook(decay)], tmp_path)
    expected, averages = by_hand(decay)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert {
        name for name in averages if not torch.equal(seen[name], averages[name])
    } == set()


def test_swapped_tensors_get_their_values_back(tmp_path):
    """Parameters stay the same objects; a tensor inside a dict is written in place."""
    model, tensor = nn.Linear(2, 1), torch.ones(2)
    before, seen = model.weight.detach().clone(), []

    class Swaps(SessionRunHook):
        def after_run(self, run_context):
            values = {"model.weight": torch.zeros(1, 2), "d.t": [5.0, 5.0]}
            values = {name: torch.as_tensor(value) for name, value in values.items()}
            with swapped(run_context.session, values):
                seen.append((model.weight.tolist(), tensor.tolist()))

    with MonitoredTrainingSession(hooks=[Swaps()], config=QUIET) as session:
        session.track(model=model, d={"t": tensor})
        with session.step():
            pass
    assert seen == [([[0.0, 0.0]], [5.0, 5.0])]
    assert torch.equal(model.weight, before)
    assert tensor.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("decay", [0.999, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_of_16_bits_are_kept_in_float32(dtype, decay, tmp_path):
    """After 3,000 steps they are those of float64; evaluations see the model's dtype."""
    hook, steps = WeightAverageHook(decay), 3000
    model = nn.Linear(2, 1, bias=False, dtype=dtype)
    first, goal = torch.tensor([[1.0, -3.0]]), torch.tensor([[2.0, 5.0]])
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path,
        hooks=[hook],
        save_checkpoint_steps=steps,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        session.track(model=model)
        for _ in range(steps):
            with session.step(), torch.no_grad():
                model.weight.copy_(goal if session.global_step else first)
        with session.evaluation() as evaluation:
            evaluation.report(one=1.0)
            seen = model.weight.detach().clone()
    expected = first.double()
    for n in range(1, steps):
        if decay is None:
            expected = expected + (goal - expected) / (n + 1)
        else:
            expected = expected * decay + goal * (1 - decay)
    average = hook.averages["model.weight"]
    assert average.dtype == torch.float32
    torch.testing.assert_close(average.double(), expected, rtol=1e-4, atol=0)
    assert seen.dtype == dtype
    assert torch.equal(seen, average.to(dtype))
    assert torch.equal(model.weight, goal.to(dtype))
    loaded = load_tracked(tmp_path, "model", averages=True)["weight"]
    assert loaded.dtype == dtype
    assert torch.equal(loaded, seen)
    again = WeightAverageHook(decay)
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=[again], config=QUIET
    ) as session:
        session.track(model=model)
    assert torch.equal(again.averages["model.weight"], average)
