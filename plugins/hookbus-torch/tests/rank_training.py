"""A training of one process or of several, in which a rank can get into trouble.

It is a script: `tests.support.ranks` starts it. Each rank writes what it has at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hookbus import Config, MonitoredTrainingSession, SessionRunArgs, SessionRunHook

RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trouble", default="")
    parser.add_argument("--at", type=int, default=7)
    parser.add_argument("--on", type=int, default=1, help="the rank with the trouble")
    parser.add_argument("--limit", type=float, default=20)
    parser.add_argument("--short", type=int, default=0, help="fewer batches on that rank")
    parser.add_argument("--extra", action="store_true", help="one more hook on that rank")
    parser.add_argument("--no-group", action="store_true")
    parser.add_argument("--apart", action="store_true", help="a directory for each rank")
    parser.add_argument("--other-setting", action="store_true")
    return parser.parse_args(arguments)


class Trouble(SessionRunHook):
    """Makes trouble after a step, on one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def after_save(self, session: Any, global_step_value: int) -> bool:
        here = self.options.on == RANK
        return here and self.options.trouble == "after a save" and global_step_value == 5

    def after_run(self, run_context: Any, run_values: Any) -> None:
        kind, here = self.options.trouble, self.options.on == RANK
        if not here or run_values.global_step != self.options.at:
            return
        if kind == "hook":
            raise ValueError("the hook is broken")
        if kind == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        if kind == "SIGTERM to the launcher":
            os.kill(os.getppid(), signal.SIGTERM)
        if kind == "stop":
            run_context.request_stop("enough")
        if kind == "save":
            run_context.request_save("now")
        if kind == "assign":
            run_context.assign({"optimizer.lr": 0.5})


class Sums(SessionRunHook):
    """Asks in each step for a sum over the ranks."""

    def __init__(self, ranks: str) -> None:
        self.ranks = ranks
        self.found: set[float] = set()

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs("ranks_so_far", reduce="sum")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.found.add(run_values.results)


def hooks_of(options: argparse.Namespace) -> list[Any]:
    hooks: list[Any] = [Trouble(options), options.sums]
    if options.trouble != "early":
        differs = options.other_setting and options.on == RANK
        hooks.append(StopAtStepHook(last_step=99 if differs else options.steps))
    else:
        hooks.append(EarlyStoppingHook("loss", from_evaluations=True, patience=3))
    if options.trouble == "nan":
        hooks.append(NanTensorHook("loss"))
    if options.extra and options.on == RANK:
        hooks.append(SessionRunHook())
    return hooks


def session_of(options: argparse.Namespace) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        checkpoint_dir=options.folder / ("ab"[RANK] if options.apart else "checkpoints"),
        hooks=hooks_of(options),
        save_checkpoint_steps=5,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False),
    )


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    model = DistributedDataParallel(net) if distributed.is_initialized() else net
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(RANK)
    session, error = None, ""
    try:
        session = session_of(options)
        with session:
            session.track(model=model, optimizer=optimizer, generator=generator)
            here = options.on == RANK
            for number in session.iterate(range(options.steps + 50 - options.short * here)):
                with session.step() as step:
                    at = here and session.global_step == options.at
                    if at and options.trouble == "forward":
                        raise ValueError("the model is broken")
                    if at and options.trouble == "SIGKILL":
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(0.06)  # ranks exchange at most twenty times a second
                    x = torch.randn(8, 4, generator=generator)
                    loss = model(x).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    shown = loss.detach()
                    if at and options.trouble == "nan":
                        shown = shown * torch.nan
                    step.report(loss=shown, ranks_so_far=RANK + 1)
                if options.trouble == "early":
                    with session.evaluation() as evaluation:
                        evaluation.report(loss=float(max(10 - number, RANK)))
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        bits = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        outcome = None if session is None else session.outcome
        left = {
            "kind": outcome and outcome.kind,
            "step": outcome and outcome.step,
            "weights": hashlib.sha256(bits).hexdigest(),
            "sums": [*options.sums.found],
            "error": error,
        }
        (options.folder / f"rank-{RANK}.json").write_text(json.dumps(left))


def main() -> None:
    options = options_of()
    options.sums = Sums("chief" if options.trouble == "reduces alone" else "all")
    if RANKS > 1 and not options.no_group:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=options.limit))
    train(options)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
