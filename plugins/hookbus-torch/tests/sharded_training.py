"""A run whose model is sharded over its processes with FSDP2, or whole.

It is a script: `tests.support.ranks` starts it. Each rank writes what it has at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import (
    Config,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)

RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--whole", action="store_true", help="do not shard the model")
    parser.add_argument("--hidden", type=int, default=5, help="which two ranks share badly")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds in each step")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of an update")
    parser.add_argument("--background", action="store_true", help="save in a thread")
    parser.add_argument("--reads", default="", help="the ranks of a hook that reads")
    parser.add_argument("--assigns", action="store_true")
    parser.add_argument("--fails-at", type=int, help="the step in which rank 0 fails")
    return parser.parse_args(arguments)


class Reads(SessionRunHook):
    """Fetches values of the sharded model in each step."""

    def __init__(self, options: argparse.Namespace, net: nn.Module) -> None:
        self.options = HookOptions(ranks=options.reads or "all")
        self.assigns = options.assigns
        self.net, self.is_quiet = net, not (options.reads or options.assigns)
        self.seen: list[Any] = []

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        if self.is_quiet:
            return None
        names = {"weight": "model.0.weight", "norm": "model:grad_norm"}
        return SessionRunArgs({**names, "grad": "model.0.weight:grad"})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.assigns:
            run_context.assign({"model.0.weight": 0.0})
        if not self.is_quiet:
            found = run_values.results
            grads = [whole(p.grad) for p in self.net.parameters()]
            norm = torch.linalg.vector_norm(torch.cat([grad.ravel() for grad in grads]))
            self.seen = [
                [*found["weight"].shape],
                abs(float(found["norm"]) - float(norm)) < 1e-6 * float(norm),
                float(abs(found["grad"] - grads[0].numpy()).max()),
            ]


def whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def parts(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[bytes]:
    """Yield the bits that this rank has of the model and of the optimizer's state."""
    states = [value for each in optimizer.state.values() for value in each.values()]
    for tensor in [*net.parameters(), *states]:
        here: Any = tensor.detach()
        if hasattr(here, "to_local"):
            here = here.to_local()
        yield here.numpy().tobytes()


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, options.hidden), nn.Tanh(), nn.Linear(options.hidden, 1)
    )
    if not options.whole:
        mesh = init_device_mesh("cpu", (RANKS,))
        for part in (net[0], net[2], net):
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(RANK)
    reads, error, begun = Reads(options, net), "", 0
    weights: list[Any] = []
    try:
        with MonitoredTrainingSession(
            checkpoint_dir=options.folder / "checkpoints",
            hooks=[
                StopAtStepHook(last_step=options.steps),
                CheckpointSaverHook(
                    save_steps=3, save_on_failure=True, background=options.background
                ),
                reads,
            ],
            save_checkpoint_steps=None,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=Config(autoload=False),
        ) as session:
            session.track(model=net, optimizer=optimizer, generator=generator)
            for _ in session.iterate(range(options.steps)):
                with session.step() as step:
                    begun += 1
                    if RANK == 0 and session.global_step == options.fails_at:
                        raise ZeroDivisionError
                    time.sleep(options.pause)
                    loss = net(torch.randn(8, 4, generator=generator)).square().mean()
                    done = session.global_step % options.accumulate
                    if not done:  # in place: the part of each gradient stays
                        optimizer.zero_grad(set_to_none=options.accumulate == 1)
                    loss.backward()
                    if done == options.accumulate - 1:
                        optimizer.step()
                    step.report(loss=loss)
        weights = [whole(parameter).tolist() for parameter in net.parameters()]
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        left = {
            "bits": hashlib.sha256(b"".join(parts(net, optimizer))).hexdigest(),
            "error": error,
            "begun": begun,
            "seen": reads.seen,
            "weights": weights,
        }
        (options.folder / f"rank-{RANK}.json").write_text(json.dumps(left))


def main() -> None:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=20))
    train(options_of())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
