"""Forges checkpoints of models: the one before is used, or an error says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from hookbus_torch.library import TorchLibrary
from torch.utils.data import DataLoader

from hookbus import CheckpointError, Config, MonitoredTrainingSession, UsageError
from hookbus.backend import Tracked
from tests.support.forging import check_outcome, mutate_state, places
from tests.support.profiles import cases

LAST = 5
OPTIMIZERS: dict[str, Callable] = {
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
}


def train(directory: Path, last: int, optimizer: str = "adam") -> int:
    """Train in a custom loop; return the step that it began at."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    head, draw = torch.nn.Linear(3, 1), torch.Generator().manual_seed(3)
    adapted = OPTIMIZERS[optimizer](model.parameters())
    adapted.add_param_group({"params": [*head.parameters()], "weight_decay": 0.1})
    scheduler = torch.optim.lr_scheduler.MultiStepLR(adapted, [2, 7])
    loader = DataLoader(torch.rand(12, 2), 4, shuffle=True, generator=draw)
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False),
    ) as session:
        session.track(model=model, head=head, adapted=adapted, scheduler=scheduler)
        before = session.global_step
        for _ in session.epochs(9):
            for batch in session.iterate(loader):
                if session.global_step >= last:
                    return before
                with session.step():
                    head(model(batch)).mean().backward()
                    if session.global_step % 2:
                        adapted.step()
                        adapted.zero_grad()
                scheduler.step()
    return before


def outcome(directory: Path, optimizer: str) -> str | int:
    """Train on; return where the training began, or the error that it may end with."""
    try:
        return train(directory, LAST + 3, optimizer)
    except CheckpointError as error:
        return str(error)
    except UsageError as error:
        if "has come to epoch" in str(error) or "no plugin here knows" in str(error):
            return str(error)
        raise


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("seed", range(cases(1, 20)))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_forged_part_does_no_more_than_make_a_checkpoint_bad(optimizer, seed, tmp_path):
    """Whatever stands in the state of a model, an optimizer, a scheduler or a loader."""
    draw, origin = Random(seed), tmp_path / "origin"
    torch.manual_seed(3)
    train(origin, LAST, optimizer)
    tree = json.loads((origin / f"ckpt-{LAST}/state.json").read_text())
    ways = [*places(tree)]
    objects = [way for way in ways if len(way) > 1]
    kinds = sorted({way[:2] for way in objects})
    for number in range(40):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory)
        kind = draw.choice(kinds)
        where = draw.choice([way for way in objects if way[:2] == kind])
        done = mutate_state(directory / f"ckpt-{LAST}", where, draw)
        check_outcome(partial(outcome, directory, optimizer), LAST, done)
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        (
            {"state": []},
            "'adam' is an optimizer here, and has no parts",
        ),
        ({"param_groups": [{}]}, "has no parts of one"),
        ({"state": {0: 5}}, "has no parts of one"),
        ({":parameters": [5]}, "has no parts of one"),
        (
            {"lr": "x"},
            "'adam.param_groups.0.lr' is a str in the checkpoint",
        ),
        ({"betas": (0.9,)}, "'adam.param_groups.0.betas' is a tuple in the checkpoint"),
        ({"exp_avg": None}, "'adam.state.0.exp_avg' is missing in the checkpoint"),
        (
            {"exp_avg": 1},
            "'adam.state.0.exp_avg' is a int in the checkpoint",
        ),
        ({"step": "x"}, "'adam.state.0.step' is a str in the checkpoint and a Tensor here"),
    ],
    ids=str,
)
def test_a_state_that_no_optimizer_has_is_told_by_its_place(forged, told):
    """PyTorch would load it, and fail in the next step."""
    tracked = stepped()
    state = tracked.get()
    assert [*tracked.faults(state)] == []
    ((key, value),) = forged.items()
    if key in state:
        state[key] = value
    elif key in state["param_groups"][0]:
        state["param_groups"][0][key] = value
    elif value is None:
        del state["state"][0][key]
    else:
        state["state"][0][key] = value
    assert told in next(tracked.faults(state))


def stepped() -> Tracked:
    """Return an optimizer that has done a step, as it is tracked."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    adam = torch.optim.Adam([weight])
    weight.sum().backward()
    adam.step()
    return TorchLibrary().tracked("adam", adam)


def test_a_step_that_an_older_pytorch_counted_as_a_number_is_taken():
    """PyTorch makes a tensor of it."""
    tracked = stepped()
    state = tracked.get()
    state["state"][0]["step"] = 1
    assert [*tracked.faults(state)] == []


def test_a_scheduler_with_a_text_for_a_number_is_told():
    """It would fail at the end of the epoch."""
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    tracked = TorchLibrary().tracked("steps", torch.optim.lr_scheduler.StepLR(adam, 2))
    state = {**tracked.get(), "last_epoch": "x"}
    told = "'steps.last_epoch' is a str in the checkpoint and a int here"
    assert [*tracked.faults(state)] == [told]
