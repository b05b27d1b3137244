"""Parameter groups, frozen parameters and modes that a program changes while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_torch import TorchGraph
from hookbus_torch.library import TorchLibrary
from torch import nn

from hookbus import (
    ChiefSessionCreator,
    Config,
    MonitoredSession,
    MonitoredTrainingSession,
)
from hookbus.errors import CheckpointMismatchError

QUIET = Config(autoload=False, header=False)
LIBRARY = TorchLibrary()
DATA = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(3))
EPOCHS, UNFREEZES = 5, 2


class CutError(Exception):
    """Ends a run in the middle."""


class Net(nn.Module):
    """A backbone, which is frozen at first, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def unfreeze(model: Net, optimizer: torch.optim.Optimizer) -> None:
    """Also train the backbone; its statistics stay as they are."""
    for parameter in model.backbone.parameters():
        parameter.requires_grad_(True)
    model.backbone[1].eval()
    optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 0.01})


def train(
    folder: Path | None, cut: int | None = None, repeats: bool = True, **more: Any
) -> Any:
    """Train the head alone, and from an epoch on the backbone; return all that was made.

    Args:
        folder: the folder of the checkpoints.
        cut: the step at which the training is cut.
        repeats: whether a resumed program comes by the change again; False is a program
            that leaves out the epochs that are finished.
        more: arguments of the session.
    """
    model = Net()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.1)
    saves = {"checkpoint_dir": folder, "save_checkpoint_steps": 1} if folder else {}
    with MonitoredTrainingSession(config=QUIET, **saves, **more) as session:
        session.track(model=model, optimizer=optimizer)
        resumed = session.global_step // len(DATA)
        for epoch in range(EPOCHS):
            if epoch == UNFREEZES and (repeats or epoch >= resumed):
                unfreeze(model, optimizer)
            for x in session.iterate(DATA):
                with session.step() as step:
                    optimizer.zero_grad()
                    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                    loss.backward()
                    optimizer.step()
                    step.report(loss=loss)
                if session.global_step == cut:
                    raise CutError
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    settings = [(len(g["params"]), g["lr"]) for g in optimizer.param_groups]
    return weights, settings, [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("cut", [6, 8, 9, 13])
def test_a_group_that_was_added_while_it_trained_is_there_again(cut, repeats, tmp_path):
    """Whether the program adds it again on its way or not: once, with its state."""
    with pytest.raises(CutError):
        train(tmp_path, cut)
    again = train(tmp_path, repeats=repeats)
    assert again == train(None)
    assert again[1] == [(2, 0.1), (4, 0.01)]


def test_a_program_may_add_a_restored_group_again_once(tmp_path):
    """That has no effect; a further call fails as it does without hookbus."""
    with pytest.raises(CutError):
        train(tmp_path, 13)
    model = Net()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.1)
    with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET) as session:
        session.track(model=model, optimizer=optimizer)
        before = optimizer.state_dict()
        optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 7.0})
        assert str(optimizer.state_dict()) == str(before)
        assert "add_param_group" not in vars(optimizer)
        with pytest.raises(ValueError, match="appear in more than one parameter group"):
            optimizer.add_param_group({"params": model.backbone.parameters()})
        extra = nn.Parameter(torch.ones(1))
        optimizer.add_param_group({"params": extra})
        assert len(optimizer.param_groups) == 3


def test_a_restored_group_keeps_the_names_that_the_program_gave(tmp_path):
    """An optimizer of named parameters stays one."""
    names = []
    for _ in range(2):
        model = Net()
        optimizer = torch.optim.SGD(model.head.named_parameters(), lr=0.1)
        saves = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "config": QUIET}
        with MonitoredTrainingSession(**saves) as session:
            session.track(model=model, optimizer=optimizer)
            names.append([group["param_names"] for group in optimizer.param_groups])
            if len(optimizer.param_groups) == 1:
                group = {"params": [*model.backbone.named_parameters()]}
                optimizer.add_param_group(group)
            with session.step():
                pass
    assert names[1] == [*names[0], ["0.weight", "0.bias", "1.weight", "1.bias"]]


def test_a_group_of_parameters_that_no_tracked_module_has_is_told_by_name(tmp_path):
    """The message names the group and its parameters, and nothing is restored."""
    with pytest.raises(CutError):
        train(tmp_path, 13)
    model = Net()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.1)
    before = model.head.weight.tolist()
    with (
        MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET) as session,
        pytest.raises(
            CheckpointMismatchError,
            match=r"group 1 of 'optimizer' is only in the checkpoint, and trains "
            r"'model\.backbone\.0\.weight', 'model\.backbone\.0\.bias', .*, which no "
            "tracked module has here",
        ),
    ):
        session.track(optimizer=optimizer)  # the model is not tracked yet
    assert not optimizer.state
    assert model.head.weight.tolist() == before


def test_a_group_of_parameters_that_are_in_another_group_is_told_by_name():
    """The program has made one group of both."""
    model, other = Net(), Net()
    saved = torch.optim.SGD(model.head.parameters(), lr=0.1)
    tracked = LIBRARY.tracked("optimizer", saved)
    tracked.introduce({"model": model, "optimizer": saved})
    saved.add_param_group({"params": [model.backbone[0].weight]})
    groups = [[other.backbone[0].weight, other.head.weight]]
    here = torch.optim.SGD([{"params": params} for params in groups], lr=0.1)
    again = LIBRARY.tracked("optimizer", here)
    again.introduce({"model": other, "optimizer": here})
    assert list(again.faults(tracked.get())) == [
        "group 1 of 'optimizer' is only in the checkpoint, and trains "
        "'model.backbone.0.weight', which another group has here"
    ]


def test_a_group_of_parameters_without_a_name_is_told():
    """Its module was not tracked when it was saved."""
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    saved = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    state = LIBRARY.tracked("optimizer", saved).get()
    here = torch.optim.SGD([other.weight], lr=0.1)
    assert list(LIBRARY.tracked("optimizer", here).faults(state)) == [
        "group 1 of 'optimizer' is only in the checkpoint, and trains a parameter without "
        "a name, which no tracked module has here"
    ]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_group_that_came_after_the_checkpoint_survives_a_roll_back(repeats, tmp_path):
    """The program goes on behind that place, or comes by it again; its state is gone."""
    model = Net()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.1)
    hooks = [SpikeRollbackHook(), CheckpointSaverHook(tmp_path, save_steps=2)]
    rolled_back, seen = False, list[int]()
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=hooks, save_checkpoint_secs=None, config=QUIET
    ) as session:
        session.track(model=model, optimizer=optimizer)
        for number in session.iterate(range(6)):
            if 3 in seen and not rolled_back:
                rolled_back = True
                assert not any(p in optimizer.state for p in model.backbone.parameters())
            if number == 2 and (repeats or not rolled_back):
                unfreeze(model, optimizer)
            with session.step() as step:
                optimizer.zero_grad()
                model(DATA[0]).square().mean().backward()
                optimizer.step()
                optimizer.param_groups[-1]["lr"] = 0.5
                step.report(loss=float("nan") if number == 3 else 1.0)
            seen.append(number)
            if number == 2:
                assert [len(group["params"]) for group in optimizer.param_groups] == [2, 4]
    assert session.outcome.rolled_back == 1
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.backbone[1].training
    steps = {int(optimizer.state[p]["step"]) for p in model.backbone.parameters()}
    assert steps == {3}


def test_frozen_parameters_and_modes_come_back():
    """Each parameter's, and each submodule's."""
    model, other = Net(), Net()
    model.backbone[0].weight.requires_grad_(False)
    model.backbone[1].eval()
    saved = LIBRARY.tracked("model", model).modes.get()
    other.head.weight.requires_grad_(False)
    other.head.eval()
    LIBRARY.tracked("model", torch.compile(other, backend="eager")).modes.put(saved)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert one.requires_grad == two.requires_grad
    for one, two in zip(model.modules(), other.modules(), strict=True):
        assert one.training == two.training


def test_a_module_that_is_tried_out_after_its_training_trains_when_it_resumes(tmp_path):
    """A test at the end, in evaluation mode, is not how the model was trained."""
    modes = []
    for epochs in (1, 2):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET) as session:
            session.track(model=model, optimizer=optimizer)
            modes.append((model.training, model.backbone[1].training))
            model.backbone[1].eval()
            for _ in range(epochs):
                for x in session.iterate(DATA):
                    with session.step():
                        optimizer.zero_grad()
                        model(x).square().mean().backward()
                        optimizer.step()
            model.eval()
            model(DATA[0])
    assert modes[1][0]


def test_a_session_that_evaluates_leaves_modes_and_gradients_alone(tmp_path):
    """The program has prepared the model for it."""
    train(tmp_path)
    model = Net()
    model.eval().requires_grad_(False)
    model.head.weight.grad = torch.ones(1, 4)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.1)
    optimizer.add_param_group({"params": model.backbone.parameters()})
    creator = ChiefSessionCreator(TorchGraph(model, optimizer), checkpoint_dir=tmp_path)
    with MonitoredSession(session_creator=creator, config=QUIET, kind="eval") as session:
        assert session.global_step == EPOCHS * len(DATA)
    assert model.head.weight.grad is not None
    assert not any(part.training for part in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_state_without_the_names_of_parameters_is_readable():
    """As older versions have saved it; groups that only it has are still an error."""
    model = Net()
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.head.parameters()], lr=0.1)
    older = optimizer.state_dict()
    tracked = LIBRARY.tracked("optimizer", optimizer)
    tracked.introduce({"model": model, "optimizer": optimizer})
    assert not list(tracked.faults(older))
    assert tracked.put(older) is optimizer
    smaller = LIBRARY.tracked("optimizer", torch.optim.SGD([model.head.weight], lr=0.1))
    smaller.introduce({"model": model})
    assert list(smaller.faults(older)) == [
        "'optimizer' has groups of 1 parameters here and of 1, 1 in the checkpoint"
    ]
