"""Puts the callback into each Trainer of a script: ``hookbus run --attach lightning``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from hookbus_lightning.callback import BusCallback


@contextlib.contextmanager
def attach() -> Iterator[None]:
    """Have each Trainer that is made in a block carry hooks, unless it does already."""
    make = Trainer.__init__

    @functools.wraps(make)
    def make_with_hooks(trainer: Trainer, *args: Any, **settings: Any) -> None:
        given = settings.get("callbacks") or []
        callbacks = [given] if isinstance(given, Callback) else [*given]
        if not any(isinstance(each, BusCallback) for each in callbacks):
            settings["callbacks"] = [*callbacks, BusCallback()]
        make(trainer, *args, **settings)

    Trainer.__init__ = make_with_hooks
    try:
        yield
    finally:
        Trainer.__init__ = make
