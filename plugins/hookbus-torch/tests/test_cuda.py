"""Trainings on a CUDA device are exact, and wait for it only where somebody is due."""

from __future__ import annotations

import collections
import os
from pathlib import Path

import pytest
import torch
from hookbus_torch.library import TorchLibrary
from torch.profiler import ProfilerActivity, profile

from hookbus import (
    Config,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
    load_tracked,
)
from tests.support.profiles import cases
from tests.support.zoo import KINDS, Run, Zoo
from tests.support.zoo_cuda import TRAININGS, VARIABLES, aside

# Asked otherwise, CUDA does not start in a fork of the process that asked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device"
)
RUN = Run(aside=aside, server="tests.support.zoo_cuda", variables=VARIABLES)
STEPS = cases((4, 7, 11), range(1, 16))
WAITS = ("Synchronize", "Memcpy DtoH")
"""Parts of the names of the profiler's events that make the program wait."""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Return the training runs, each of which is done by hand once."""
    return Zoo(TRAININGS, RUN, tmp_path_factory)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_is_cut_short_is_the_training_by_hand(name, kind, zoo):
    """Weights, moments, scales, and the generators of the device, bit for bit."""
    zoo.check_cut_short(name, kind, STEPS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_finished_training_does_nothing_until_it_gets_more_epochs(name, zoo, tmp_path):
    """Started again it changes no file; with two epochs more it goes on."""
    zoo.check_finished(name, tmp_path)


class Due(SessionRunHook):
    """Wants the loss in every hundredth step."""

    def before_run(self, run_context):
        is_due = run_context.global_step % 100 == 99
        return SessionRunArgs("loss") if is_due else None

    @hookimpl
    def after_save(self):
        """Take part in saves as hooks that upload do."""


def train(folder, steps, watched, hooked=True):
    """Train; return the events of the steps that are watched, each with its number."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.ones(32, 64, device="cuda")

    def update():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def plain(count):
        for _ in range(count):
            update()

    if not hooked:
        plain(watched[0])
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            plain(watched[1] - watched[0])
        return events_of(found)
    config = Config(autoload=False, header=False)
    with MonitoredTrainingSession(
        checkpoint_dir=folder,
        hooks=[Due()],
        config=config,
        save_checkpoint_steps=1000,
        save_checkpoint_secs=None,
        log_step_count_steps=100,
    ) as session:
        session.track(model=model, optimizer=optimizer)
        found = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        for n in session.iterate(range(steps)):
            if n == watched[0]:
                found.start()
            with session.step() as step:
                step.report(loss=update())
            if n == watched[1] - 1:
                found.stop()
    return events_of(found)


def events_of(found):
    """Return how often each event occurred that makes a program wait for the device."""
    names = (event.name for event in found.events())
    return collections.Counter(n for n in names if any(wait in n for wait in WAITS))


def test_steps_in_which_nobody_is_due_never_wait_for_the_device(tmp_path):
    """The profiler sees as many synchronizations as in the loop by hand."""
    by_hand = train(tmp_path, 0, (10, 90), hooked=False)
    assert train(tmp_path / "idle", 95, (10, 90)) == by_hand
    due = train(tmp_path / "due", 150, (10, 145))
    assert sum(due.values()) > sum(by_hand.values())  # so the profiler sees them


def test_each_checkpoint_has_the_values_of_its_step(tmp_path):
    """The copies are made behind the work of the step, and before that of the next."""
    torch.manual_seed(0)
    net = torch.nn.Linear(3000, 3000, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    expected = {}
    config = Config(autoload=False, header=False).with_options(
        "checkpoint-saver", save_steps=3, background=True, max_to_keep=0
    )
    with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=config) as session:
        session.track(net=net, optimizer=optimizer)
        for n in session.iterate(range(30)):
            x = torch.full((2000, 3000), 0.01 * n, device="cuda")
            with session.step():
                for _ in range(5):  # so the device is behind the program
                    optimizer.zero_grad()
                    net(x).square().mean().backward()
                    optimizer.step()
            if session.global_step % 3 == 0:
                expected[session.global_step] = net.weight.detach().clone()
    for step, weight in expected.items():
        saved = load_tracked(Path(tmp_path, f"ckpt-{step}"), "net")["weight"]
        assert torch.equal(saved.cpu(), weight.cpu()), step


def test_the_memory_of_a_copy_is_pinned():
    """Otherwise the program waits for each copy."""
    copied = TorchLibrary().copied(torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
    assert copied.is_pinned()
    assert copied.tolist() == [1, 1, 1]


def test_dropout_that_no_checkpoint_makes_exact_is_named_when_it_resumes(tmp_path, capsys):
    """cuDNN keeps the state of its dropout to itself."""
    config = Config(autoload=False, header=False)
    for _ in range(2):
        net = torch.nn.Sequential(torch.nn.LSTM(4, 8, num_layers=2, dropout=0.5)).cuda()
        assert "cuDNN" not in capsys.readouterr().err
        with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=config) as session:
            session.track(net=net)
            for _ in session.iterate(range(3)):
                with session.step():
                    net(torch.ones(5, 3, 4, device="cuda"))
    assert "cuDNN draws the dropout inside 0, and no checkpoint" in capsys.readouterr().err
