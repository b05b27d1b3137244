"""An ordinary training script, killed at any moment, ends as if nothing had been.

Each run is a child process that has PyTorch already, so its time is that of training.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Config, MonitoredTrainingSession, latest_checkpoint
from tests.support.profiles import cases

EPOCHS, BATCHES = 4, 6
OBSERVERS = (
    "-p nan-tensor --logging-tensor loss,model:grad_norm,model.0:output,optimizer.lr "
    "--logging-tensor-every-n-iter 2 -p early-stopping --early-stopping-patience 1000 "
    "--summary-saver-save-steps 2 --step-counter-every-n-steps 3 --time-limit 1h "
    "--throughput-every-n-steps 3 --throughput-batch-size 32"
)


class Parts:
    """The objects that the script builds before it trains."""

    def __init__(self, workers: int) -> None:
        torch.manual_seed(3)
        x, y = torch.randn(32 * BATCHES, 1, 8, 8), torch.randint(0, 4, (32 * BATCHES,))
        self.loader = DataLoader(
            TensorDataset(x, y), batch_size=32, shuffle=True, num_workers=workers
        )
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(144, 4),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.7)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def digest(self) -> str:
        """Return a hash of all bits of the model, the optimizer and the generator."""
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for value in self.model.state_dict().values():
            digest.update(value.numpy().tobytes())
        for state in self.optimizer.state_dict()["state"].values():
            for value in state.values():
                digest.update(value.numpy().tobytes())
        return digest.hexdigest()


def plainly(workers: int) -> str:
    """Train without hookbus."""
    parts = Parts(workers)
    for _ in range(EPOCHS):
        for x, y in parts.loader:
            parts.step(x, y)
        parts.scheduler.step()
    return parts.digest()


def hooked(workers: int, directory: Path, flags: str = "-p no:progress") -> str:
    """Train the same with hookbus, which resumes."""
    parts = Parts(workers)
    config = Config.from_environment({"HOOKBUS_ADDOPTS": flags})
    with MonitoredTrainingSession(
        checkpoint_dir=directory, save_checkpoint_steps=2, config=config
    ) as session:
        session.track(
            model=parts.model, optimizer=parts.optimizer, scheduler=parts.scheduler
        )
        for _ in range(EPOCHS):
            for x, y in session.iterate(parts.loader):
                with session.step() as step:
                    step.report(loss=parts.step(x, y))
            parts.scheduler.step()
    return parts.digest()


class Child:
    """A forked process that trains; its digest comes through a file."""

    def __init__(self, train: Callable[[], str], answer: Path) -> None:
        self.answer = answer
        answer.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            torch.set_num_threads(1)
            answer.write_text(train())
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            os._exit(code)

    def kill(self, after: float) -> None:
        """Kill it after some seconds."""
        time.sleep(after)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def result(self) -> str:
        """Wait for its digest."""
        _, status = os.waitpid(self.pid, 0)
        assert status == 0
        return self.answer.read_text()


@pytest.mark.parametrize(
    ("workers", "flags"),
    [
        pytest.param(0, "-p no:progress", id="0"),
        pytest.param(2, "-p no:progress", id="2"),
        pytest.param(0, "-p no:progress --checkpoint-saver-background", id="background"),
    ],
)
def test_killed_at_random_moments_it_ends_like_the_plain_script(workers, flags, tmp_path):
    """Bit for bit: weights, statistics, the optimizer's state and the generator."""
    answer = tmp_path / "digest"
    plain = Child(lambda: plainly(workers), answer).result()
    began = time.perf_counter()
    whole = Child(lambda: hooked(workers, tmp_path / "whole", flags), answer).result()
    took = time.perf_counter() - began
    assert whole == plain
    draw, killed = random.Random(workers), 0
    while killed < cases(3 if workers == 0 else 1, 15):
        directory = Path(tempfile.mkdtemp(dir=tmp_path))
        first = Child(lambda at=directory: hooked(workers, at, flags), answer)
        first.kill(draw.uniform(0, took))
        newest = latest_checkpoint(directory)
        if newest is not None and newest.ended is not None:
            continue  # the training was over; started again it trains anew
        killed += 1
        again = Child(lambda at=directory: hooked(workers, at, flags), answer)
        assert again.result() == plain


def test_with_all_observers_on_it_is_the_same_training(tmp_path):
    """Observers read values, gradients and outputs, and change nothing."""
    answer = tmp_path / "digest"
    plain = Child(lambda: plainly(0), answer).result()
    watched = Child(lambda: hooked(0, tmp_path / "watched", OBSERVERS), answer).result()
    assert watched == plain


@pytest.mark.parametrize("at", cases([7, 12], [*range(1, EPOCHS * BATCHES)]))
def test_a_signal_in_the_middle_of_an_epoch_changes_nothing(at, tmp_path):
    """The scheduler, which steps after each epoch, does not step for a part of one."""
    answer = tmp_path / "digest"
    plain = Child(lambda: plainly(0), answer).result()

    def stopped() -> str:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        parts = Parts(0)
        with MonitoredTrainingSession(
            checkpoint_dir=tmp_path / "stopped",
            save_checkpoint_steps=5,
            config=Config(header=False),
            exit_on_signal=False,
        ) as session:
            session.track(
                model=parts.model, optimizer=parts.optimizer, scheduler=parts.scheduler
            )
            for _ in range(EPOCHS):
                for x, y in session.iterate(parts.loader):
                    with session.step() as step:
                        step.report(loss=parts.step(x, y))
                        if session.global_step + 1 == at:
                            os.kill(os.getpid(), signal.SIGTERM)
                parts.scheduler.step()
                if session.should_stop():
                    break
        return ""

    Child(stopped, answer).result()
    assert Child(lambda: hooked(0, tmp_path / "stopped"), answer).result() == plain
