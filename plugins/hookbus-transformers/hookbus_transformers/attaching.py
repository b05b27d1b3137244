"""Puts the callback into each Trainer of a script, under ``--attach transformers``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from transformers import Trainer

from hookbus_transformers.callback import BusCallback


@contextlib.contextmanager
def attach() -> Iterator[None]:
    """Have each run of a Trainer in a block carry hooks, unless it does already."""
    train = Trainer.train

    @functools.wraps(train)
    def train_with_hooks(trainer: Trainer, *args: Any, **settings: Any) -> Any:
        callbacks = trainer.callback_handler.callbacks
        if any(isinstance(each, BusCallback) for each in callbacks):
            return train(trainer, *args, **settings)
        with BusCallback() as bus:
            trainer.add_callback(bus)
            try:
                return train(trainer, *args, **settings)
            finally:
                trainer.remove_callback(bus)

    Trainer.train = train_with_hooks
    try:
        yield
    finally:
        Trainer.train = train
