"""Forges checkpoints of models: the one before is used, or an error says why."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hookbus_torch.library import TorchLibrary
from torch.utils.data import DataLoader

from hookbus import CheckpointError, Config, MonitoredTrainingSession, UsageError
from hookbus.backend import Tracked
from tests.support.forging import (
    JUNK,
    Where,
    check_outcome,
    forge_state,
    mutate_state,
    places,
)
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
        ({"step": -5}, "'adam.state.0.step' is -5 in the checkpoint, and no step has that"),
        (
            {"exp_avg": torch.zeros(3, 2)},
            "'adam.state.0.exp_avg' is a tensor of shape (3, 2",
        ),
        (
            {"exp_avg": torch.zeros(2, 3, dtype=torch.int64)},
            "settings or states in the che",
        ),
        ({"weight_decay": None}, "'adam.param_groups.0.weight_decay' is a NoneType in the"),
        ({"maximize": 1000}, "'adam.param_groups.0.maximize' is a int in the checkpoint"),
        (
            {"capturable": True},
            "'adam.param_groups.0' has settings in the checkpoint with which Adam takes no "
            "step here (AssertionError: If capturable=True",
        ),
        ({"betas": (1, 0.9)}, "takes no step here (ZeroDivisionError: "),
        ({"betas": (-1, 0.9)}, "takes no step here (ZeroDivisionError: "),
        (
            {"betas": (3, 0.9)},
            "'adam.param_groups.0' has settings or states in the checkpoint with which "
            "Adam takes no step here (OverflowError: ",
        ),
        ({"params": [0, 0]}, "has no parts of one"),
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


@pytest.mark.parametrize("key", ["lr", "weight_decay", "amsgrad"])
def test_a_setting_that_is_gone_is_told(key):
    """PyTorch would need it in the next step; it adds those that older versions lacked."""
    tracked = stepped()
    state = tracked.get()
    del state["param_groups"][0][key]
    told = [f"'adam.param_groups.0.{key}' is missing in the checkpoint"]
    assert [*tracked.faults(state)] == ([] if key == "amsgrad" else told)


def test_a_state_of_no_parameter_is_told():
    """The parameter would begin anew."""
    tracked = stepped()
    state = tracked.get()
    state["state"][7] = state["state"].pop(0)
    assert [*tracked.faults(state)] == [
        "'adam.state.7' belongs to no parameter in the checkpoint"
    ]


def test_a_setting_that_a_scheduler_has_added_stays():
    """A checkpoint without it is of a run without the scheduler."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    sgd = torch.optim.SGD([weight], momentum=0.9)
    tracked = TorchLibrary().tracked("sgd", sgd)
    before = tracked.get()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.5, 9)
    assert [*tracked.faults(before)] == []
    tracked.put(before)
    scheduler.step()
    assert sgd.param_groups[0]["max_lr"] == 0.5


def made(kind: type[torch.optim.Optimizer], **settings: object) -> torch.optim.Optimizer:
    """Return an optimizer of two groups; Muon trains matrices only."""
    shapes = (
        [(4, 5), (1, 3)] if kind is torch.optim.Muon else [(4, 5), (1, 3), (3,), (1,), ()]
    )
    weights = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    optimizer = kind(weights[:1], **settings)
    optimizer.add_param_group({"params": weights[1:]})
    return optimizer


def step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step with small gradients."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        gradient = torch.full_like(parameter, 0.1)
        sparse = isinstance(optimizer, torch.optim.SparseAdam)
        parameter.grad = gradient.to_sparse() if sparse else gradient
    optimizer.step()


KINDS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name not in ("Optimizer", "LBFGS")
}
FORGED = (
    *(value for value in JUNK if not isinstance(value, dict)),
    *((1, "x"), {0: 1}, torch.tensor(-4.0), torch.tensor(True), torch.zeros(3)),
    *(torch.zeros(4, 5, dtype=dtype) for dtype in (torch.int64, torch.float64)),
)


REFUSALS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""Errors of an object while it is compared, or loads its state."""


def ways(part: object, way: Where = ()) -> Iterator[Where]:
    """Yield the way to each part of a state."""
    inner = part.items() if isinstance(part, dict) else enumerate(part)
    for key, each in inner:
        yield (*way, key)
        if isinstance(each, dict | list | tuple):
            yield from ways(each, (*way, key))


def forged_at(part: Any, way: Where, draw: Random) -> Any:
    """Return a part of a state with one thing inside of it exchanged, or left out."""
    items = dict(part) if isinstance(part, dict) else dict(enumerate(part))
    if len(way) > 1:
        items[way[0]] = forged_at(items[way[0]], way[1:], draw)
    elif draw.random() < 0.2:
        del items[way[0]]
    else:
        items[way[0]] = draw.choice(FORGED)
    return items if isinstance(part, dict) else type(part)(items.values())


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_optimizer_takes_steps_after_each_state_without_faults(kind):
    """A state is told, or refused when it is loaded, or works in the next steps."""
    options = [{}, {"foreach": True}, {"momentum": 0.9}, {"amsgrad": True}]
    known = inspect.signature(kind).parameters
    draw, told = Random(kind.__name__), 0
    for settings in (each for each in options if known.keys() >= each.keys()):
        origin = made(kind, **settings)
        for _ in range(3):
            step(origin)
        state = TorchLibrary().tracked("o", origin).get()
        assert [*TorchLibrary().tracked("o", made(kind, **settings)).faults(state)] == []
        places = [*ways(state)]
        for _ in range(cases(20, 200)):
            way = draw.choice(places)
            forged = forged_at(copy.deepcopy(state), way, draw)
            here = made(kind, **settings)
            tracked = TorchLibrary().tracked("o", here)
            try:
                if [*tracked.faults(forged)]:
                    told += 1
                    continue
                tracked.put(forged)
            except REFUSALS:  # a session makes a CheckpointError of them
                continue
            for _ in range(5):
                step(here)
    assert told


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("state", [True, "packed", [1]], ids=str)
def test_the_generator_of_a_loader_that_takes_no_state_is_named(state, tmp_path):
    """The error of PyTorch is the cause."""
    torch.manual_seed(3)
    train(tmp_path, LAST)

    def change(tree: Any) -> None:
        tree["passes"]["within"]["loaders"]["0"]["end"]["generator"] = state

    forge_state(tmp_path / f"ckpt-{LAST}", change)
    told = "^the random generator 'generator' of a loader does not take the state"
    with pytest.raises(CheckpointError, match=told):
        train(tmp_path, LAST + 3)


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


def test_a_scheduler_with_a_list_for_a_count_is_told():
    """It would fail at the milestone."""
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    scheduler = torch.optim.lr_scheduler.MultiStepLR(adam, [2, 7])
    tracked = TorchLibrary().tracked("steps", scheduler)
    for milestones in ({2: 1, 7: [3, 2]}, {2: 1, "x": 1}):
        told = "'steps.milestones' is a dict in the checkpoint and a Counter here"
        assert [*tracked.faults({**tracked.get(), "milestones": milestones})] == [told]
    assert [*tracked.faults({**tracked.get(), "milestones": {2: 1, 9: 2}})] == []


def test_a_scheduler_with_a_text_for_a_number_is_told():
    """It would fail at the end of the epoch."""
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    tracked = TorchLibrary().tracked("steps", torch.optim.lr_scheduler.StepLR(adam, 2))
    state = {**tracked.get(), "last_epoch": "x"}
    told = "'steps.last_epoch' is a str in the checkpoint and a int here"
    assert [*tracked.faults(state)] == [told]


def test_the_count_of_a_prepared_loader_takes_numbers_only():
    """The loader would fail on another value at its next pass."""

    class Prepared(DataLoader):
        """Has a loader inside and counts passes, as those that accelerate prepares."""

        iteration = 0

    prepared = Prepared([1, 2])
    prepared.base_dataloader = DataLoader([1, 2])
    count = TorchLibrary().loader(prepared).sources["iteration"]
    count.restore(3)
    assert prepared.iteration == 3
    with pytest.raises(TypeError, match="'x' is not the number of a pass"):
        count.restore("x")
