"""A step of a PyTorch loop is undone: out of memory, and sharpness-aware minimization."""

from __future__ import annotations

import os
import random
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Config, HookOptions, MonitoredTrainingSession, SessionRunHook
from tests.support.halving import HalveHook
from tests.support.profiles import cases
from tests.support.saving import saving

QUIET = Config(autoload=False, header=False)
STEPS = 10
torch.set_num_threads(1)  # a forked child has one, which gives other bits


class Parts:
    """A model with state of all kinds, an optimizer, a schedule, and a shuffled loader."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        x = torch.randn(8 * STEPS // 2, 4)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.model = nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)

    def loss(self, batch):
        x, y = batch
        return (self.model(x) - y).square().mean()

    def update(self, batch, limit=64) -> None:
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        if len(batch[0]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.optimizer.step()

    @property
    def bits(self) -> bytes:
        tensors = [*self.model.state_dict().values(), torch.get_rng_state()]
        for state in self.optimizer.state.values():
            tensors += state.values()
        rates = torch.tensor(self.schedule.get_last_lr())
        return b"".join(t.numpy().tobytes() for t in [*tensors, rates])


def limits(seed: int) -> list[int]:
    draw = random.Random(seed)
    return sorted((draw.choice([8, 4, 2]) for _ in range(STEPS)), reverse=True)


def by_hand(seed: int) -> bytes:
    parts, step = Parts(), 0
    for _ in range(2):
        for batch in parts.loader:
            parts.update([each[: limits(seed)[step]] for each in batch])
            parts.schedule.step()
            step += 1
    return parts.bits


def hooked(seed: int, directory, kill_at=None) -> bytes:
    parts = Parts()
    hook = HalveHook(torch.OutOfMemoryError)
    with saving(directory, every=2, hooks=[hook]) as session:
        session.track(model=parts.model, optimizer=parts.optimizer, schedule=parts.schedule)
        for _ in session.epochs(2):
            for batch in session.iterate(parts.loader, name="batch"):
                with session.step():
                    parts.update(batch, limits(seed)[session.global_step])
                parts.schedule.step()
                if session.global_step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    return parts.bits


@pytest.mark.parametrize("seed", range(cases(3, 20)))
def test_a_batch_is_halved_where_the_device_has_no_memory(seed, tmp_path):
    """Weights, moments, statistics and generators are those of a loop by hand.

    The forward pass has drawn numbers and changed statistics before the error.
    """
    assert hooked(seed, tmp_path) == by_hand(seed)


@pytest.mark.parametrize("at", cases([5], range(1, STEPS)))
def test_killed_and_resumed_it_is_the_same_training(at, tmp_path):
    """The hook keeps in its state by how much it halves."""
    child = os.fork()
    if child == 0:
        try:
            hooked(1, tmp_path, at)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert hooked(1, tmp_path) == by_hand(1)


class SharpHook(SessionRunHook):
    """Sharpness-aware minimization, as two passes over each batch.

    The first pass has the optimizer climb. The second one begins with the weights from
    before it: it adds the climb before the forward pass, and takes it back for the update.
    """

    options = HookOptions(rolls_back="step")

    def begin(self, graph) -> None:
        self.climb = None
        graph.wrap("model:grads", self.changed, reads={"weights": "model:parameters"})

    def changed(self, gradients, weights):
        if self.climb is None:
            norm = torch.stack([g.norm() for g in gradients.values()]).norm()
            self.climb = {name: 0.05 * g / norm for name, g in gradients.items()}
            self.repeats = True
        else:
            for name, climb in self.climb.items():
                weights[name].sub_(climb)
            self.climb, self.repeats = None, False
        return gradients

    def before_run(self, run_context) -> None:
        if self.climb is not None:
            for name, weight in run_context.session.run("model:parameters").items():
                weight.add_(self.climb[name])

    def after_run(self, run_context, run_values) -> None:
        if self.repeats:
            run_context.request_rollback("the second pass", to="step")


def test_sharpness_aware_minimization_takes_a_second_pass(tmp_path):
    """Dropout draws the same numbers in both passes."""
    parts = Parts()
    with MonitoredTrainingSession(hooks=[SharpHook()], config=QUIET) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        for batch in session.iterate(parts.loader):
            with session.step():
                parts.update(batch)
    other = Parts()
    weights = dict(other.model.named_parameters())
    for batch in other.loader:
        state = torch.get_rng_state()
        statistics = {n: b.clone() for n, b in other.model.named_buffers()}
        other.optimizer.zero_grad()
        other.loss(batch).backward()
        with torch.no_grad():
            norm = torch.stack([w.grad.norm() for w in weights.values()]).norm()
            climb = {name: 0.05 * w.grad / norm for name, w in weights.items()}
            for name, weight in weights.items():
                weight.add_(climb[name])
            for name, buffer in other.model.named_buffers():
                buffer.copy_(statistics[name])
        torch.set_rng_state(state)
        other.optimizer.zero_grad()
        other.loss(batch).backward()
        with torch.no_grad():
            for name, weight in weights.items():
                weight.sub_(climb[name])
        other.optimizer.step()
    assert parts.bits == other.bits
