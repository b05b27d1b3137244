"""SecondOrStepTimer: when something periodic is due, by steps or by seconds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import SecondOrStepTimer, UsageError


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    still = Clock()
    monkeypatch.setattr(time, "monotonic", still.monotonic)
    return still


def test_neither_period_is_an_error() -> None:
    """A timer without a period is refused, as a ValueError too."""
    with pytest.raises(
        UsageError, match=r"Either every_secs or every_steps should"
    ) as info:
        SecondOrStepTimer()
    assert isinstance(info.value, ValueError)


def test_both_periods_are_an_error() -> None:
    """Seconds and steps exclude each other, even where one is 0."""
    with pytest.raises(
        UsageError, match=r"Can not provide both every_secs and every_steps"
    ):
        SecondOrStepTimer(every_secs=0, every_steps=5)


@pytest.mark.parametrize("period", [{"every_secs": 1e9}, {"every_steps": 10**9}])
def test_the_first_step_is_always_due(period: dict[str, int]) -> None:
    """A timer that never triggered is due at any step."""
    timer = SecondOrStepTimer(**period)
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(0)
    assert timer.should_trigger_for_step(123)


def test_asking_records_nothing() -> None:
    """Only update_last_triggered_step changes what is due."""
    timer = SecondOrStepTimer(every_steps=2)
    assert [timer.should_trigger_for_step(5) for _ in range(3)] == [True, True, True]
    assert timer.last_triggered_step() is None


@settings(deadline=None)
@given(
    every=st.integers(-3, 20),
    last=st.integers(-50, 50),
    step=st.integers(-50, 100),
)
def test_steps_are_counted_from_the_last_trigger(every: int, last: int, step: int) -> None:
    """By steps, due is each other step from the last trigger plus the period on."""
    timer = SecondOrStepTimer(every_steps=every)
    timer.update_last_triggered_step(last)
    assert timer.should_trigger_for_step(step) is (step != last and step >= last + every)


def test_seconds_are_counted_from_the_last_trigger(clock: Clock) -> None:
    """By seconds, due is the first new step at which the period has passed."""
    timer = SecondOrStepTimer(every_secs=10)
    timer.update_last_triggered_step(1)

    clock.now += 9.5
    assert not timer.should_trigger_for_step(2)
    clock.now += 0.5
    assert timer.should_trigger_for_step(2)
    assert not timer.should_trigger_for_step(1)


def test_zero_seconds_means_every_other_step(clock: Clock) -> None:
    """With 0 seconds each step but the last triggered is due, earlier ones too."""
    timer = SecondOrStepTimer(every_secs=0)
    timer.update_last_triggered_step(5)
    assert timer.should_trigger_for_step(4)
    assert not timer.should_trigger_for_step(5)
    assert timer.should_trigger_for_step(6)


def test_an_update_tells_how_long_ago_the_last_one_was(clock: Clock) -> None:
    """Update returns (None, None) first, then seconds and steps since the last one."""
    timer = SecondOrStepTimer(every_steps=1)
    assert timer.update_last_triggered_step(3) == (None, None)
    clock.now += 2.5
    assert timer.update_last_triggered_step(7) == (2.5, 4)
    assert timer.last_triggered_step() == 7


def test_reset_forgets_everything(clock: Clock) -> None:
    """After reset the timer is as new."""
    timer = SecondOrStepTimer(every_secs=100)
    timer.update_last_triggered_step(3)
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(3)
    assert timer.update_last_triggered_step(4) == (None, None)
