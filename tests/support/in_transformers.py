"""A small training run in the Trainer of transformers, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, set_seed


class Net(torch.nn.Module):
    """Learns a sum with one layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(dropout)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: Any, labels: Any = None) -> Any:
        found = self.layer(self.dropout(x))
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Data(torch.utils.data.Dataset):
    """Examples, each with the sum of its numbers."""

    def __init__(self, count: int = 24) -> None:
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": self.x[number], "labels": self.x[number].sum()[None]}


def arguments_of(**settings: Any) -> TrainingArguments:
    """Return the arguments of a quiet run of 18 steps in three epochs."""
    usual = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "use_cpu": True}
    usual |= {"learning_rate": 0.05, "eval_strategy": "epoch", "save_strategy": "no"}
    quiet = {"report_to": "none", "disable_tqdm": True, "output_dir": "out"}
    return TrainingArguments(**{**usual, **quiet, "logging_strategy": "no", **settings})


def trainer_of(
    *callbacks: Any, model: Callable[[], torch.nn.Module] = Net, **settings: Any
) -> Trainer:
    """Return a Trainer, its model always made from the same random numbers."""
    set_seed(1)
    trainer = Trainer(
        model(),
        arguments_of(**settings),
        train_dataset=Data(),
        eval_dataset=Data(8),
        callbacks=[*callbacks],
    )
    set_seed(2)
    return trainer


def weights_of(module: torch.nn.Module) -> list[float]:
    """Return all weights of a module."""
    return [
        each for part in module.state_dict().values() for each in part.flatten().tolist()
    ]
