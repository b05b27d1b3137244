"""Tests the clock of a session, which hooks get in ``begin``."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Config, MonitoredSession, SessionRunHook
from hookbus.bus.clock import TrainingClock
from tests.support.watching import clock as clock


def fail(clock: list[float]) -> None:
    """Raise an error after ten seconds."""
    clock[0] += 10
    raise KeyError


def test_it_stands_still_in_blocks(clock: list[float]) -> None:
    """The outermost block counts, also if an error leaves it."""
    measured = TrainingClock()
    began = measured.seconds()
    clock[0] += 1
    with measured.paused():
        clock[0] += 10
        with measured.paused():
            clock[0] += 10
        clock[0] += 10
        assert measured.is_paused
        assert measured.seconds() - began == 1
    with pytest.raises(KeyError), measured.paused():
        fail(clock)
    clock[0] += 1
    assert not measured.is_paused
    assert measured.seconds() - began == 2


def test_an_evaluation_that_fails_starts_it_again(clock: list[float]) -> None:
    """A program that goes on after the error is measured further."""

    class Takes(SessionRunHook):
        def begin(self, clock: Any) -> None:
            self.clock = clock

    hook = Takes()
    config = Config(autoload=False, header=False)
    with MonitoredSession(hooks=[hook], config=config) as session:
        began = hook.clock()
        with pytest.raises(KeyError), session.evaluation():
            fail(clock)
        with pytest.raises(KeyError), session.step(kind="eval"):
            fail(clock)
        clock[0] += 1
        assert hook.clock() - began == 1
