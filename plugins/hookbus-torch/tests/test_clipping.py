"""gradient-clipping in PyTorch: as clip_grad_norm_ and its kin by hand, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import Config, MonitoredTrainingSession
from tests.support.profiles import cases
from tests.support.ranks import run

SCRIPT = Path(__file__).with_name("clipped_training.py")

QUIET = Config(autoload=False, header=False)
STEPS = 20
LIMITS = {"norm": 0.05, "value": 0.01, "adaptive": 0.01}


class Parts:
    """A model with a convolution, its optimizer, and batches."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.x = torch.randn(STEPS, 8, 1, 6)
        self.model = nn.Sequential(
            nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(15, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    def step(self, x, clip=lambda model: None, accumulate=1, number=0):
        (self.model(x).square().mean() / accumulate).backward()
        if number % accumulate == accumulate - 1:
            clip(self.model)
            self.optimizer.step()
            self.optimizer.zero_grad()

    @property
    def weights(self):
        return [parameter.detach() for parameter in self.model.parameters()]


def clip_by_hand(limit: str, model: nn.Module) -> None:
    most = LIMITS[limit]
    if limit == "norm":
        nn.utils.clip_grad_norm_(model.parameters(), most)
    elif limit == "value":
        nn.utils.clip_grad_value_(model.parameters(), most)
    else:
        with torch.no_grad():
            for p in model.parameters():
                dims = tuple(range(1, p.ndim))
                norms = [
                    each.square().sum(dims, keepdim=True).sqrt()
                    if dims
                    else each.square().sum().sqrt()
                    for each in (p, p.grad)
                ]
                largest = most * norms[0].clamp(min=1e-3)
                norm = norms[1].clamp(min=1e-6)
                p.grad.copy_(torch.where(norm > largest, p.grad * (largest / norm), p.grad))


def by_hand(limit: str, accumulate: int = 1):
    parts = Parts()
    for number, x in enumerate(parts.x):
        parts.step(x, lambda model: clip_by_hand(limit, model), accumulate, number)
    return parts.weights


def options(directory, *hooks):
    return {
        "checkpoint_dir": directory,
        "hooks": hooks,
        "save_checkpoint_steps": 3,
        "save_summaries_steps": None,
        "log_step_count_steps": None,
        "config": QUIET,
    }


def in_loop(directory, *hooks, accumulate=1):
    parts = Parts()
    with MonitoredTrainingSession(**options(directory, *hooks)) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        for number, x in session.enumerate(parts.x):
            with session.step():
                parts.step(x, accumulate=accumulate, number=number)
    return parts.weights


def in_graph(directory, *hooks):
    parts = Parts()
    graph = TorchGraph(parts.model, parts.optimizer)
    graph.input("x", lambda: iter(parts.x))
    graph.train_op(lambda x: parts.step(x), name="train")
    with MonitoredTrainingSession(graph, **options(directory, *hooks)) as session:
        for _ in session.loop():
            pass
    return parts.weights


def equal(some, others) -> bool:
    return all(map(torch.equal, some, others))


def hook_of(limit: str) -> GradientClippingHook:
    return GradientClippingHook(**{limit: LIMITS[limit]})


@pytest.mark.parametrize("train", [in_loop, in_graph])
@pytest.mark.parametrize("limit", LIMITS)
def test_it_trains_like_a_loop_that_clips_by_hand(train, limit, tmp_path):
    """The gradients of the tracked model, without a name."""
    assert equal(train(tmp_path, hook_of(limit)), by_hand(limit))
    assert not equal(by_hand(limit), train(tmp_path / "without"))


@pytest.mark.parametrize("train", [in_loop, in_graph])
@pytest.mark.parametrize("at", cases([10], range(1, STEPS)))
def test_stopped_and_resumed_it_is_the_same_training(train, at, tmp_path):
    """It has no state of its own."""
    train(tmp_path, hook_of("norm"), StopAtStepHook(last_step=at))
    assert equal(train(tmp_path, hook_of("norm")), by_hand("norm"))


def test_accumulated_gradients_are_clipped_once_for_an_update(tmp_path):
    """As their sum."""
    found = in_loop(tmp_path, hook_of("norm"), accumulate=4)
    assert equal(found, by_hand("norm", accumulate=4))


@pytest.mark.long
def test_under_ddp_each_rank_clips_the_mean_gradient(tmp_path):
    """Two processes, as with clip_grad_norm_ behind backward()."""
    found = []
    for how in ("hooked", "by hand"):
        done = run(SCRIPT, 2, tmp_path / how, how)
        assert done.code == 0, done.output
        found.append(done.one("weights"))
    assert found[0] == found[1]
