"""spike-rollback around a PyTorch loop: like a loop that leaves the bad batches out."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_spike_rollback import SpikeRollbackHook

from hookbus import Config, MonitoredTrainingSession
from tests.support.profiles import cases

STEPS, EVERY, BAD = 30, 3, (8, 19)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    found = [torch.randn(8, 3, generator=generator) for _ in range(STEPS)]
    for number in BAD:
        found[number][0, 0] = torch.nan
    return found


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def update(model: Any, optimizer: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def bits_of(model: torch.nn.Module) -> list[bytes]:
    return [part.detach().numpy().tobytes() for part in model.parameters()]


def by_hand() -> list[bytes]:
    """Train without a session; go back to copies of what was saved last."""
    model, optimizer = made()
    step, things = 0, (model, optimizer)
    saved = [copy.deepcopy(thing.state_dict()) for thing in things]
    for batch in batches():
        if update(model, optimizer, batch).isnan():
            for thing, state in zip(things, saved, strict=True):
                thing.load_state_dict(copy.deepcopy(state))
            step -= step % EVERY
            continue
        step += 1
        if step % EVERY == 0:
            saved = [copy.deepcopy(thing.state_dict()) for thing in things]
    return bits_of(model)


def train(folder: Path, killed_at: int | None = None) -> list[bytes]:
    model, optimizer = made()
    with MonitoredTrainingSession(
        checkpoint_dir=folder,
        hooks=[SpikeRollbackHook(), CheckpointSaverHook(folder, save_steps=EVERY)],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    ) as session:
        session.track(model=model, optimizer=optimizer)
        for number, batch in enumerate(session.iterate(batches())):
            if number == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with session.step() as step:
                step.report(loss=update(model, optimizer, batch))
    return bits_of(model)


def test_it_trains_like_the_loop_by_hand(tmp_path: Path) -> None:
    """Bit for bit: the optimizer goes back, too."""
    assert train(tmp_path) == by_hand()


@pytest.mark.parametrize("at", cases([10, 20], range(STEPS)))
def test_killed_and_resumed_it_ends_with_the_same_bits(at: int, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            train(tmp_path, killed_at=at)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert train(tmp_path) == by_hand()
