"""SIGTERM in the last step of a run, and the start after it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import Config, Estimator, EstimatorSpec, Graph, MonitoredSession, learning
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)
STEPS = 3


class Sends:
    """Sends SIGTERM at one moment of the last step, or of the end, in one session."""

    def __init__(self, moment: str) -> None:
        self.moment, self.step = moment, 0

    def at(self, moment: str) -> None:
        if moment == self.moment and self.step >= STEPS:
            self.moment = ""
            os.kill(os.getpid(), signal.SIGTERM)

    def before_run(self, run_context):
        self.step = run_context.global_step + 1
        self.at("before_run")

    def after_run(self):
        self.at("after_run")

    @hookbus.hookimpl
    def before_save(self):
        self.at("before_save")

    @hookbus.hookimpl
    def after_save(self):
        self.at("after_save")

    def end(self):
        self.at("end")

    @hookbus.hookimpl
    def finished(self):
        self.at("finished")


MOMENTS = ["before_run", "op", "after_run", "before_save", "after_save", "end", "finished"]


def counting(hook: Sends, ran: list[int], length: int | None = None) -> Graph:
    """Return a graph that notes its steps; its input ends after *length* values."""
    graph = Graph()
    graph.variable("w", 0)
    values = itertools.count if length is None else (lambda: range(length))
    graph.input("batch", values)

    @graph.train_op(updates="w", outputs=["loss"])
    def train(w, batch):
        hook.at("op")
        ran.append(batch)
        return w + 1, {"loss": 0.0 if w + 1 == STEPS else 1.0}

    return graph


def looped(hook: Sends, ran: list[int], *others: Any, length: int | None = None) -> None:
    """Train in a session, in a loop that ends when a hook or the input does."""
    graph = counting(hook, ran, length)
    saver = CheckpointSaverHook("runs", save_steps=100)
    hooks = [*others, saver, hook]
    creator = hookbus.ChiefSessionCreator(graph, checkpoint_dir="runs")
    with MonitoredSession(None, creator, hooks, config=OFF) as session:
        for _ in session.loop():
            pass


def stop_at_step(hook: Sends, ran: list[int]) -> None:
    """Stop at a step."""
    looped(hook, ran, StopAtStepHook(last_step=STEPS))


def num_steps(hook: Sends, ran: list[int]) -> None:
    """Stop after a number of steps."""
    looped(hook, ran, StopAtStepHook(num_steps=STEPS))


def early_stopping(hook: Sends, ran: list[int]) -> None:
    """Stop when the loss is low."""
    checks: Any = {"run_every_secs": None, "run_every_steps": 1}
    looped(hook, ran, EarlyStoppingHook("loss", mode="lower", threshold=0.5, **checks))


def end_of_input(hook: Sends, ran: list[int]) -> None:
    """Train until the input ends."""
    looped(hook, ran, length=STEPS)


def in_one_call(hook: Sends, ran: list[int]) -> None:
    """Train with learning.train()."""
    given: Any = {"number_of_steps": STEPS, "hooks": [hook], "config": OFF}
    learning.train("train", "runs", graph=counting(hook, ran), loss="loss", **given)


def estimator(hook: Sends, ran: list[int]) -> None:
    """Train with Estimator.train(max_steps)."""

    def model_fn(features, mode):
        graph = features.graph
        graph.variable("w", 0)

        @graph.train_op(updates="w", outputs=["loss"])
        def train(w):
            hook.at("op")
            ran.append(w)
            return w + 1, {"loss": 1.0}

        return EstimatorSpec(mode, loss="loss", train_op="train")

    made = Estimator(model_fn, "runs")
    made.train(lambda: itertools.count(), hooks=[hook], max_steps=STEPS)


WAYS = [stop_at_step, num_steps, early_stopping, end_of_input, in_one_call, estimator]


@pytest.mark.parametrize("moment", cases(["op", "end"], MOMENTS))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_start_after_it_does_no_step_more(
    way: Callable[[Sends, list[int]], None], moment, ctrl_c
):
    """The last step was done and saved, and the training has finished."""
    ran: list[int] = []
    with pytest.raises(SystemExit) as caught:
        way(Sends(moment), ran)
    assert caught.value.code == 75
    del caught
    assert len(ran) == STEPS
    way(Sends("never"), ran)
    assert len(ran) == STEPS
    assert max(path.name for path in Path("runs").glob("ckpt-*")) == f"ckpt-{STEPS}"
