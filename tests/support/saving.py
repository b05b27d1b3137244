"""Checkpoints that tests wait for, and a clock whose time passes while one waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hookbus import Config, Graph, MonitoredTrainingSession

RUN = Path("run")


def counting() -> Graph:
    """Return a graph whose train op counts in n; ``score`` is ten times that."""
    graph = Graph()
    graph.variable("n", 0)
    graph.input("batch", lambda: [1.0, 2.0, 6.0])
    graph.op(lambda n: n * 10, name="score")
    graph.op(lambda batch, n: batch + n, name="shifted")
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def quiet(**fields: Any) -> Config:
    """Return a configuration without plugins that nobody names, and without a header."""
    return Config(autoload=False, header=False, **fields)


def saving(
    directory: str | Path, every: int = 1, config: Config | None = None, **options: Any
) -> MonitoredTrainingSession:
    """Return a session of a custom loop that does nothing but save every few steps."""
    return MonitoredTrainingSession(
        checkpoint_dir=directory,
        save_checkpoint_steps=every,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=config or quiet(),
        **options,
    )


def save(step: int) -> Path:
    """Train up to a step; return the checkpoint of it, the only one that stays."""
    with MonitoredTrainingSession(
        counting(),
        checkpoint_dir=RUN,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    ) as session:
        while session.global_step < step:
            session.run("train")
    return RUN / f"ckpt-{step}"


@attrs.define
class Waiting:
    """A clock that only waiting moves, and what is done when it shows a time.

    Attributes:
        now: what it shows, in seconds.
        later: time to what is done then.
    """

    now: float = 1000.0
    later: dict[float, Callable[[], object]] = attrs.field(factory=dict)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Have something done when so many seconds are over."""
        self.later[self.now + seconds] = act

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds
        for time in sorted(time for time in self.later if time <= self.now):
            self.later.pop(time)()

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the real clock."""
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.sleep)
