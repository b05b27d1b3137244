"""Tests the last step that hooks expect of a loop over epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import Config, MonitoredTrainingSession, SessionRunHook

QUIET = Config(autoload=False, header=False)


class Expects(SessionRunHook):
    """Notes the last step that is expected in each step, and stops at one."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.last: list[int | None] = []

    def before_run(self, run_context: Any) -> None:
        self.last.append(run_context.last_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == self.stop:
            run_context.request_stop("cut")


def train(
    epochs: int = 3, values: Any = range(4), steps: int = 1, passes: int = 1, stop: int = 99
) -> list[int | None]:
    """Train in a directory, and return the steps that were expected."""
    hook, folder = Expects(stop), Path("run")
    with MonitoredTrainingSession(
        checkpoint_dir=folder, hooks=[hook], config=QUIET
    ) as session:
        session.track(w=np.zeros(1))
        for _ in session.epochs(epochs):
            for _ in range(passes):
                for _ in session.iterate(values):
                    for _ in range(steps):
                        with session.step():
                            pass
    return hook.last


def test_it_is_that_of_the_last_epoch() -> None:
    """It is known in the first step, and does not change."""
    assert train() == [12] * 12


def test_a_value_may_have_several_steps() -> None:
    """The first value shows how many, and all others count on it."""
    assert train(steps=2)[2:] == [24] * 22


def test_a_resumed_run_expects_the_same() -> None:
    """It begins in the middle of an epoch."""
    first = train(stop=6)
    assert first == [12] * 6
    assert train() == [12] * 6


def test_several_passes_in_an_epoch_are_not_expected() -> None:
    """From the second one on it is known that the sum is not; the last pass has an end."""
    last = train(epochs=2, passes=2)
    assert last[4:8] == [None] * 4
    assert last[-1] == 16


@pytest.mark.parametrize("values", [iter(range(4)), (n for n in range(4))])
def test_an_input_without_a_length_has_no_end(values: Any) -> None:
    """Nobody knows it."""
    assert train(epochs=1, values=values) == [None] * 4
