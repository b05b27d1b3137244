"""A small training run in Lightning's Trainer, for the tests."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Config
from tests.support.handlers import SIGNALS

OFF = Config(autoload=False, header=False)


class Net(lightning.LightningModule):
    """Learns a sum with one layer, and logs its losses."""

    def __init__(self, rate: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> Any:
        loss = self._loss(batch)
        self.log("val_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])

    def _loss(self, batch: Any) -> Any:
        x, y = batch
        return ((self.layer(x) - y) ** 2).mean()


class ResumableLoader:
    """Yields batches in their order, and tells the Trainer's checkpoints how far it is."""

    def __init__(self, data: TensorDataset, size: int) -> None:
        self.batches = [*DataLoader(data, size)]
        self._first = self._done = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        first, self._first = self._first, 0
        for number in range(first, len(self)):
            self._done = (number + 1) % len(self)
            yield self.batches[number]

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches that it has yielded of an epoch."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind them."""
        self._first = state["done"]


def data(count: int = 24) -> TensorDataset:
    """Return examples, each with the sum of its numbers."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def trainer_of(*callbacks: Any, **settings: Any) -> lightning.Trainer:
    """Return a quiet Trainer that trains 18 steps in three epochs."""
    usual = {"max_epochs": 3, "accelerator": "cpu", "logger": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(callbacks=[*callbacks], **{**usual, **quiet, **settings})


def fit(
    trainer: lightning.Trainer, path: Any = None, module: Any = Net, train: Any = None
) -> Any:
    """Train a module, or a new one of a class, from the same random numbers; return it."""
    lightning.seed_everything(1, verbose=False)
    module = module() if isinstance(module, type) else module
    train = DataLoader(data(), 4, shuffle=True) if train is None else train
    trainer.fit(module, train, DataLoader(data(8), 4), ckpt_path=path)
    return module


def weights(module: torch.nn.Module) -> list[float]:
    """Return the numbers of all parameters."""
    return [number for each in module.parameters() for number in each.flatten().tolist()]


def in_child(do: Callable[[], object]) -> int:
    """Call a function in a forked process; return its exit code, or minus the signal."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code: Any = 1
    try:
        for number in SIGNALS:
            usual = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if usual else signal.SIG_DFL)
        do()
        code = 0
    except SystemExit as exits:
        code = exits.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
