"""Forges checkpoints of models and optimizers: the one before is used, or an error says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from torch.utils.data import DataLoader

from hookbus import CheckpointError, Config, MonitoredTrainingSession, UsageError
from tests.support.forging import forge_state, mutate, places
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
        directory, done = tmp_path / str(number), list[str]()
        shutil.copytree(origin, directory)
        kind = draw.choice(kinds)
        where = draw.choice([way for way in objects if way[:2] == kind])
        forge_state(
            directory / f"ckpt-{LAST}",
            lambda tree: done.append(mutate(tree, where, draw)),  # noqa: B023
        )
        try:
            found = outcome(directory, optimizer)
        except BaseException as error:
            raise AssertionError(f"{done} ends with {error!r}") from error
        assert isinstance(found, str) or found in (LAST - 1, LAST), done
        shutil.rmtree(directory)
