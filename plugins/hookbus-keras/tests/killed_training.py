"""A run in Keras' fit that is killed again and again; a script for tests.

Arguments: ``hooks`` or ``plain``, and training runs: the folder, a colon, and for each
attempt the number of batches after which it is killed, 0 for never. An attempt is a child
process, forked before any computation. The script prints the exit codes, a line for a run.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_keras import BusCallback
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook

from hookbus import Config, SessionRunHook, hookimpl
from tests.support.in_keras import fit, net

OFF = Config(autoload=False, header=False)


class Kill(keras.callbacks.Callback):
    """Kills the process after a number of batches."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class NotesHook(SessionRunHook):
    """Writes down what is logged, and what became of the run."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / "lines.txt").open("a", encoding="utf-8")

    @hookimpl
    def logged(self, values: Any, global_step: int) -> None:
        print(global_step, dict(values), file=self.file, flush=True)

    @hookimpl
    def finished(self, outcome: Any) -> None:
        print("end", outcome.step, outcome.who, file=self.file, flush=True)


def train(folder: Path, kill: int, with_hooks: bool) -> None:
    """Train at most nine epochs of six batches; what Keras restarts is not shuffled."""
    backup = keras.callbacks.BackupAndRestore(folder / "backup")
    callbacks: list[Any] = [backup]
    if with_hooks:
        hooks = [
            LoggingTensorHook(["loss", "optimizer.learning_rate"], every_n_iter=4),
            EarlyStoppingHook("optimizer.learning_rate", mode="no_decrease", patience=27),
            ReduceLROnPlateauHook("val_loss", evaluation="", patience=2, threshold=0.99),
            NotesHook(folder),
        ]
        callbacks = [BusCallback(hooks, backup=backup, config=OFF)]
    model = net(0.12)
    fit(model, *callbacks, Kill(kill), epochs=9, shuffle=False)
    np.savez(folder / "end.npz", *model.get_weights())


def attempt(folder: Path, kind: str, kill: int) -> int:
    """Train in a child process; return its exit code, or minus the signal."""
    child = os.fork()
    if child == 0:
        try:
            train(folder, kill, kind == "hooks")
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for training in sys.argv[2:]:
        name, _, kills = training.partition(":")
        Path(name).mkdir()
        print(*(attempt(Path(name), sys.argv[1], int(each)) for each in kills.split(",")))
