"""A run of an Engine on one process or on several, for `tests.support.ranks`.

Each rank writes what it has at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import hookbus_ignite
import ignite.distributed as idist
import torch
from ignite.engine import DeterministicEngine, Engine
from ignite.handlers import Checkpoint, DiskSaver
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler

from hookbus import Config, SessionRunArgs, SessionRunHook
from tests.support.in_ignite import data

RANK = int(os.environ.get("RANK", "0"))


class AsksHook(SessionRunHook):
    """Notes losses, and on one rank asks for something in a step."""

    def __init__(self, trouble: str) -> None:
        self.trouble, self.losses = trouble, []  # type: tuple[str, list[float]]

    def before_run(self, run_context):
        return SessionRunArgs("loss")

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))
        if RANK != 1 or run_values.global_step != 4:
            return
        if self.trouble == "stop":
            run_context.request_stop("rank 1 has enough")
        elif self.trouble == "save":
            run_context.request_save("rank 1 wants one")
        elif self.trouble == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.trouble == "error":
            raise RuntimeError("rank 1 is broken")

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def main() -> None:
    """Train, and leave the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("trouble")
    options = parser.parse_args()
    idist.initialize("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(engine: Engine, batch: Any) -> float:
        optimizer.zero_grad()
        x, y = batch
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.06)  # ranks agree in each step only if steps take their time
        return loss.item()

    trainer, hook = DeterministicEngine(step), AsksHook(options.trouble)
    to_save: dict[str, Any] = {"trainer": trainer, "model": model, "optimizer": optimizer}
    saver = DiskSaver("checkpoints", create_dir=True, require_empty=False)
    handler, bus = Checkpoint(to_save, saver, n_saved=None), None
    if options.trouble != "plain":
        to_save["bus"] = bus = hookbus_ignite.attach(
            trainer,
            [hook],
            model=model,
            optimizer=optimizer,
            checkpoint=handler,
            config=Config(autoload=False, header=False),
        )
    saved = [*Path("checkpoints").glob("*.pt")]
    if saved:
        Checkpoint.load_objects(to_save, torch.load(saved[0], weights_only=False))
    sampler = DistributedSampler(data(), shuffle=False)
    code = 0
    try:
        trainer.run(DataLoader(data(), 4, sampler=sampler), max_epochs=8)
    except SystemExit as exits:
        code = exits.code
    except Exception as error:
        code = f"{type(error).__name__}: {error}"
    weights = [each for p in model.parameters() for each in p.detach().flatten().tolist()]
    outcome = None if bus is None or bus.outcome is None else bus.outcome.kind
    left = {
        "weights": weights,
        "iteration": trainer.state.iteration,
        "steps": len(hook.losses),
        "outcome": outcome,
        "code": code,
    }
    (options.folder / f"rank-{RANK}.json").write_text(json.dumps(left))
    # PyTorch 2.13 at times waits for ever where it destroys a process group of gloo: its
    # thread needs the lock of Python, which the destructor holds.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
