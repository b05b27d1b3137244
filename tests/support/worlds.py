"""Provides the model of random programs, and what a session shares with its caller."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from hookbus import (
    AbortedError,
    Config,
    DrivenSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
)
from hookbus.backend import LiveValue
from tests.support.askers import terminate
from tests.support.roles import Briefly, Log, Role, Stage, cast
from tests.support.thread_library import Cell

QUIET = Config(autoload=False, header=False)
SAVE_STEPS = 5
VALUES = range(1, 60)
ONLY_READ = range(100, 160)
"""The values of the input that only hooks read."""


@functools.cache
def saving() -> Config:
    """Return a configuration in which a checkpoint_dir saves every few steps."""
    words = [f"--checkpoint-saver-save-steps={SAVE_STEPS}"]
    words += ["-p no:summary-saver", "-p no:step-counter"]
    flags = {"HOOKBUS_ADDOPTS": " ".join(words)}
    return attrs.evolve(Config.from_environment(flags), autoload=False, header=False)


@attrs.frozen(repr=False)
class Program(Briefly):
    """A random program.

    Attributes:
        roles: its hooks.
        events: what its caller does, one after the other.
        saves: whether it saves checkpoints.
        goes_on: whether the caller goes on after an error.
        budget: whether the time of hooks is measured.
        looks: whether the caller looks at what is left in the end, which takes values.
    """

    roles: tuple[Role, ...]
    events: tuple[str, ...]
    saves: bool = False
    goes_on: bool = True
    budget: bool = False
    looks: bool = True


@attrs.define(eq=False)
class World:
    """One session of a program, and what its model and its caller share.

    Attributes:
        program: the program.
        place: where it saves; None for nowhere.
        rank: the number of this process.
        log: what hooks and the caller see.
        asked: the names that hooks fetch in the step that is under way.
        cell: an object with a value that exists in some steps only.
        number: the number of the event that is under way.
        fails, is_lost: whether the next op fails, or loses its machine.
        compiled: what the session has compiled; None for nothing.
    """

    program: Program
    place: Path | None
    rank: int = 0
    log: Log = attrs.field(factory=list)
    asked: set[str] = attrs.field(factory=set)
    cell: Cell = attrs.field(factory=Cell)
    number: int = 0
    fails: bool = False
    is_lost: bool = False
    compiled: str | None = None

    def hooks(self, compiled: bool) -> list[Any]:
        """Return the hooks of a session, with one that saves."""
        return cast(self.program.roles, Stage(self.log, self.asked, compiled))

    def session(self, graph: Graph | None, compiled: bool) -> MonitoredSession:
        """Return a session that saves every few steps, if the program saves."""
        return MonitoredTrainingSession(
            graph,
            checkpoint_dir=self.place,
            hooks=self.hooks(compiled),
            save_checkpoint_steps=SAVE_STEPS,
            save_summaries_steps=None,
            log_step_count_steps=None,
            recovery=Recovery(first_wait=0),
            config=QUIET,
            hook_budget=0.99 if self.program.budget else None,
        )

    def driven(self, graph: Graph | None, compiled: bool) -> DrivenSession:
        """Return such a session for a loop that drives it."""
        config = QUIET if self.place is None else saving()
        goes_back = graph is None and self.place is not None
        return DrivenSession(
            graph,
            self.hooks(compiled),
            self.place,
            config=config,
            serves=("skip", "feed", "rollback") if goes_back else ("skip", "feed"),
        )

    def note(self, *seen: Any) -> None:
        """Note what the caller sees."""
        self.log.append(("caller", *seen))

    def do(self, event: str, acts: Callable[[str], None]) -> None:
        """Do what the caller does, and note the error that it gets."""
        _clock.now += 1.0
        self.asked.clear()
        self.fails, self.is_lost = event == "fails", event == "lost"
        self.number += 1
        self.cell.gradient = None if event == "no gradient" else float(self.number)
        if event == "signal":
            terminate()
            return
        if not self.program.goes_on:
            acts(event)
            return
        try:
            acts(event)
        except Exception as error:
            self.note(event, *self.told(error))

    def told(self, error: BaseException) -> tuple[Any, ...]:
        """Return all that an error tells."""
        texts = [str(error), *getattr(error, "__notes__", ())]
        if self.place is not None:
            texts = [text.replace(str(self.place), "PLACE") for text in texts]
        return type(error).__name__, *texts

    def check(self) -> None:
        """Fail as an op does, if this step is to."""
        if self.fails:
            raise KeyError("op")
        if self.is_lost:
            self.is_lost = False
            raise AbortedError("lost")

    def end(self, session: Any) -> None:
        """Note how a session has ended, and what it has saved."""
        outcome = session.outcome
        self.log.append(("outcome", None if outcome is None else attrs.astuple(outcome)))
        self.compiled = self.compiled or getattr(session, "compiled_step", None)
        if self.place is not None and self.rank == 0:
            for path in sorted(self.place.glob("ckpt-*/manifest.json")):
                saved = json.loads(path.read_text("utf-8"))
                parts = ("saved_by", "why", "ended", "kept", "values")
                told = [saved[part] for part in parts]
                self.log.append(("saved", path.parent.name, *told))


def graph_of(world: World) -> Graph:
    """Return the model as a graph."""
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.variable("n", 0)
    graph.variable("v", 0.0)
    graph.input("i", lambda: VALUES)
    graph.input("j", lambda: ONLY_READ)
    graph.native("cell.gradient", LiveValue(world.cell.get))
    graph.op(lambda: 1.0 + world.rank, name="x")
    graph.op(lambda w, x, v: float(w.sum() * x + v), name="loss")
    graph.op(lambda global_step: global_step + 0.5, name="s")
    graph.op(lambda i: (i, -i), name="pair", outputs=("a", "b"))

    @graph.train_op(updates=("w", "n"))
    def train(w, n, i, x):
        world.check()
        return {"w": w + i * x, "n": n + 1}

    @graph.train_op(updates="w", outputs=("out",))
    def other(w, x):
        world.check()
        return w - x, {"out": w * 2}

    return graph


@attrs.define(eq=False)
class Numpy:
    """The same model in a loop.

    Attributes:
        w, n, v: its weights, which change in place, the number of updates, and a number
            that hooks assign.
    """

    w: Any = attrs.field(factory=lambda: np.zeros(2))
    n: Any = attrs.field(factory=lambda: np.zeros((), int))
    v: Any = attrs.field(factory=lambda: np.zeros(()))
    _only_read: Iterator[int] = attrs.field(factory=lambda: iter(ONLY_READ))

    def reports(self, step: int, i: int, x: float, asked: set[str]) -> dict[str, Any]:
        """Return the reports of a step: all values are from before its update."""
        j = next(self._only_read) if "j" in asked else -1
        w, n = self.w.copy(), int(self.n)
        loss = float(w.sum() * x + self.v)
        return {"loss": loss, "w": w, "n": n, "s": step + 0.5, "i": i, "j": j, "x": x}

    @property
    def parts(self) -> dict[str, Any]:
        """The part of it that a session tracks."""
        return {"w": self.w, "n": self.n, "v": self.v}

    def update(self, i: int, x: float) -> None:
        """Train."""
        self.w += i * x
        self.n += 1


class _Clock(threading.local):
    """The time, which each rank has for itself."""

    now = 1000.0


_clock = _Clock()


@contextmanager
def turned_clock() -> Iterator[None]:
    """Have each step take a second, and nothing else any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: _clock.now)
        yield
