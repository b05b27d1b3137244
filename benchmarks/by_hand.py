"""Does by hand, in a training loop, the five things that hookbus' plugins do.

It stops after a number of steps, saves a checkpoint, logs the loss, watches it for NaN in
each step, and writes it for TensorBoard: as somebody would write it who knows how, and as
durably as hookbus does.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from tensorboardX import SummaryWriter


@attrs.define(eq=False)
class ByHand:
    """The five things, for one run.

    Attributes:
        directory: where checkpoints and event files go; it is made.
        save: writes some named values into a file, like ``safetensors.numpy.save_file``.
        states: returns the named values to save, by the name of their file.
        every: the steps between two log lines, and between two records for TensorBoard.
        block: the steps between two checkpoints.
        last: the step at which the training ends.
    """

    directory: Path
    save: Callable[[Any, Path], object]
    states: Callable[[], Mapping[str, Any]]
    every: int
    block: int
    last: int
    done: int = 0
    writer: SummaryWriter = attrs.field(init=False)
    log: logging.Logger = attrs.field(factory=lambda: logging.getLogger("by_hand"))

    def __attrs_post_init__(self) -> None:
        self.directory.mkdir()
        self.writer = SummaryWriter(str(self.directory))

    def after_step(self, number: float) -> bool:
        """Do what is due after a step with this loss; return whether to go on."""
        self.done = done = self.done + 1
        if math.isnan(number):
            raise ValueError(f"the loss is NaN at step {done}")
        if done % self.every == 0:
            self.log.info("step %d: loss %g", done, number)
            self.writer.add_scalar("loss", number, done)
        if done % self.block == 0:
            self._save()
            # What is shown up to the checkpoint is as safe as the checkpoint.
            self.writer.flush()
            for path in self.directory.glob("events*"):
                _sync(path)
        return done < self.last

    def _save(self) -> None:
        """Write a checkpoint so that a crash at any time leaves a complete one."""
        temporary, final = self.directory / "tmp", self.directory / f"ckpt-{self.done}"
        temporary.mkdir()
        for name, state in self.states().items():
            self.save(state, temporary / f"{name}.safetensors")
            _sync(temporary / f"{name}.safetensors")
        (temporary / "manifest.json").write_text(json.dumps({"step": self.done}))
        _sync(temporary / "manifest.json")
        _sync(temporary)
        temporary.rename(final)
        _sync(self.directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
