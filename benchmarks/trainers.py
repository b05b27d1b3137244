"""Measures what a step costs in trainers of other packages, with an adapter and without.

It trains a tiny model in turns: with a bare callback of the trainer, which does nothing,
with the adapter and no hook, and with the adapter and five hooks that each fetch the loss.
The data note when the trainer takes a batch. A run's step takes the median of the
differences; the fastest training of each kind counts. The difference to the bare callback
is the cost of a step.

    python benchmarks/trainers.py [--trainers lightning,transformers] [--rounds 9]

Needs the trainers, and the adapters.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from watchers import ReadyWatcher

from hookbus import Config

QUIET = Config(autoload=False, header=False)
STEPS = 1000
HOOKS = 5

Fit: TypeAlias = Callable[["Stamps", list[Any] | None], None]
"""Trains one epoch: with hooks in the adapter, or with a bare callback if they are None."""


class Stamps:
    """Gives the numbers of batches, and notes when it is asked for one."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __iter__(self) -> Iterator[int]:
        for number in range(STEPS):
            self.times.append(time.perf_counter())
            yield number

    @property
    def step(self) -> float:
        """The time of a step, in microseconds."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return statistics.median(after - before for before, after in pairs) * 1e6


def in_lightning() -> Fit:
    """Return the training of Lightning's Trainer."""
    import lightning.pytorch as lightning
    import torch
    from hookbus_lightning import BusCallback
    from lightning.pytorch.callbacks import Callback

    class Bare(Callback):
        """Has the methods of the adapter for a step, which do nothing."""

        def on_train_batch_start(self, *_: Any) -> None: ...

        def on_train_batch_end(self, *_: Any) -> None: ...

    class Net(lightning.LightningModule):
        """Has one weight."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    def fit(stamps: Stamps, hooks: list[Any] | None) -> None:
        callback = Bare() if hooks is None else BusCallback(hooks, config=QUIET)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        )
        trainer.fit(Net(), stamps)

    return fit


def in_transformers() -> Fit:
    """Return the training of the Trainer of transformers."""
    import torch
    from hookbus_transformers import BusCallback
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Bare(TrainerCallback):
        """Has the methods of the adapter for a step, which do nothing."""

        def on_step_begin(self, *_: Any, **__: Any) -> None: ...

        def on_optimizer_step(self, *_: Any, **__: Any) -> None: ...

        def on_step_end(self, *_: Any, **__: Any) -> None: ...

    class Net(torch.nn.Module):
        """Has one weight."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any) -> Any:
            return {"loss": self.layer(x).sum()}

    class Data(torch.utils.data.IterableDataset):
        """The batches, each with one example."""

        def __init__(self, stamps: Stamps) -> None:
            self.stamps = stamps

        def __iter__(self) -> Iterator[Any]:
            return ({"x": torch.ones(1)} for _ in self.stamps)

    def fit(stamps: Stamps, hooks: list[Any] | None) -> None:
        callback = Bare() if hooks is None else BusCallback(hooks, config=QUIET)
        arguments = TrainingArguments(
            output_dir=".",
            max_steps=STEPS,
            per_device_train_batch_size=1,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
        )
        data = Data(stamps)
        Trainer(Net(), arguments, train_dataset=data, callbacks=[callback]).train()

    return fit


def in_keras() -> Fit:
    """Return the training of Keras' fit."""
    import keras
    import numpy as np
    from hookbus_keras import BusCallback

    class Bare(keras.callbacks.Callback):
        """Has the methods of the adapter for a step, which do nothing."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None: ...

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def fit(stamps: Stamps, hooks: list[Any] | None) -> None:
        callback = Bare() if hooks is None else BusCallback(hooks, config=QUIET)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        one = np.ones((1, 1), "float32")
        batches = ((one, one) for _ in stamps)
        model.fit(batches, steps_per_epoch=STEPS, verbose=0, callbacks=[callback])

    return fit


def in_ignite() -> Fit:
    """Return the training of an Engine of Ignite."""
    import torch
    from hookbus_ignite import attach
    from ignite.engine import Engine, Events

    def nothing(_: Engine) -> None: ...

    def fit(stamps: Stamps, hooks: list[Any] | None) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def step(_: Engine, __: int) -> Any:
            optimizer.zero_grad()
            loss = model(torch.ones(1, 1)).sum()
            loss.backward()
            optimizer.step()
            return loss

        engine = Engine(step)
        if hooks is None:
            engine.add_event_handler(Events.ITERATION_STARTED, nothing)
            engine.add_event_handler(Events.ITERATION_COMPLETED, nothing)
        else:
            attach(engine, model=model, optimizer=optimizer, hooks=hooks, config=QUIET)
        engine.run(stamps, max_epochs=1, epoch_length=STEPS)

    return fit


TRAINERS: dict[str, Callable[[], Fit]] = {
    "lightning": in_lightning,
    "transformers": in_transformers,
    "keras": in_keras,
    "ignite": in_ignite,
}


def measured(fit: Fit, rounds: int) -> tuple[float, float, float]:
    """Return the microseconds of a step: bare, without hooks and with five."""
    best = [float("inf")] * 3
    for _ in range(rounds):
        for number, count in enumerate((None, 0, HOOKS)):
            stamps = Stamps()
            hooks = None if count is None else [ReadyWatcher("loss") for _ in range(count)]
            fit(stamps, hooks)
            best[number] = min(best[number], stamps.step)
    bare, without, with_hooks = best
    return bare, without, with_hooks


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
            bare, without, with_hooks = measured(TRAINERS[name](), options.rounds)
            print(
                f"{name}: a step takes {bare:.0f} us; no hook +{without - bare:.1f}, "
                f"{HOOKS} hooks +{with_hooks - bare:.1f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()
