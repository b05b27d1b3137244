"""Measures what a step costs in trainers of other packages, with an adapter and without.

It trains a tiny model in turns: with a bare callback of the trainer, which does nothing,
with the adapter and no hook, and with the adapter and five hooks that each fetch the loss.
The fastest training of each counts. The difference to the bare callback is what a step
costs.

    python benchmarks/trainers.py [--trainers lightning,transformers] [--rounds 9]

Needs the trainers, and the adapters.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from watchers import ReadyWatcher

from hookbus import Config

QUIET = Config(autoload=False, header=False)
STEPS = 1000
HOOKS = 5


def in_lightning() -> Mapping[str, Callable[[int], float]]:
    """Return a function for each callback, which trains and returns the seconds."""
    import lightning.pytorch as lightning
    import torch
    from hookbus_lightning import BusCallback
    from lightning.pytorch.callbacks import Callback
    from torch.utils.data import DataLoader, TensorDataset

    class Bare(Callback):
        """Has the methods of the adapter, which do nothing."""

        def on_train_batch_start(self, *_: Any) -> None: ...

        def on_train_batch_end(self, *_: Any) -> None: ...

        def on_train_epoch_start(self, *_: Any) -> None: ...

        def on_train_epoch_end(self, *_: Any) -> None: ...

    class Net(lightning.LightningModule):
        """Has one weight."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    def fit(callback: Any, steps: int) -> float:
        data = DataLoader(TensorDataset(torch.ones(steps, 1)), batch_size=1)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        )
        module = Net()
        began = time.perf_counter()
        trainer.fit(module, data)
        return time.perf_counter() - began

    return _variants(fit, Bare, lambda hooks: BusCallback(hooks, config=QUIET))


def _variants(
    fit: Callable[[Any, int], float],
    bare: Callable[[], Any],
    adapter: Callable[[list[Any]], Any],
) -> Mapping[str, Callable[[int], float]]:
    """Return the three trainings of one trainer."""
    return {
        "bare": lambda steps: fit(bare(), steps),
        "no hook": lambda steps: fit(adapter([]), steps),
        f"{HOOKS} hooks": lambda steps: fit(
            adapter([ReadyWatcher("loss") for _ in range(HOOKS)]), steps
        ),
    }


TRAINERS: Mapping[str, Callable[[], Mapping[str, Callable[[int], float]]]] = {
    "lightning": in_lightning,
}


def measured(
    variants: Mapping[str, Callable[[int], float]], rounds: int
) -> dict[str, float]:
    """Return the microseconds of a step of each variant, the fastest of all rounds.

    The time of a short training is taken off: that of beginning and ending.
    """
    best = dict.fromkeys(variants, float("inf"))
    short = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, train in variants.items():
            short[name] = min(short[name], train(1))
            best[name] = min(best[name], train(STEPS + 1))
    return {name: (best[name] - short[name]) / STEPS * 1e6 for name in variants}


def main() -> None:
    """Measure the trainers that are installed, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in options.trainers.split(","):
            if importlib.util.find_spec(f"hookbus_{name}") is None:
                print(f"{name}: its adapter is not installed")
                continue
            found = measured(TRAINERS[name](), options.rounds)
            costs = {each: us - found["bare"] for each, us in found.items()}
            told = ", ".join(
                f"{each} +{us:.1f}" for each, us in costs.items() if each != "bare"
            )
            print(f"{name}: a step takes {found['bare']:.0f} us; {told} us", flush=True)


if __name__ == "__main__":
    main()
