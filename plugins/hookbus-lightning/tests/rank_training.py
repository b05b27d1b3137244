"""A run with strategy="ddp", in which a rank can get into trouble.

It is a script: `tests.support.ranks` starts it, or Lightning starts it again for each
further rank. Each rank writes what it has at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_lightning import BusCallback
from hookbus_logging_tensor import LoggingTensorHook
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from hookbus import SessionRunHook
from tests.support.in_lightning import OFF, Net, data, weights

RANK = int(os.environ.get("LOCAL_RANK", "0"))
torch.set_num_threads(1)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Trouble(SessionRunHook):
    """Does something on one rank after a step; counts the steps of its rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.runs = options, 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1
        time.sleep(0.06)  # ranks exchange at most twenty times a second
        what = self.options.trouble
        if run_values.global_step != self.options.at or self.options.on != RANK:
            return
        if what == "stop":
            run_context.request_stop("enough")
        if what == "save":
            run_context.request_save("it is good")
        if what == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        if what == "hook":
            raise ValueError("the hook is broken")

    def state_dict(self) -> dict[str, int]:
        return {"runs": self.runs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.runs = state["runs"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trouble", default="")
    parser.add_argument("--at", type=int, default=5)
    parser.add_argument("--on", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--flags", action="store_true", help="plugins of the command")
    options = parser.parse_args()
    trouble = Trouble(options)
    hooks: list[Any] = [trouble, LoggingTensorHook("loss", every_n_iter=4)]
    if options.save_steps:
        hooks.append(CheckpointSaverHook(save_steps=options.save_steps))
    callback = BusCallback(hooks, config=None if options.flags else OFF)
    lightning.seed_everything(1, verbose=False)
    module, size = Net(), 48 // options.ranks
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.ranks,
        strategy="ddp",
        max_epochs=3,
        callbacks=[callback, ModelCheckpoint(options.folder / "saved")],
        accumulate_grad_batches=options.accumulate,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    error = ""
    loaders = DataLoader(data(size * options.ranks), 4), DataLoader(data(8), 4)
    try:
        trainer.fit(module, *loaders, ckpt_path="last")
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        outcome = callback.outcome
        left = {
            "kind": outcome and outcome.kind,
            "step": outcome and outcome.step,
            "steps": trainer.global_step,
            "runs": trouble.runs,
            "weights": weights(module),
            "error": error,
        }
        (options.folder / f"rank-{RANK}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main()
