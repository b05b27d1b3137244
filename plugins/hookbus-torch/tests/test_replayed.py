"""`hookbus replay` repeats PyTorch training runs, in one process and in several."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiles import FULL, cases
from tests.support.zoo import SCRIPT
from tests.support.zoo_torch import TRAININGS, WITH_WORKERS

pytest.importorskip("hookbus_replay")

KEPT = ("--checkpoint-saver-max-to-keep", "0")
BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from hookbus import MonitoredTrainingSession

torch.manual_seed(0)
x = torch.randn(5000, 4)
y = x.sum(1, keepdim=True)
x[3217, 2] = float("nan")
loader = DataLoader(TensorDataset(x, y), batch_size=10)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with MonitoredTrainingSession(
    checkpoint_dir="runs", save_checkpoint_steps=50, save_summaries_steps=None
) as session:
    session.track(model=model, optimizer=optimizer)
    for batch, target in session.iterate(loader):
        with session.step() as step:
            optimizer.zero_grad()
            loss = (model(batch) - target).square().mean()
            loss.backward()
            optimizer.step()
            step.report(loss=loss)
"""
RANKS = """
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from hookbus import MonitoredTrainingSession

distributed.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with MonitoredTrainingSession(
    checkpoint_dir="runs", save_checkpoint_steps=3, save_summaries_steps=None
) as session:
    session.track(model=model, optimizer=optimizer)
    for epoch in session.epochs(3):
        sampler.set_epoch(epoch)
        for batch, target in session.iterate(loader):
            with session.step():
                optimizer.zero_grad()
                (model(batch) - target).square().mean().backward()
                optimizer.step()
distributed.destroy_process_group()
"""


def start(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, words)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    """Start the command in two processes."""
    hookbus = str(Path(sys.executable).parent / "hookbus")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return start(*launcher, "--no-python", hookbus, *words)


def test_the_value_that_broke_a_training_is_named():
    """With the step, the module and the number of the input; `hookbus why` tells how."""
    Path("train.py").write_text(BAD)
    assert start("hookbus", "run", "-q", "--nan-tensor", "loss", "train.py").returncode == 1
    why = start("hookbus", "why", "runs").stdout
    command = re.search(
        r"replay +hookbus (replay runs --from 300 --locate-nan) SCRIPT", why
    )
    assert command, why
    done = start("hookbus", *command[1].split(), "-q", "train.py")
    assert done.returncode == 0, done.stderr
    assert (
        "found: NotFiniteError: locate-nan: the input of 'model' is nan at [7, 2], in step "
        "322; input 321 of 'iterate' in epoch 0\n" in done.stdout
    )


@pytest.mark.long
def test_several_processes_replay_their_training_together():
    """From a run that was stopped and resumed, in a directory that they share."""
    Path("ddp.py").write_text(RANKS)
    assert launch("run", "-q", *KEPT, "--stop-at-step", "7", "ddp.py").returncode == 0
    assert launch("run", "-q", *KEPT, "ddp.py").returncode == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*.*")}
    done = launch("replay", "runs", "--into", "again", "-q", "ddp.py")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "exact at step 15, and at 5 before it (from step 0)" in done.stdout
    assert {path: path.read_bytes() for path in Path("runs").rglob("*.*")} == before
    assert not Path("again/.replay").exists()


SOME = [("mnist", "stop"), ("two_loaders", "sigkill")]
EVERY = [(name, kind) for name in TRAININGS for kind in ("stop", "sigkill", "sigterm")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "kind"), cases(SOME, EVERY))
def test_a_replay_of_a_training_is_exact(name, kind):
    """However it was cut short."""
    training = (SCRIPT, "tests.support.zoo_torch", name)
    for cut in (f"{kind}:4", ""):
        start("hookbus", "run", "-q", *KEPT, *training, CUT=cut)
    for first in (0, 3) if FULL and name not in WITH_WORKERS else (0,):
        done = start("hookbus", "replay", "runs", "--from", str(first), "-q", *training)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "exact at step" in done.stdout
