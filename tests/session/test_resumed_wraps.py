"""A run with wraps, killed at any step and resumed, ends as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredTrainingSession,
    SessionRunHook,
    latest_checkpoint,
)
from tests.support.handlers import handlers
from tests.support.profiles import cases

STEPS = 20
Interrupt: TypeAlias = Callable[[str, int], None]
OFF = Config(autoload=False, header=False)


@attrs.define(eq=False)
class MixHook(SessionRunHook):
    """Mixes each batch with one of an earlier step; draws from all generators there are."""

    draw: Any = attrs.field(factory=lambda: np.random.default_rng(5))
    last: Any = None

    def begin(self, graph) -> None:
        graph.wrap("batch", self.mixed, reads={"step": "global_step"})

    def mixed(self, batch, step):
        x, y = batch
        part = random.random() * np.random.random() + self.draw.random()
        last, self.last = self.last, x
        return (x if last is None else part * x + (1 - part) * last) + step, y

    def state_dict(self):
        return {"draw": self.draw.bit_generator.state, "last": self.last}

    def load_state_dict(self, state) -> None:
        self.draw.bit_generator.state = state["draw"]
        self.last = state["last"]


def batches():
    draw = np.random.default_rng(7)
    for _ in range(STEPS):
        x = draw.normal(size=4)
        yield x, float(x.sum())


def updated(w, batch):
    x, y = batch
    return w - 0.05 * (float(x @ w) - y) * x


def by_hand() -> bytes:
    """Train without hookbus."""
    random.seed(1)
    np.random.seed(1)
    hook, w = MixHook(), np.zeros(4)
    for step, batch in enumerate(batches()):
        w = updated(w, hook.mixed(batch, step))
    return w.tobytes()


def in_a_graph(directory: Path, interrupt: Interrupt) -> bytes:
    """Train in a graph; *interrupt* is called in each step, as an op of it."""
    random.seed(1)
    np.random.seed(1)
    graph = Graph()
    graph.input("batch", batches)
    graph.variable("w", np.zeros(4))

    @graph.train_op(updates="w")
    def train(w, batch, global_step):
        interrupt("step", global_step + 1)
        return updated(w, batch)

    with session_in(directory, graph) as session:
        for _ in session.loop():
            pass
        w: np.ndarray = session.run("w", kind="aux")
    return w.tobytes()


def in_a_custom_loop(directory: Path, interrupt: Interrupt) -> bytes:
    """Train in a custom loop; *interrupt* is called before each step and in it."""
    random.seed(1)
    np.random.seed(1)
    with session_in(directory) as session:
        w = session.track(w=np.zeros(4))
        for batch in session.iterate(batches(), name="batch"):
            interrupt("batch", session.global_step + 1)
            with session.step():
                interrupt("step", session.global_step + 1)
                w[...] = updated(w, batch)
    result: np.ndarray = w
    return result.tobytes()


def session_in(directory: Path, graph: Graph | None = None) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=[MixHook()],
        save_checkpoint_steps=3,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=OFF,
    )


def never(when: str, step: int) -> None:
    """Interrupt nothing."""


def killed(train: Callable[..., bytes], directory: Path, when: str, at: int) -> None:
    """Train in a child process that is killed in one step."""

    def kill(now: str, step: int) -> None:
        if (now, step) == (when, at):
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            train(directory, kill)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def terminated(train: Callable[..., bytes], directory: Path, when: str, at: int) -> None:
    """Train until SIGTERM comes in one step; a checkpoint is saved then."""

    def terminate(now: str, step: int) -> None:
        if (now, step) == (when, at):
            signal.raise_signal(signal.SIGTERM)

    with handlers(signal.default_int_handler), pytest.raises(SystemExit):
        train(directory, terminate)
    newest = latest_checkpoint(directory)
    assert newest is not None
    assert newest.global_step == at


@pytest.mark.parametrize("train", [in_a_graph, in_a_custom_loop])
def test_a_wrap_by_a_hook_trains_like_the_same_code_by_hand(train, tmp_path):
    """Bit for bit, random numbers included."""
    assert train(tmp_path, never) == by_hand()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("interrupted", [killed, terminated])
@pytest.mark.parametrize("at", cases([2, 10, 19], range(1, STEPS)))
@pytest.mark.parametrize(
    ("train", "when"),
    [(in_a_graph, "step"), (in_a_custom_loop, "step"), (in_a_custom_loop, "batch")],
)
def test_an_interrupted_training_draws_the_same_numbers(
    train, when, at, interrupted, tmp_path
):
    """Bit for bit: those that the wrap drew for the interrupted step as well."""
    interrupted(train, tmp_path, when, at)
    assert train(tmp_path, never) == by_hand()
