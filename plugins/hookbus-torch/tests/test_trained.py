"""Trained models are used without a session, and without hookbus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_torch import TorchGraph
from hookbus_weight_average import WeightAverageHook
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from hookbus import (
    Config,
    MonitoredTrainingSession,
    SingularMonitoredSession,
    load_tracked,
)
from tests.support.in_process import run_here

QUIET = Config(autoload=False, header=False)
OUT = "out.safetensors"


class Net(nn.Module):
    """A model with a buffer, a tied weight, and a weight of half size."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        self.head = nn.Linear(3, 3, bias=False)
        self.twin = nn.Linear(3, 3, bias=False)
        self.twin.weight = self.head.weight
        self.scale = nn.Parameter(torch.linspace(0, 1, 3, dtype=torch.bfloat16))

    def forward(self, x):
        return self.twin(self.head(self.body(x))) * self.scale


def train(model, *hooks, steps=4):
    """Train a model, and return the state dict that an evaluation sees."""
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    with MonitoredTrainingSession(
        checkpoint_dir="runs",
        hooks=[CheckpointSaverHook("runs", save_steps=2), *hooks],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        session.track(model=model, optimizer=optimizer)
        for _ in range(steps):
            with session.step():
                optimizer.zero_grad()
                model(torch.randn(6, 3)).square().mean().backward()
                optimizer.step()
        with session.evaluation():
            return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    """Return whether two state dicts have the same names, dtypes and bits."""
    assert [*one] == [*other]
    return all(
        torch.equal(v, other[n]) and v.dtype == other[n].dtype for n, v in one.items()
    )


def test_a_module_is_its_state_dict():
    """Tensors on the CPU, which a fresh model loads."""
    model = Net()
    train(model)
    state = load_tracked("runs", "model")
    assert same(state, dict(model.state_dict()))
    fresh = Net()
    fresh.load_state_dict(state)
    assert same(fresh.state_dict(), model.state_dict())


def test_a_wrapped_module_has_the_names_of_the_bare_one():
    """torch.compile leaves no trace."""
    model = torch.compile(Net(), backend="eager")
    train(model, steps=2)
    Net().load_state_dict(load_tracked("runs", "model"))


@pytest.mark.parametrize("decay", [0.9, None])
def test_averages_are_those_that_an_evaluation_sees(decay):
    """Bit for bit, buffers included."""
    model = Net()
    seen = train(model, WeightAverageHook(decay))
    averaged = load_tracked("runs", "model", averages=True)
    assert same(averaged, seen)
    assert not same(averaged, dict(model.state_dict()))
    Net().load_state_dict(averaged)


def test_an_optimizer_is_plain_data():
    model = Net()
    train(model, steps=2)
    state = load_tracked("runs", "optimizer")
    torch.optim.Adam(Net().parameters()).load_state_dict(state)
    assert state["param_groups"][0]["lr"] == 0.05


@pytest.mark.parametrize("averages", [False, True])
def test_an_export_is_loaded_without_hookbus(averages):
    """With the names of the model's own state dict."""
    model = Net()
    seen = train(model, WeightAverageHook(0.9))
    flags = ["--averages"] if averages else []
    code, shown = run_here(["export", "runs", "--tracked", "model", OUT, *flags])
    assert code == 0, shown
    fresh = Net()
    fresh.load_state_dict(load_file(OUT))
    assert same(fresh.state_dict(), seen if averages else model.state_dict())
    with safe_open(OUT, framework="pt") as file:
        assert file.metadata()["step"] == "4"
        assert file.metadata()["source"] == str(Path("runs/ckpt-4"))


def test_the_model_of_a_graph_is_tracked_as_well():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = TorchGraph(model, optimizer)

    @graph.train_op
    def train():
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    with MonitoredTrainingSession(graph, checkpoint_dir="runs", config=QUIET) as session:
        session.run("train")
    assert same(load_tracked("runs", "model"), dict(model.state_dict()))


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_a_session_that_does_not_train_restores_the_model_alone(kind):
    """It has no optimizer, and PyTorch's generator stays as it is."""
    model = Net()
    train(model)
    fresh = Net()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with SingularMonitoredSession(
        checkpoint_dir="runs", kind=kind, config=QUIET
    ) as session:
        session.track(model=fresh)
        with session.step():
            pass
    assert torch.equal(torch.get_rng_state(), before)
    assert same(fresh.state_dict(), model.state_dict())
