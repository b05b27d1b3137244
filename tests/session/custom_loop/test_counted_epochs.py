"""A loop over ``session.epochs``, and what a stop, a signal and a mistake do in it."""

from __future__ import annotations

import contextlib
import signal
import time

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import (
    Config,
    HookOptions,
    MonitoredSession,
    SessionRunHook,
    UsageError,
    hookimpl,
    latest_checkpoint,
)
from hookbus.errors import ArgumentTypeError
from hookbus.testing.scenarios import watched_lines

LENGTH = 3
QUIET = Config(autoload=False, header=False)


class StopAt(SessionRunHook):
    """Asks for a stop after a step."""

    def __init__(self, step, kind="stopped"):
        self.step, self.kind = step, kind

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.step:
            run_context.request_stop("enough", kind=self.kind)


class Told(SessionRunHook):
    """Notes the evaluations and the ends of epochs that it is told of."""

    def __init__(self):
        self.evaluated_at, self.ended = [], []

    @hookimpl
    def evaluated(self, name, global_step):
        self.evaluated_at.append((name, global_step))

    @hookimpl
    def epoch_ended(self, epoch, global_step):
        self.ended.append((epoch, global_step))


def test_a_stop_ends_the_pass_and_the_epochs_and_the_code_behind_runs_once(saved):
    """Nothing after the stop is in the checkpoint, so a resumed run repeats it."""
    done, w = [], np.zeros(1)
    with saved(StopAt(4)) as session:
        session.track(w=w)
        for epoch in session.epochs(5):
            for value in session.iterate(range(LENGTH)):
                with session.step():
                    w += 1
                done.append((epoch, value))
            w += 100
            done.append(f"after pass {epoch}")
        done.append("after the loop")
    assert session.outcome.kind == "stopped"
    behind = ["after pass 1", "after the loop"]
    assert done == [(0, 0), (0, 1), (0, 2), "after pass 0", (1, 0), *behind]
    again = np.zeros(1)
    with saved() as session:
        session.track(w=again)
        assert again == 104  # without what came after the stop


@pytest.mark.parametrize("goes_on", ["another pass", "another step"])
def test_a_loop_that_goes_on_after_a_stop_leaves_the_block(own, goes_on):
    """No ``except Exception`` of the loop holds it back, and one line tells why."""
    done = []
    with watched_lines() as lines, own(StopAt(2)) as session:
        while True:
            with contextlib.suppress(Exception):
                if goes_on == "another pass":
                    for _ in session.iterate(range(LENGTH)):
                        with session.step():
                            pass
                else:
                    with session.step():
                        pass
            done.append(session.global_step)
    assert session.outcome.kind == "stopped"
    assert done[-1] == 2
    told = [line for line in lines if "goes on after the stop" in line["event"]]
    assert [(line["by"], line["hint"]) for line in told] == [
        ("stop-at", "session.epochs(n) ends on its own")
    ]


@pytest.mark.parametrize("kind", ["stopped", "preempted"])
def test_only_a_stop_that_is_a_good_end_lets_the_rest_of_the_epoch_run(saved, kind):
    """A preempted run is left at the pull."""
    done = []
    with saved(StopAt(2, kind)) as session:
        for _ in session.epochs(2):
            for _ in session.iterate(range(LENGTH)):
                with session.step():
                    pass
            done.append("after the pass")
    assert done == (["after the pass"] if kind == "stopped" else [])
    assert session.outcome.kind == kind


def test_an_evaluation_is_left_at_the_next_report_after_a_signal(saved):
    """It counts as not done, and the resumed run does it again."""
    reports = []
    for at in (2, None):
        told = Told()
        with saved(told) as session:
            for _ in session.epochs(2):
                for _ in session.iterate(range(LENGTH)):
                    with session.step():
                        pass
                with session.evaluation("val") as evaluation:
                    for number in range(5):
                        if number == at:
                            signal.raise_signal(signal.SIGTERM)
                        evaluation.report(loss=float(number))
                        reports.append(number)
        if at is not None:
            assert session.outcome.kind == "preempted"
            assert (reports, told.evaluated_at) == ([0, 1], [])
            reports.clear()
    assert reports == [*range(5), *range(5)]
    assert told.evaluated_at == [("val", 3), ("val", 6)]


def test_an_evaluation_of_one_name_at_one_step_reaches_hooks_once(own):
    """Another name, or another step, is another evaluation."""
    told = Told()
    with own(told) as session:
        for _ in session.epochs(2):
            for name in ("a", "b", "a"):
                with session.evaluation(name) as evaluation:
                    evaluation.report(loss=1.0)
            with session.step():
                pass
    assert told.evaluated_at == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_an_epoch_ends_once_however_many_passes_it_has(own):
    """The event comes between two epochs, and after the last."""
    told = Told()
    with own(told) as session:
        for _ in session.epochs(2):
            for _ in range(2):
                for _ in session.iterate(range(LENGTH)):
                    with session.step():
                        pass
    assert told.ended == [(0, 6), (1, 12)]


def test_a_pass_has_the_length_of_its_iterable(own):
    """So a progress bar knows its total; a generator has none."""
    with own() as session:
        assert len(session.iterate(range(4))) == 4
        assert len(session.enumerate([1, 2])) == 2
        assert len(session.epochs(7)) == 7
        with pytest.raises(TypeError, match="has no len"):
            len(session.iterate(iter(())))


def test_the_index_goes_on_in_a_resumed_pass(saved):
    """A value has the index that it has in a pass without an interruption."""
    seen = []
    for cut in (2, None):
        with contextlib.suppress(ZeroDivisionError), saved() as session:
            for index, value in session.enumerate("abcde", start=1):
                if session.global_step == cut:
                    raise ZeroDivisionError
                seen.append((index, value))
                with session.step():
                    pass
    assert seen == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]


def test_a_session_is_resuming_until_it_is_where_it_was(saved):
    """Code around ``range`` may leave out what it has done."""
    for cut in (4, None):
        resuming = []
        with contextlib.suppress(ZeroDivisionError), saved() as session:
            for _ in range(3):
                for _ in session.iterate(range(LENGTH)):
                    if session.global_step == cut:
                        raise ZeroDivisionError
                    with session.step():
                        pass
                resuming.append(session.resuming)
    assert resuming == [True, False, False]


class RollsBackAt(SessionRunHook):
    """Goes back once, after a step."""

    options = HookOptions(rolls_back=True)

    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.step:
            self.step = None
            run_context.request_rollback("bad")


def test_going_back_never_undoes_the_code_between_two_passes(saved):
    """A session whose hooks go back has a place to go to at the start of each pass."""
    rates, rate = [], {"lr": 1.0}
    with saved(RollsBackAt(LENGTH + 1), every=100) as session:
        session.track(rate=rate)
        for _ in session.epochs(2):
            for value in session.iterate(range(LENGTH)):
                with session.step():
                    rates.append((rate["lr"], value))
            rate["lr"] /= 2
    # The first step of the second epoch was undone, and its value left out.
    assert rates == [(1.0, 0), (1.0, 1), (1.0, 2), (0.5, 0), (0.5, 1), (0.5, 2)]
    assert session.outcome.rolled_back == 1
    assert session.global_step == 5


def test_a_long_body_in_which_a_save_waits_is_reported_once(saved):
    """The line says what to do."""
    with watched_lines() as lines, saved() as session:
        for _ in session.iterate(range(2)):
            for _ in range(30):
                with session.step():
                    pass
    (line,) = [line for line in lines if "waits for the next value" in line["event"]]
    assert line["why"] == (
        "the loop has done 20 steps for one value; give the inner loop its "
        "own session.iterate()"
    )


def test_a_signal_does_not_wait_for_ever_for_the_end_of_a_body(tmp_path):
    """After the grace time the session leaves, and relies on the newest checkpoint."""
    saver = CheckpointSaverHook(tmp_path, save_steps=1)
    with MonitoredSession(
        hooks=[saver], stop_grace_period_secs=0.05, config=QUIET, exit_on_signal=False
    ) as session:
        for number in session.iterate(range(3)):
            with session.step():
                pass
            while number == 1:  # an inner loop that the session does not know
                if session.global_step == 3:
                    signal.raise_signal(signal.SIGTERM)
                    time.sleep(0.1)
                with session.step():
                    pass
    assert session.outcome.kind == "preempted"
    assert latest_checkpoint(tmp_path).path.name == "ckpt-1"


def fewer(session):
    """Count fewer epochs than were finished."""
    next(session.epochs(1))


def twice(session):
    """Count epochs twice."""
    list(session.epochs(0))
    list(session.epochs(1))


def inside(session):
    """Count epochs inside a pass."""
    next(session.iterate([1]))
    values = session.iterate([1])
    next(values)
    next(session.epochs(1))


def same_name(session):
    """Begin a pass inside another of its name."""
    outer = session.iterate([1], name="batch")
    next(outer)
    next(session.iterate([1], name="batch"))


def step_behind(session):
    """Do a step after a pass."""
    for _ in session.iterate([1]):
        with session.step():
            pass
    with session.step():
        pass


MISTAKES = {
    twice: r"epochs\(\) is called twice: a session has one loop over epochs; count all",
    inside: r"epochs\(\) inside iterate\(\): put the passes inside the epochs",
    same_name: r"iterate\(name='batch'\) inside a pass of this name: give each input",
    step_behind: r"step\(\) after a pass of iterate\(\): a resumed program would repeat",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_a_mistake_is_an_error_that_says_what_to_do(own, mistake):
    """Nothing is trained wrongly without a word."""
    with pytest.raises(UsageError, match=MISTAKES[mistake]), own() as session:
        mistake(session)


def test_fewer_epochs_than_were_begun_are_an_error(saved):
    """Nothing is lost: with enough of them the training goes on."""

    def train(count, cut=None):
        with saved() as session:
            for _ in session.epochs(count):
                for _ in session.iterate(range(LENGTH)):
                    if session.global_step == cut:
                        raise ZeroDivisionError
                    with session.step():
                        pass
        return session.global_step

    with contextlib.suppress(ZeroDivisionError):
        train(4, cut=7)
    message = r"epochs\(2\), but the training in the checkpoint has come to epoch 3"
    with pytest.raises(UsageError, match=message):
        train(2)
    assert train(4) == 12


@pytest.mark.parametrize("count", ["3", 2.0, True, None])
def test_the_number_of_epochs_is_a_whole_number(own, count):
    """The message has what was given."""
    message = rf"epochs\(\) takes a whole number, given: {count!r}"
    with own() as session, pytest.raises(ArgumentTypeError, match=message):
        session.epochs(count)
