"""Trains in the Trainer, in one process or in several: a script for torchrun.

`tests.support.ranks` starts it. Each rank writes what it has at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hookbus_logging_tensor import LoggingTensorHook
from hookbus_transformers import BusCallback
from transformers.trainer_utils import get_last_checkpoint

from hookbus import Config, SessionRunHook
from tests.support.in_transformers import Net, trainer_of, weights_of

RANK = int(os.environ.get("RANK", "0"))


class Trouble(SessionRunHook):
    """Does something on rank 1 after step 7."""

    def __init__(self, what: str) -> None:
        self.what = what

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if RANK != 1 or run_values.global_step != 7:
            return
        if self.what == "stop":
            run_context.request_stop("rank 1 wants that")
        elif self.what == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.what == "error":
            raise ValueError("the hook is broken")


def main(folder: Path, trouble: str = "") -> None:
    hooks = [Trouble(trouble), LoggingTensorHook(["loss"], every_n_iter=4)]
    bus = BusCallback(hooks, config=Config(autoload=False, header=False))
    settings = {"save_strategy": "steps", "save_steps": 5, "output_dir": folder / "out"}
    trainer = trainer_of(
        bus, model=lambda: Net(0.3), per_device_train_batch_size=2, max_steps=30, **settings
    )
    error = ""
    (folder / "out").mkdir(exist_ok=True)
    last = get_last_checkpoint(str(folder / "out"))
    try:
        with bus:
            trainer.train(resume_from_checkpoint=last)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    finally:
        outcome = bus.outcome
        left = {
            "kind": outcome and outcome.kind,
            "step": trainer.state.global_step,
            "weights": weights_of(trainer.model),
            "error": error,
        }
        (folder / f"rank-{RANK}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
