"""Gradients that no optimizer has used yet are a part of what checkpoints hold."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_safetensors import SafetensorsCodec
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import Config, MonitoredTrainingSession, SessionRunHook, hookimpl

QUIET = Config(autoload=False, header=False)
DATA = torch.randn(24, 8, 3, generator=torch.Generator().manual_seed(3))
GROUP = 4


class CutError(Exception):
    """Ends a run in the middle."""


class Wrapped(torch.optim.Optimizer):
    """Skips the steps inside a group, around another optimizer, like accelerate."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.is_last = optimizer, True

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optimizer.param_groups = groups

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    def add_param_group(self, group: Any) -> None:
        self.optimizer.add_param_group(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.is_last:
            self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        if self.is_last:
            self.optimizer.step(closure)


def by_hand(optimizer: Any, number: int) -> None:
    """Step at the end of each group."""
    if (number + 1) % GROUP == 0:
        optimizer.step()
        optimizer.zero_grad()


def zeroed_at_the_start(optimizer: Any, number: int) -> None:
    """Step at the end of each group; the next one removes the gradients."""
    if (number + 1) % GROUP == 0:
        optimizer.step()


def in_place(optimizer: Any, number: int) -> None:
    """Keep the gradients, as zeros."""
    if (number + 1) % GROUP == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def wrapped(optimizer: Any, number: int) -> None:
    """Step each time; what wraps the optimizer does it only at the end of a group."""
    optimizer.is_last = (number + 1) % GROUP == 0
    optimizer.step()
    optimizer.zero_grad()


STYLES = [by_hand, zeroed_at_the_start, in_place, wrapped]


def train(folder: Path | None, style: Any = by_hand, cut: int | None = None) -> Any:
    """Train with one update for several batches; return the weights."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = Wrapped(optimizer) if style is wrapped else optimizer
    saves = {"checkpoint_dir": folder, "save_checkpoint_steps": 1} if folder else {}
    with MonitoredTrainingSession(config=QUIET, **saves) as session:
        session.track(model=model, optimizer=optimizer)
        for x in session.iterate(DATA):
            number = session.global_step
            with session.step() as step:
                if style is zeroed_at_the_start and number % GROUP == 0:
                    optimizer.zero_grad()
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / GROUP
                loss.backward()
                style(optimizer, number)
                step.report(loss=loss)
            if session.global_step == cut:
                raise CutError
    return {name: value.tolist() for name, value in model.state_dict().items()}


def held_in(path: Path) -> Any:
    """Return the gradients in a checkpoint, by the name of the tracked object."""
    return SafetensorsCodec().read(path).get("pending", {})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("cut", [5, 7, 8])
def test_a_training_that_is_cut_inside_a_group_goes_on_bit_for_bit(style, cut, tmp_path):
    """The gradients of the first batches of the group are not lost."""
    with pytest.raises(CutError):
        train(tmp_path, style, cut)
    assert train(tmp_path, style) == train(None, style)


@pytest.mark.parametrize("style", STYLES)
def test_gradients_that_an_optimizer_has_used_take_no_place(style, tmp_path):
    """Also where the program leaves them, or leaves zeros, until the next group."""
    train(tmp_path, style)
    inside, after = held_in(tmp_path / "ckpt-23"), held_in(tmp_path / "ckpt-24")
    assert len(inside["model"]["values"]) == 4
    assert not after or not after["model"]["values"]


def test_a_gradient_that_grows_after_the_step_is_pending(tmp_path):
    """One that was used, and then added to, is not the one that was used."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "config": QUIET}
    with MonitoredTrainingSession(**saves) as session:
        session.track(model=model, optimizer=optimizer)
        with session.step():
            loss = model(torch.ones(1, 2)).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            loss.backward()
    held = held_in(tmp_path / "ckpt-1")["model"]["values"]
    assert torch.equal(held["weight"], torch.full((1, 2), 2.0))


@pytest.mark.parametrize("tracks", ["module", "tensor"])
def test_without_an_optimizer_that_is_tracked_gradients_count_as_pending(tracks, tmp_path):
    """Nothing shows that they were used; the state is exact."""
    found = []
    for _ in range(2):
        model = nn.Linear(2, 1)
        thing = model if tracks == "module" else model.weight
        saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "config": QUIET}
        with MonitoredTrainingSession(**saves) as session:
            session.track(thing=thing)
            found.append(copy.deepcopy(model.weight.grad))
            with session.step():
                model(torch.ones(1, 2)).sum().backward()
    assert found[0] is None
    assert torch.equal(found[1], torch.ones(1, 2))


def test_gradients_that_were_not_pending_are_none_in_the_restored_program(tmp_path):
    """Whatever the program had computed before it tracked the model."""
    train(tmp_path)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET) as session:
        session.track(model=model, optimizer=optimizer)
        assert all(parameter.grad is None for parameter in model.parameters())


def test_sparse_gradients_are_pending_as_well(tmp_path):
    """They come back sparse."""
    found = []
    for _ in range(2):
        model = nn.Embedding(9, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "config": QUIET}
        with MonitoredTrainingSession(**saves) as session:
            session.track(model=model, optimizer=optimizer)
            found.append(copy.deepcopy(model.weight.grad))
            with session.step():
                model(torch.tensor([1, 1, 3])).sum().backward()
    assert found[1].is_sparse
    assert torch.equal(
        found[1].to_dense()[:, 0], torch.tensor([0.0, 2, 0, 1, 0, 0, 0, 0, 0])
    )


def test_a_training_that_rolls_back_has_the_gradients_of_the_checkpoint(tmp_path):
    """The gradient of the batch that is left out is not in the sum."""
    bad = 6

    def run(bad_batch: bool) -> Any:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = list(DATA[:12])
        if bad_batch:
            data.insert(bad, torch.full((8, 3), math.inf))
        folder = tmp_path / str(bad_batch)
        hooks = [SpikeRollbackHook(), CheckpointSaverHook(folder, save_steps=2)]
        with MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, save_checkpoint_secs=None, config=QUIET
        ) as session:
            session.track(model=model, optimizer=optimizer)
            for x in session.iterate(data):
                with session.step() as step:
                    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                    loss.backward()
                    if (session.global_step + 1) % GROUP == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                    step.report(loss=loss)
        return session.outcome.rolled_back, model.weight.tolist()

    assert run(True) == (1, run(False)[1])


class Holder:
    """An object of the program that holds a model, of which PyTorch knows nothing."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> Any:
        return self.model.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.model.load_state_dict(state)


def weights_in(model: nn.Linear) -> dict[str, torch.Tensor]:
    """Return tensors that share the memory of the parameters, and have no gradients."""
    return {"weight": model.weight.data, "bias": model.bias.data}


class GoesBack(SessionRunHook):
    """Goes back once, after step 5."""

    has_gone = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == 5 and not self.has_gone:
            self.has_gone = True
            run_context.request_rollback("once", skip_inputs=False)


@pytest.mark.parametrize("held", [lambda model: model, Holder, weights_in])
def test_no_gradient_from_behind_the_checkpoint_survives_a_roll_back(held, tmp_path):
    """Whatever object holds the parameters; those that were pending come back."""

    def run(folder: Path, *hooks: Any) -> Any:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saves = {"checkpoint_dir": folder, "save_checkpoint_steps": 4, "config": QUIET}
        seen, last = [], 0
        with MonitoredTrainingSession(hooks=hooks, **saves) as session:
            session.track(held=held(model), optimizer=optimizer)
            for x in session.iterate(DATA[:8]):
                if session.global_step < last:
                    seen = [p.grad.clone() for p in model.parameters()]
                with session.step():
                    model(x).square().mean().backward()
                    if session.global_step % 3 == 2:
                        optimizer.step()
                        optimizer.zero_grad()
                last = session.global_step
                if last == 4 and not hooks:
                    seen = [p.grad.clone() for p in model.parameters()]
        return seen, model.weight.tolist()

    pending, weight = run(tmp_path / "straight")
    again, after = run(tmp_path / "back", GoesBack())
    assert all(map(torch.equal, again, pending))
    assert after == weight


class Shown(SessionRunHook):
    """Keeps the names that a hook sees before a save."""

    @hookimpl
    def veto_save(self, values):
        self.names = set(values)


def test_hooks_are_not_shown_pending_gradients_before_a_save(tmp_path):
    """NaN in a gradient is no reason against a checkpoint."""
    shown, model = Shown(), nn.Linear(2, 1)
    saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "config": QUIET}
    with MonitoredTrainingSession(hooks=[shown, SpikeRollbackHook()], **saves) as session:
        session.track(model=model)
        with session.step() as step:
            (model(torch.ones(1, 2)).sum() * math.nan).backward()
            step.report(loss=1.0)
    assert shown.names == {"model.weight", "model.bias"}
    assert held_in(tmp_path / "ckpt-1")["model"]["values"]["weight"].isnan().all()


def test_a_graph_that_is_cut_inside_a_group_goes_on_bit_for_bit(tmp_path):
    """Its train op adds gradients up in the model."""

    def run(folder: Path, cut: int | None = None) -> Any:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        graph = TorchGraph(model, optimizer)
        graph.input("x", lambda: iter(DATA))

        @graph.train_op(outputs="loss")
        def train(x: Any, global_step: Any) -> Any:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            if (global_step + 1) % GROUP == 0:
                optimizer.step()
                optimizer.zero_grad()
            return {"loss": loss}

        saves = {"checkpoint_dir": folder, "save_checkpoint_steps": 1, "config": QUIET}
        with MonitoredTrainingSession(graph, **saves) as session:
            for _ in session.loop():
                if session.global_step == cut:
                    raise CutError
        return model.weight.tolist()

    with pytest.raises(CutError):
        run(tmp_path / "cut", 6)
    assert run(tmp_path / "cut") == run(tmp_path / "whole")


def test_a_fork_changes_nothing_about_what_is_used(tmp_path):
    """It trains a copy; the gradients of the training itself stay used."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = TorchGraph(model, optimizer)

    @graph.train_op
    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    class Tries(SessionRunHook):
        def after_run(self, run_context):
            run_context.session.fork().run("train")

    saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "config": QUIET}
    with MonitoredTrainingSession(graph, hooks=[Tries()], **saves) as session:
        session.run("train")
    assert not held_in(tmp_path / "ckpt-1")
