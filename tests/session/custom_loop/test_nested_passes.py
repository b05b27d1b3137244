"""A checkpoint inside nested passes has the same place, however often the loop was cut."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import numpy as np
import pytest

from hookbus import SessionRunHook, hookimpl
from hookbus.checkpoint.reader import read_checkpoint
from tests.support.profiles import cases
from tests.support.saving import saving
from tests.support.watching import lines as lines

STEPS = 2 * 3 * 2


def train(directory: Path, until: int, places: Places) -> np.ndarray:
    """Train up to a step: epochs, in them tasks, in them rows; all orders are drawn."""
    random.seed(1)
    np.random.seed(1)
    w = np.zeros(1)
    with saving(directory, hooks=[places]) as session:
        session.track(w=w)
        for _ in session.epochs(2):
            for task in session.iterate(random.sample(range(3), 3)):
                scale = random.random()
                for row in session.iterate(np.random.permutation(2)):
                    with session.step():
                        w += scale * (10 * task + row) + np.random.random()
                    if session.global_step == until < STEPS:
                        signal.raise_signal(signal.SIGTERM)
    return w


class Places(SessionRunHook):
    """Keeps the place in the program that each checkpoint has."""

    def __init__(self) -> None:
        self.told: dict[int, str] = {}

    @hookimpl
    def after_save(self, global_step: int, path: Path) -> None:
        self.told[global_step] = repr(read_checkpoint(path).state["passes"])


@pytest.mark.parametrize("until", cases([2, 7], [*range(1, STEPS)]))
@pytest.mark.usefixtures("ctrl_c")
def test_a_loop_that_was_cut_is_at_the_same_places(until, lines):
    """With the same generators; cut again behind them, it has no word about its inputs."""
    places, again = Places(), Places()
    whole = train(Path("whole"), STEPS, places)
    for step in range(until, STEPS, 2):
        with pytest.raises(SystemExit):
            train(Path("cut"), step, again)
    assert train(Path("cut"), STEPS, again).tolist() == whole.tolist()
    assert again.told == places.told
    told = {line["event"] for line in lines if line["log_level"] == "warning"}
    assert told <= {"finishing this step, then saving"}
