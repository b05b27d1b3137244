"""Values inside modules and optimizers have names and roles, and patterns find them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hookbus_monitor import MonitorHook
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import (
    Config,
    GraphError,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    hookimpl,
)
from hookbus.errors import NoValueYetError
from tests.support.wanting import Wants

QUIET = Config(autoload=False, header=False)


class Net(nn.Module):
    """Two layers, the first one normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.fc2(self.norm(self.fc1(x)).relu())


@pytest.fixture
def net() -> Net:
    """Return a small model."""
    torch.manual_seed(1)
    return Net()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(hooks, model, optimizer, steps=3, **others) -> MonitoredSession:
    """Train a model with hooks; return the session."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(model=model, optimizer=optimizer, **others)
        for _ in session.iterate(range(steps)):
            with session.step() as step:
                optimizer.zero_grad()
                loss = model(torch.randn(5, 3)).square().mean()
                loss.backward()
                optimizer.step()
                step.report(loss=loss)
        return session, session.backend_session


def test_each_value_of_a_model_has_a_role(net):
    """Parameters, buffers, gradients, outputs, rates and moments are told apart."""
    _, session = train([], net, adam(net))

    layers = ("fc1", "norm", "fc2")
    parameters = {f"model.{n}.{leaf}" for n in layers for leaf in ("weight", "bias")}
    norms = {"model:grad_norm", *(f"model.{n}:grad_norm" for n in layers)}
    assert set(session.names(role="parameter")) == parameters
    assert set(session.names(role="gradient")) == norms | {f"{p}:grad" for p in parameters}
    assert session.names("*.running_*", "buffer") == (
        "model.norm.running_mean",
        "model.norm.running_var",
    )
    assert set(session.names(role="output")) == {
        "model:output",
        *(f"model.{n}:output" for n in layers),
    }
    assert session.names(role="rate") == ("optimizer.lr",)
    assert session.names("optimizer.state.fc1.weight.*", "state") == (
        "optimizer.state.fc1.weight.step",
        "optimizer.state.fc1.weight.exp_avg",
        "optimizer.state.fc1.weight.exp_avg_sq",
    )
    assert session.names(role="report") == ("loss",)


def test_the_norm_of_a_module_is_that_of_its_gradients(net):
    """The norms of all modules together are that of the model."""
    hook = Wants(["model:grad_norm", "model.*:grad_norm", "model.*:grad"])
    train([hook], net, adam(net))

    whole, norms, gradients = hook.seen[-1]
    layer = [gradients["model.fc1.weight:grad"].ravel(), gradients["model.fc1.bias:grad"]]
    assert norms["model.fc1:grad_norm"] == pytest.approx(
        np.linalg.norm(np.concatenate(layer))
    )
    assert whole == pytest.approx(np.linalg.norm([*norms.values()]))


def test_moments_come_with_the_first_step_and_are_those_of_the_optimizer(net):
    """They have the names of their parameters, and hooks cannot assign them."""
    optimizer, name = adam(net), "optimizer.state.fc2.weight.exp_avg"
    hook = Wants({"one": name, "all": "optimizer.state.*"}, "skip")
    train([hook], net, optimizer)

    expected = optimizer.state[net.fc2.weight]["exp_avg"]
    assert np.array_equal(hook.seen[-1]["one"], expected.numpy())
    assert len(hook.seen[0]["all"]) == 6 * 3

    class Assigns(SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({name: np.zeros((1, 4), np.float32)})

    with pytest.raises(GraphError, match="which is not a variable but a native value"):
        train([Assigns()], net, optimizer)


def test_moments_are_no_variables(net):
    """A hook that looks at all variables before a save sees what it saw without them."""
    _, session = train([], net, adam(net))

    assert not [name for name in session.variables() if ".state." in name]


def test_an_optimizer_of_two_models_names_both(net):
    """Names of parameters that two modules may share begin with that of the module."""
    other, tensor = nn.Linear(3, 1), torch.zeros(2, requires_grad=True)
    parameters = [*net.parameters(), *other.parameters(), tensor]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    other(torch.randn(2, 3)).sum().backward()
    tensor.sum().backward()
    optimizer.step()
    _, session = train([], net, optimizer, other=other, scale=tensor)

    moments = {name.removesuffix(".momentum_buffer") for name in session.names("*.state.*")}
    assert {
        "optimizer.state.model.fc1.weight",
        "optimizer.state.other.weight",
        "optimizer.state.scale",
    } <= moments


@pytest.mark.parametrize("fetches", ["model.*:grad", ["model.fc1.weight:grad"]])
def test_a_frozen_parameter_has_no_gradient(net, fetches):
    """That ends the training, unless the hook goes without."""
    net.fc1.weight.requires_grad_(False)
    hook = Wants(fetches, "skip")
    train([hook], net, adam(net))

    if isinstance(fetches, list):
        assert hook.seen == [[None]] * 3
    else:
        assert "model.fc1.weight:grad" not in hook.seen[-1]
        assert len(hook.seen[-1]) == 5
    with pytest.raises(NoValueYetError, match="is fetched by wants"):
        train([Wants(fetches)], net, adam(net))


def test_an_expert_that_is_not_used_is_left_out(net):
    """Values that come and go are there in their steps; every step has the same plan."""
    experts, seen = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)]), []
    hook = Wants({"out": "model.*:output", "norms": "model.?:grad_norm"}, "skip")
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=experts)
        for number in session.iterate([0, 0, 1, 0, 1, 1]):
            with session.step():
                for parameter in experts.parameters():
                    parameter.grad = None
                experts[number](torch.randn(2, 3)).sum().backward()
            seen.append(number)

    assert [[*each["out"]] for each in hook.seen] == [[f"model.{n}:output"] for n in seen]
    assert [[*each["norms"]] for each in hook.seen] == [
        [f"model.{n}:grad_norm"] for n in seen
    ]


def test_an_op_of_a_value_that_is_missing_is_missing(net):
    """A hook that derives a value from a gradient goes without both."""
    net.fc1.weight.requires_grad_(False)

    class Derives(Wants):
        def begin(self, graph):
            read = {"g": "model.fc1.weight:grad"}
            graph.op(lambda g: g.abs().max(), name="largest", reads=read, pure=True)

    hook = Derives({"largest": "largest", "loss": "loss"}, "skip")
    train([hook], net, adam(net))

    assert [[*each] for each in hook.seen] == [["loss"]] * 3


def test_a_graph_has_the_same_names(net):
    """Patterns and missing values work around a train op that changes the model."""
    net.fc1.weight.requires_grad_(False)
    optimizer = adam(net)
    graph = TorchGraph(net, optimizer)
    graph.input("x", lambda: iter(torch.randn(6, 5, 3)))

    @graph.train_op(outputs="loss")
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    gradients = Wants("model.fc1.*:grad", "skip")
    moments = Wants("optimizer.state.fc2.bias.*", "skip")
    with MonitoredTrainingSession(
        graph, hooks=[gradients, moments], config=QUIET
    ) as session:
        for _ in session.loop():
            pass
        names = session.names(role="rate"), session.names(role="output")

    assert [[*each] for each in gradients.seen] == [["model.fc1.bias:grad"]] * 6
    assert len(moments.seen[-1]) == 3
    assert names[0] == ("optimizer.lr",)
    assert "loss" in names[1]


def test_norms_of_gradients_are_recorded(net):
    """The plugin monitor measures what matches, without a frozen parameter."""
    net.fc1.weight.requires_grad_(False)
    seen = {}

    class Heard(SessionRunHook):
        @hookimpl
        def measured(self, values):
            seen.update(values)

    train([MonitorHook("model.fc?.*:grad"), Heard()], net, adam(net), steps=1)

    names = ("fc1.bias", "fc2.weight", "fc2.bias")
    assert seen.keys() == {f"monitor/norm/model.{name}:grad" for name in names}
    assert seen["monitor/norm/model.fc2.weight:grad"] == pytest.approx(
        float(net.fc2.weight.grad.norm())
    )
