"""A PyTorch script around which a session is put: what hooks see, and what they change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hookbus import (
    Config,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from hookbus.errors import CheckpointMismatchError, NoValueYetError, UnfedPlaceholderError

QUIET = Config(autoload=False, header=False)


class Net(nn.Module):
    """A layer with normalization and dropout, and another one."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(self.norm(self.fc1(x)).relu()))


class Fetch(SessionRunHook):
    """Fetches names in each step, and keeps what it gets."""

    def __init__(self, *names: str) -> None:
        self.names, self.got = names, []

    def before_run(self):
        return SessionRunArgs(list(self.names))

    def after_run(self, run_values):
        self.got.append(run_values.results)


class Assign(SessionRunHook):
    """Assigns values after the step with a number."""

    def __init__(self, step: int, values: dict[str, Any]) -> None:
        self.step, self.values = step, values

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.step:
            run_context.assign(self.values)


def train(
    *hooks: Any,
    steps: int = 3,
    report: Any = lambda model, x, loss: {"loss": loss},
    session: Any = MonitoredSession,
    model: nn.Module | None = None,
    **arguments: Any,
) -> nn.Module:
    """Train a small model, with hooks; return it."""
    torch.manual_seed(1)
    model = Net() if model is None else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    data = torch.randn(64, 8, 3)
    arguments = {"config": QUIET, **arguments}
    with session(hooks=hooks, **arguments) as opened:
        opened.track(model=model, optimizer=optimizer)
        for x in opened.iterate(data[:steps]):
            with opened.step() as step:
                loss = F.cross_entropy(model(x), torch.zeros(8, dtype=torch.int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step.report(**report(model, x, loss))
    return model


def weights(model: nn.Module) -> dict[str, list[Any]]:
    """Return all that a model has, as plain lists."""
    return {name: value.tolist() for name, value in model.state_dict().items()}


def test_a_loss_with_a_history_arrives_as_a_number_on_the_host():
    fetch = Fetch("loss")
    train(fetch)
    assert all(isinstance(loss, np.float32) for (loss,) in fetch.got)


def test_hooks_name_what_is_inside_tracked_objects_without_a_line_in_the_script():
    names = ["model.fc1.weight", "model.fc1.weight:grad", "model.fc1:output"]
    names += ["model:grad_norm", "optimizer.lr", "model.norm.running_mean", "model:output"]
    fetch = Fetch(*names)
    model = train(fetch)
    weight, grad, output, norm, rate, mean, logits = fetch.got[-1]
    np.testing.assert_array_equal(weight, model.fc1.weight.detach())
    np.testing.assert_array_equal(grad, model.fc1.weight.grad)
    assert (output.shape, logits.shape, rate) == ((8, 4), (8, 2), 0.1)
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    np.testing.assert_allclose(norm, flat.norm(), rtol=1e-6)
    np.testing.assert_array_equal(mean, model.norm.running_mean)


def test_a_value_of_one_step_stays_as_it_was():
    fetch = Fetch("model.fc1.weight")
    train(fetch)
    (first,), (second,), _ = fetch.got
    assert not np.array_equal(first, second)


def test_a_module_keeps_its_output_only_in_steps_in_which_a_hook_asks():
    hooked = []

    class Sometimes(SessionRunHook):
        def before_run(self, run_context):
            due = run_context.global_step == 1
            return SessionRunArgs("model.fc1:output") if due else None

    def report(model, x, loss):
        hooked.append(len(model.fc1._forward_hooks))
        return {}

    model = train(Sometimes(), report=report)
    assert hooked == [0, 1, 0]
    assert not model.fc1._forward_hooks


def test_hooks_add_nodes_derived_from_what_is_inside():
    class Ratio(SessionRunHook):
        def begin(self, graph):
            def ratio(weight, grad):
                assert isinstance(weight, torch.Tensor)  # it stays on its device
                return (grad.norm() / weight.norm()).square()

            reads = {"weight": "model.fc2.weight", "grad": "model.fc2.weight:grad"}
            graph.op(ratio, name="ratio", reads=reads)

    fetch = Fetch("ratio")
    model = train(Ratio(), fetch)
    weight = model.fc2.weight
    expected = (weight.grad.norm() / weight.norm()).square()
    np.testing.assert_allclose(fetch.got[-1][0], expected.detach())


def test_hooks_assign_parameters_and_the_learning_rate():
    fetch = Fetch("optimizer.lr", "model.fc2.bias")
    train(Assign(1, {"optimizer.lr": 0.0, "model.fc2.bias": np.zeros(2)}), fetch)
    assert [float(rate) for rate, _ in fetch.got] == [0.1, 0.0, 0.0]
    assert [bias.any() for _, bias in fetch.got] == [True, False, False]


def test_assigned_values_are_in_the_checkpoint_of_the_step(tmp_path):
    saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1}
    saves |= {"session": MonitoredTrainingSession}
    train(Assign(2, {"model.fc2.bias": np.ones(2)}), steps=2, **saves)
    seen = []

    class Restored(SessionRunHook):
        def before_run(self, run_context):
            seen.append(run_context.session.run("model.fc2.bias").tolist())

    train(Restored(), steps=1, again=True, **saves)
    assert seen == [[1, 1]]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("model.fc1.wieght", "did you mean 'model.fc1.weight'"),
        ("model.fc9:output", "did you mean"),
        ("optimizer.rate", "is not reported"),
    ],
)
def test_an_unknown_name_is_told_with_close_matches(name, told):
    with pytest.raises(UnfedPlaceholderError, match=told):
        train(Fetch(name))


def test_a_gradient_that_is_not_there_says_why():
    class Frozen(Net):
        def __init__(self):
            super().__init__()
            self.fc1.weight.requires_grad_(False)

    with pytest.raises(NoValueYetError, match="when the step ended, there was no gradient"):
        train(Fetch("model.fc1.weight:grad"), model=Frozen())


def test_a_value_that_a_hook_computes_lazily_changes_nothing():
    def report(model, x, loss):
        return {"loss": loss, "accuracy": lambda: model(x).argmax(1).eq(0).float().mean()}

    fetch = Fetch("accuracy")
    with_hook = train(fetch, steps=6, report=report)
    assert weights(with_hook) == weights(train(steps=6, report=report))
    assert with_hook.training


def test_a_lazy_value_is_computed_in_evaluation_mode():
    modes = []

    def report(model, x, loss):
        def accuracy():
            modes.append((model.training, torch.is_grad_enabled()))
            return 0.0

        return {"accuracy": accuracy}

    train(Fetch("accuracy"), report=report)
    assert modes == [(False, False)] * 3


def test_an_evaluation_leaves_the_training_alone():
    def run(evaluates: bool) -> dict[str, list[Any]]:
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(4, 8, 3)
        with MonitoredSession(config=QUIET) as session:
            session.track(model=model, optimizer=optimizer)
            for x in session.iterate(data):
                with session.step():
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                if evaluates:
                    with session.evaluation("val") as evaluation:
                        assert not model.training
                        assert not torch.is_grad_enabled()
                        torch.rand(3)
                        evaluation.report(loss=model(x).square().mean())
                    assert model.training
        return weights(model)

    assert run(True) == run(False)


def test_another_architecture_is_refused_and_the_checkpoint_stays(tmp_path):
    saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1}
    saves |= {"session": MonitoredTrainingSession}
    train(steps=2, **saves)
    with pytest.raises(CheckpointMismatchError, match=r"'model.fc1.weight' is a tensor of"):
        train(steps=3, model=Net(width=5), **saves)
    assert latest_checkpoint(tmp_path).global_step == 2


def test_a_model_of_another_optimizer_is_refused():
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with (
        pytest.raises(UsageError, match="trains 6 of its 6 parameters outside all tracked"),
        MonitoredSession(config=QUIET) as session,
    ):
        session.track(model=model, optimizer=optimizer)


def test_a_model_that_is_tracked_twice_is_refused():
    model = Net()
    with MonitoredSession(config=QUIET) as session:
        session.track(model=model)
        with pytest.raises(UsageError, match="'model' and 'again' are the same module"):
            session.track(again=model)
