"""SecondOrStepTimer: when something periodic is due, by steps or by seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import SecondOrStepTimer, UsageError, resumes

CUT_SHORT = [None, "interrupted", "preempted"]
OVER = ["completed", "stopped", "end_of_input", "failed"]
PERIODS = [{"every_secs": 10}, {"every_steps": 10}]


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


def resumed(state: Mapping[str, Any], ended: str | None = None, **period: float) -> Any:
    """Return a new timer that was given a state."""
    timer = SecondOrStepTimer(**period)
    timer.load_state_dict(state, ended)
    return timer


@pytest.mark.parametrize("ended", [*CUT_SHORT, *OVER])
def test_which_ends_cut_a_session_short(ended: str | None) -> None:
    """A kill, of which nothing is known, Ctrl-C and a preemption; none that was meant."""
    assert resumes(ended) is (ended in CUT_SHORT)


@pytest.mark.parametrize("ended", CUT_SHORT)
def test_a_period_in_steps_goes_on_where_it_was_cut_short(ended: str | None) -> None:
    """The next step that is due is the one that would have been."""
    before = SecondOrStepTimer(every_steps=10)
    before.update_last_triggered_step(4)
    timer = resumed(before.state_dict(), ended, every_steps=10)
    assert timer.last_triggered_step() == 4
    assert [timer.should_trigger_for_step(step) for step in (13, 14)] == [False, True]


@pytest.mark.parametrize("ended", CUT_SHORT)
def test_a_period_in_seconds_goes_on_without_the_pause(
    clock: Clock, ended: str | None
) -> None:
    """The rest of the period stays, however long nothing ran."""
    before = SecondOrStepTimer(every_secs=10)
    before.update_last_triggered_step(4)
    clock.now += 7
    state = before.state_dict()
    clock.now += 3600
    timer = resumed(state, ended, every_secs=10)
    clock.now += 2.5
    assert not timer.should_trigger_for_step(5)
    clock.now += 0.5
    assert timer.should_trigger_for_step(5)
    assert timer.update_last_triggered_step(5) == (10, 1)


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("ended", OVER)
def test_a_period_begins_anew_after_a_session_that_was_over(
    period: dict[str, float], ended: str
) -> None:
    """The first step is due then, as in a new timer."""
    before = SecondOrStepTimer(**period)
    before.update_last_triggered_step(4)
    timer = resumed(before.state_dict(), ended, **period)
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(5)


@pytest.mark.parametrize("period", PERIODS)
def test_a_timer_that_never_triggered_keeps_nothing(period: dict[str, float]) -> None:
    """After it, too, the first step is due."""
    state = SecondOrStepTimer(**period).state_dict()
    assert state == {"step": None}
    assert resumed(state, **period).should_trigger_for_step(0)


def test_the_state_of_a_period_in_steps_does_not_depend_on_the_clock(clock: Clock) -> None:
    """Two equal training runs keep equal checkpoints."""
    timer = SecondOrStepTimer(every_steps=10)
    timer.update_last_triggered_step(4)
    state = timer.state_dict()
    clock.now += 100
    assert timer.state_dict() == state == {"step": 4}


@pytest.mark.parametrize("period", PERIODS)
def test_asking_for_the_state_changes_nothing(
    clock: Clock, period: dict[str, float]
) -> None:
    """A checkpoint is no trigger."""
    timer = SecondOrStepTimer(**period)
    timer.update_last_triggered_step(4)
    clock.now += 3
    timer.state_dict()
    clock.now += 7
    assert timer.should_trigger_for_step(14)
    assert timer.update_last_triggered_step(14) == (10, 10)


@pytest.mark.parametrize("period", PERIODS)
def test_a_timer_that_has_triggered_keeps_what_it_knows(
    clock: Clock, period: dict[str, float]
) -> None:
    """In a recovery the session goes back, and what it did before stays done."""
    timer = SecondOrStepTimer(**period)
    timer.update_last_triggered_step(4)
    state = timer.state_dict()
    clock.now += 10
    timer.update_last_triggered_step(14)
    timer.load_state_dict(state, None)
    assert timer.last_triggered_step() == 14
    assert not timer.should_trigger_for_step(15)


def test_a_period_may_be_of_the_other_kind_after_a_resume(clock: Clock) -> None:
    """Seconds count from the resume where none were kept; steps from the last trigger."""
    steps, seconds = (SecondOrStepTimer(**period) for period in reversed(PERIODS))
    steps.update_last_triggered_step(4)
    seconds.update_last_triggered_step(4)
    clock.now += 7
    by_time = resumed(steps.state_dict(), every_secs=10)
    by_step = resumed(seconds.state_dict(), every_steps=10)
    clock.now += 9.5
    assert not by_time.should_trigger_for_step(5)
    clock.now += 0.5
    assert by_time.should_trigger_for_step(5)
    assert [by_step.should_trigger_for_step(step) for step in (13, 14)] == [False, True]
