"""gradient-accumulation around a PyTorch loop: the same updates as without a hook."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hookbus_gradient_accumulation import GradientAccumulationHook

from hookbus import Config, MonitoredTrainingSession
from tests.support.profiles import cases

GROUP, STEPS = 4, 32


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(8, 3, generator=generator) for _ in range(STEPS)]


def bits_of(model: torch.nn.Module) -> list[bytes]:
    return [part.detach().numpy().tobytes() for part in model.parameters()]


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def by_hand() -> list[bytes]:
    """Train without a session: the loop counts to four itself."""
    model, optimizer = made()
    for number, batch in enumerate(batches(), start=1):
        (model(batch).square().mean() / GROUP).backward()
        if number % GROUP == 0:
            optimizer.step()
            optimizer.zero_grad()
    return bits_of(model)


def train(directory: Path, killed_at: int = 0) -> list[bytes]:
    """Train with the plugin."""
    model, optimizer = made()
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=[GradientAccumulationHook(GROUP)],
        save_checkpoint_steps=3,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    ) as session:
        session.track(model=model, optimizer=optimizer)
        for batch in session.iterate(batches()):
            with session.step() as step:
                (model(batch).square().mean() / GROUP).backward()
                if session.global_step + 1 == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not step.skipped:
                    optimizer.step()
                    optimizer.zero_grad()
    return bits_of(model)


def test_it_trains_like_the_loop_by_hand(tmp_path: Path) -> None:
    """Bit for bit."""
    assert train(tmp_path) == by_hand()


@pytest.mark.parametrize("at", cases([10, 30], range(1, STEPS + 1)))
def test_killed_and_resumed_it_ends_with_the_same_bits(at: int, tmp_path: Path) -> None:
    """It begins again with a whole group, whose gradients are computed again."""
    child = os.fork()
    if child == 0:
        try:
            train(tmp_path, killed_at=at)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert train(tmp_path) == by_hand()
