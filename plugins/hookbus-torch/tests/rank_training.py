"""A run of one process or of several, in which a rank can get into trouble.

It is a script: `tests.support.ranks` starts it. Each rank writes what it has at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from hookbus import (
    Config,
    DrivenSession,
    Graph,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)

RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trouble", default="")
    parser.add_argument("--at", type=int, default=7)
    parser.add_argument("--on", type=int, default=1, help="the rank with the trouble")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of an update")
    parser.add_argument("--limit", type=float, default=20)
    parser.add_argument("--short", type=int, default=0, help="fewer batches on that rank")
    parser.add_argument("--extra", action="store_true", help="one more hook on that rank")
    parser.add_argument("--no-group", action="store_true")
    parser.add_argument("--apart", action="store_true", help="a directory for each rank")
    parser.add_argument("--other-setting", action="store_true")
    parser.add_argument("--unshared", action="store_true", help="each sees another disk")
    parser.add_argument("--sampler", action="store_true", help="a DistributedSampler")
    parser.add_argument("--loop", choices=["own", "graph", "driven"], default="own")
    return parser.parse_args(arguments)


class Trouble(SessionRunHook):
    """Makes trouble after a step, on one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.has_asked = False

    def begin(self, rank: int) -> None:
        assert rank == RANK

    @hookimpl
    def after_save(self, global_step: int) -> str | None:
        here = self.options.on == RANK and self.options.trouble == "after a save"
        return "enough" if here and global_step == 5 else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        kind, here = self.options.trouble, self.options.on == RANK
        at = self.options.at
        if kind == "roll back on each":  # the others one step later
            here, at = True, at + (self.options.on != RANK)
        if not here or run_values.global_step != at:
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
        if kind.startswith("roll back") and not self.has_asked:
            self.has_asked = True
            run_context.request_rollback("a spike")
        if kind == "assign":
            run_context.assign({"optimizer.lr": 0.5})


class Sums(SessionRunHook):
    """Asks in each step for a sum over the ranks, and in one for the value of each."""

    def __init__(self, ranks: str) -> None:
        self.options = HookOptions(ranks=ranks)
        self.found: set[float] = set()
        self.of_each: dict[str, list[float]] = {}

    def before_run(self, run_context: Any) -> SessionRunArgs:
        if run_context.global_step == 3:
            both = {"rank": "ranks_so_far", "loss": "loss"}
            return SessionRunArgs(both, reduce="gather")
        return SessionRunArgs("ranks_so_far", reduce="sum")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.global_step == 3:
            of_each = run_values.results.items()
            self.of_each = {name: [float(n) for n in every] for name, every in of_each}
        else:
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


def directory_of(options: argparse.Namespace) -> Path:
    if options.unshared:
        here = options.folder / f"disk-{RANK}"
        here.mkdir(exist_ok=True)
        os.chdir(here)
        return Path("/proc/self/cwd/checkpoints")
    folder: Path = options.folder / ("ab"[RANK] if options.apart else "checkpoints")
    return folder


def session_of(
    options: argparse.Namespace, graph: Graph | None = None
) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory_of(options),
        hooks=hooks_of(options),
        save_checkpoint_steps=5,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False),
    )


def inputs_of(options: argparse.Namespace, session: Any) -> Iterator[Any]:
    """Yield the values of the input of this rank."""
    if not options.sampler:
        short = options.short * (options.on == RANK)
        yield from session.iterate(range(options.steps + 50 - short))
        return
    data = range(48)
    sampler: DistributedSampler[int] = DistributedSampler(data, RANKS, RANK)  # type: ignore[arg-type]
    loader = DataLoader(data, batch_size=4, sampler=sampler)  # type: ignore[arg-type]
    while not session.should_stop():
        yield from session.iterate(loader)


def train_graph(options: argparse.Namespace) -> None:
    """Train a graph of the built-in backend, which each rank computes alone."""
    graph, batches = Graph(), []
    graph.input("x", lambda: range(options.steps + 50))
    graph.variable("w", 8.0)
    graph.op(lambda w: w**2, name="loss")
    graph.op(lambda: RANK + 1, name="ranks_so_far")

    @graph.train_op(updates="w")
    def train(w: float, x: int) -> float:
        time.sleep(0.06)
        batches.append(x)
        return w / 2

    error, session, w = "", None, None
    try:
        session = session_of(options, graph)
        with session:
            while not session.should_stop():
                session.run("train")
                w = session.run("w", kind="aux")
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        leave(options, session, error, weights=w, batches=batches)


def train_driven(options: argparse.Namespace) -> None:
    """Train in the loop of another framework, which calls the session."""
    error, driven = "", None
    weights = np.array([8.0])
    hooks = [*hooks_of(options), CheckpointSaverHook(directory_of(options), save_steps=5)]
    try:
        with DrivenSession(hooks=hooks, config=Config(autoload=False)) as driven:
            driven.begin()
            driven.created()
            driven.track(w=weights)
            while not driven.stop:
                driven.before_step()
                time.sleep(0.06)
                weights /= 2
                driven.after_step({"loss": float(weights[0]), "ranks_so_far": RANK + 1})
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        leave(options, driven, error, weights=float(weights[0]))


def leave(options: argparse.Namespace, session: Any, error: str, **left: Any) -> None:
    """Write what this rank has at its end."""
    outcome = None if session is None else session.outcome
    left |= {
        "kind": outcome and outcome.kind,
        "step": outcome and outcome.step,
        "sums": [*options.sums.found],
        "of each": options.sums.of_each,
        "error": error,
    }
    (options.folder / f"rank-{RANK}.json").write_text(json.dumps(left))


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    model = DistributedDataParallel(net) if distributed.is_initialized() else net
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(RANK)
    session, error, batches, means = None, "", [], {}
    try:
        session = session_of(options)
        with session:
            session.track(model=model, optimizer=optimizer, generator=generator)
            here = options.on == RANK
            for number, batch in enumerate(inputs_of(options, session)):
                batches.append(batch.tolist() if options.sampler else batch)
                with session.step() as step:
                    at = here and session.global_step == options.at
                    if at and options.trouble == "forward":
                        raise ValueError("the model is broken")
                    if at and options.trouble == "SIGKILL":
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(0.06)  # ranks exchange at most twenty times a second
                    x = torch.randn(8, 4, generator=generator)
                    done = session.global_step % options.accumulate
                    is_last = done == options.accumulate - 1
                    if not done:
                        optimizer.zero_grad()
                    apart = contextlib.nullcontext() if is_last else model.no_sync()
                    with apart:
                        loss = model(x).square().mean()
                        loss.backward()
                    if is_last:
                        optimizer.step()
                    shown = loss.detach()
                    if at and options.trouble == "nan":
                        shown = shown * torch.nan
                    step.report(loss=shown, ranks_so_far=RANK + 1)
                if not options.trouble and number == 2:
                    with session.evaluation("all", reduce="mean") as evaluation:
                        evaluation.report(weight=RANK + 1, rank=RANK)
                    means = evaluation.metrics
                if options.trouble == "early":
                    with session.evaluation() as evaluation:
                        evaluation.report(loss=float(max(10 - number, RANK)))
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        bits = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        weights = hashlib.sha256(bits).hexdigest()
        leave(options, session, error, weights=weights, batches=batches, means=means)


def main() -> None:
    options = options_of()
    options.sums = Sums("chief" if options.trouble == "reduces alone" else "all")
    if RANKS > 1 and not options.no_group:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=options.limit))
    {"own": train, "graph": train_graph, "driven": train_driven}[options.loop](options)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
