"""TensorFlow's rules for SecondOrStepTimer: at which steps something periodic is due."""

from __future__ import annotations

import inspect
import time

import pytest

from hookbus import SecondOrStepTimer


def triggered(step: int, **period: float) -> SecondOrStepTimer:
    """Return a timer that triggered at a step."""
    timer = SecondOrStepTimer(**period)
    timer.update_last_triggered_step(step)
    return timer


def test_seconds_come_first_and_both_are_none_by_default():
    """The arguments are every_secs and every_steps."""
    parameters = list(inspect.signature(SecondOrStepTimer).parameters.values())[:2]
    given = [(parameter.name, parameter.default) for parameter in parameters]
    assert given == [("every_secs", None), ("every_steps", None)]


def test_no_period_is_a_value_error():
    """One of the two is needed."""
    told = r"^Either every_secs or every_steps should be provided\.$"
    with pytest.raises(ValueError, match=told):
        SecondOrStepTimer()


@pytest.mark.parametrize("periods", [(2.0, 10), (0, 10), (2.0, 0), (0, 0)])
def test_both_periods_are_a_value_error(periods):
    """Both are there if neither is None, and 0 is not None."""
    told = r"^Can not provide both every_secs and every_steps\.$"
    with pytest.raises(ValueError, match=told):
        SecondOrStepTimer(*periods)


@pytest.mark.parametrize("name", ["every_secs", "every_steps"])
@pytest.mark.parametrize("period", [0, -3])
def test_the_value_of_a_period_is_not_checked(name, period):
    """Zero and less are periods as well."""
    assert triggered(5, **{name: period}).should_trigger_for_step(6)


@pytest.mark.parametrize("period", [{"every_secs": 1e9}, {"every_steps": 10**9}])
@pytest.mark.parametrize("step", [0, 1, 123])
def test_any_step_is_due_before_the_first_trigger(period, step):
    """However long the period is."""
    assert SecondOrStepTimer(**period).should_trigger_for_step(step)


@pytest.mark.parametrize("period", [{"every_secs": 2}, {"every_steps": 0}])
def test_the_step_that_triggered_last_is_never_due(period, clock):
    """Not even when the period is over."""
    timer = triggered(1, **period)
    clock[0] += 10
    assert not timer.should_trigger_for_step(1)
    assert timer.should_trigger_for_step(2)


def test_seconds_are_over_at_exactly_the_period(clock):
    """And not a moment earlier, at whatever step."""
    timer, found = triggered(1, every_secs=2), []
    for seconds in (0.0, 1.5, 1.999, 2.0, 2.5):
        clock[0] = 1000.0 + seconds
        found.append(timer.should_trigger_for_step(2))
    assert found == [False, False, False, True, True]


def test_steps_are_over_at_exactly_the_period():
    """Every 3, triggered at 1: 4 is the first that is due."""
    timer = triggered(1, every_steps=3)
    due = [step for step in range(8) if timer.should_trigger_for_step(step)]
    assert due == [4, 5, 6, 7]


def test_asking_changes_nothing():
    """Whatever is asked, only an update says that it was done."""
    timer = SecondOrStepTimer(every_steps=3)
    assert all(timer.should_trigger_for_step(step) for step in (1, 2, 2, 1))
    assert timer.last_triggered_step() is None


@pytest.mark.parametrize(
    ("period", "due"), [({"every_secs": 0}, [3, 4, 6, 7]), ({"every_steps": 0}, [6, 7])]
)
def test_which_steps_a_period_of_zero_means(period, due, clock):
    """Of seconds each one but the last, earlier ones as well; of steps the later ones."""
    timer = triggered(5, **period)
    assert [step for step in range(3, 8) if timer.should_trigger_for_step(step)] == due


@pytest.mark.parametrize("period", [{"every_secs": 10}, {"every_steps": 10}])
def test_the_first_update_tells_nothing(period):
    """No earlier run exists to count from."""
    assert SecondOrStepTimer(**period).update_last_triggered_step(7) == (None, None)


@pytest.mark.parametrize("period", [{"every_secs": 10}, {"every_steps": 10}])
def test_an_update_tells_the_seconds_and_steps_since_the_one_before(period, clock):
    """Of whatever the period is, due or not; steps may well go back."""
    timer = triggered(7, **period)
    clock[0] += 2.5
    assert timer.update_last_triggered_step(12) == (2.5, 5)
    clock[0] += 0.5
    assert timer.update_last_triggered_step(10) == (0.5, -2)


def test_the_period_counts_from_the_last_update(clock):
    """By step and by time, whether that update was due or not."""
    steps, seconds = triggered(1, every_steps=3), triggered(1, every_secs=3)
    clock[0] += 2
    for timer in (steps, seconds):
        timer.update_last_triggered_step(2)
    clock[0] += 2
    assert [timer.should_trigger_for_step(4) for timer in (steps, seconds)] == [False] * 2
    clock[0] += 1
    assert [timer.should_trigger_for_step(5) for timer in (steps, seconds)] == [True] * 2


def test_the_last_triggered_step_can_be_read():
    """None before the first update."""
    timer = SecondOrStepTimer(every_steps=3)
    assert timer.last_triggered_step() is None
    for step in (4, 2):
        timer.update_last_triggered_step(step)
        assert timer.last_triggered_step() == step


@pytest.mark.parametrize("period", [{"every_secs": 10}, {"every_steps": 10}])
def test_a_reset_forgets_step_and_time(period, clock):
    """The timer is as one that never triggered."""
    timer = triggered(4, **period)
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(4)
    clock[0] += 5
    assert timer.update_last_triggered_step(5) == (None, None)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_makes_nothing_due(hours, clock, monkeypatch):
    """TensorFlow reads the time of day; set back by an hour, it is silent for an hour."""
    timer = triggered(1, every_secs=2)
    set_to = time.time() + 3600 * hours
    monkeypatch.setattr("time.time", lambda: set_to)
    clock[0] += 1.5
    assert not timer.should_trigger_for_step(2)
    clock[0] += 0.5
    assert timer.should_trigger_for_step(2)
