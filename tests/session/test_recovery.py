"""Tests how often a preempted session is opened again, and after which waits."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import (
    AbortedError,
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    UnavailableError,
)
from hookbus.lifecycle.recovery import Preemptions, Recovery
from tests.support.handlers import exits_by

OFF = Config(autoload=False)


def at_once() -> bool:
    """Be in a hurry: no test has to wait."""
    return True


def waits_in(text: str) -> list[float]:
    """Return the waits in log lines."""
    return [float(secs) for secs in re.findall(r"wait_secs=([\d.e+]+)", text)]


def tried(recovery: Recovery, times: int) -> Preemptions:
    """Recover so often in a row."""
    preemptions = Preemptions(recovery)
    for _ in range(times):
        preemptions.wait(AbortedError("gone"), at_once)
    return preemptions


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (1.0, [1.0, 2.0, 4.0, 8.0]),
        (0.5, [0.5, 1.0, 2.0, 4.0]),
        (25.0, [25.0, 50.0, 60.0, 60.0]),
        (100.0, [60.0, 60.0, 60.0, 60.0]),
        (0.0, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_each_wait_is_twice_the_one_before_up_to_a_minute(first, expected, capsys):
    """A backend that is away for long is not asked all the time."""
    tried(Recovery(most=4, first_wait=first), 4)
    assert waits_in(capsys.readouterr().err) == expected


@given(st.integers(0, 40), st.floats(0.0, 1e9))
def test_it_gives_up_after_so_many_in_a_row(most, first):
    """The error that was one too many leaves as itself, with a note that says so."""
    preemptions = tried(Recovery(most, first), most)
    error = UnavailableError("still gone")
    with pytest.raises(UnavailableError) as caught:
        preemptions.wait(error, at_once)
    assert caught.value is error
    assert error.__notes__ == [f"hookbus: gave up after {most} recoveries in a row"]
    assert preemptions.in_a_row == most


def test_the_number_of_tries_has_no_upper_limit(capsys):
    """A program that asks for very many gets them; the waits stay at a minute."""
    tried(Recovery(most=3000), 2000)
    assert waits_in(capsys.readouterr().err)[-1] == 60.0


def test_by_default_it_tries_five_times_from_one_second_on(capsys):
    """Five tries, after 1, 2, 4, 8 and 16 seconds."""
    with pytest.raises(AbortedError):
        tried(Recovery(), 6)
    assert waits_in(capsys.readouterr().err) == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_log_line_says_what_happened_and_how_often(capsys):
    """It is a warning with the error, the number in a row and the wait."""
    preemptions = Preemptions(Recovery())
    preemptions.wait(AbortedError("the machine was taken"), at_once)
    preemptions.wait(UnavailableError("no route"), at_once)
    first, second = capsys.readouterr().err.splitlines()
    assert "warning" in first
    assert "why='AbortedError: the machine was taken'" in first
    assert "recovery=1" in first
    assert "why='UnavailableError: no route'" in second
    assert "recovery=2" in second


def test_it_asks_again_and_again_whether_to_hurry():
    """A long wait ends when it must, not when it is over."""
    answers = iter([False, False, True])
    preemptions = Preemptions(Recovery(first_wait=50.0))
    preemptions.wait(AbortedError("gone"), lambda: next(answers))
    assert list(answers) == []


def test_a_wait_that_is_over_is_over():
    """Without a hurry it returns when the time has passed."""
    preemptions = Preemptions(Recovery(first_wait=0.001))
    preemptions.wait(AbortedError("gone"), lambda: False)
    assert preemptions.in_a_row == 1


def failing(fails: Callable[[int], bool]) -> tuple[Graph, list[int]]:
    """Return a graph whose op is preempted in some of its calls, and those calls."""
    graph, calls = Graph(), []
    graph.variable("n", 0)

    @graph.train_op(updates="n")
    def train(n):
        calls.append(n)
        if fails(len(calls)):
            raise AbortedError(f"call {len(calls)}")
        return n + 1

    return graph, calls


def test_a_run_that_leads_further_starts_the_count_anew():
    """Preemptions far apart never add up to giving up."""
    graph, calls = failing(lambda call: call % 2 == 1)
    given = {"recovery": Recovery(most=1, first_wait=0.0), "config": OFF}
    with MonitoredTrainingSession(
        graph, checkpoint_dir="runs", save_checkpoint_steps=1, **given
    ) as session:
        for _ in range(6):
            session.run("train")
    assert len(calls) == 12


def test_a_session_that_gives_up_fails_with_the_last_preemption():
    """``run`` raises it, and the session has failed."""
    graph, calls = failing(lambda call: True)
    recovery = Recovery(most=2, first_wait=0.0)
    session = MonitoredSession(graph, config=OFF, recovery=recovery)
    with pytest.raises(AbortedError, match="call 3") as caught, session:
        session.run("train")
    assert caught.value.__notes__[-1] == "hookbus: gave up after 2 recoveries in a row"
    assert len(calls) == 3
    assert session.outcome.kind == "failed"


def test_a_signal_ends_a_wait(ctrl_c):
    """Nobody waits out a long pause when the session is asked to end."""
    graph, calls = failing(lambda call: call == 1)

    class Interrupts:
        """Sends a signal when the step fails for the first time."""

        def before_run(self):
            if not calls:
                signal.raise_signal(signal.SIGINT)

    given = {"hooks": [Interrupts()], "recovery": Recovery(first_wait=60.0)}
    with exits_by(signal.SIGINT), MonitoredSession(graph, config=OFF, **given) as session:
        session.run("train")
    assert (session.outcome.kind, session.global_step) == ("interrupted", 1)
    assert len(calls) == 2


@pytest.mark.parametrize("settings", [{"most": -1}, {"first_wait": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    """Less than none, and less than no time, are mistakes."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        Recovery(**settings)
