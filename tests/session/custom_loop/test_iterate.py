"""The input of a custom loop: counted, ended at a stop, resumed where it stood."""

from __future__ import annotations

import contextlib
import signal

import pytest

from hookbus import SessionRunHook, UsageError, list_checkpoints

PASSES, LENGTH = 4, 5
STEPS = PASSES * LENGTH


class Cut(Exception):
    """The error that cuts a session short, so that it saves nothing at its end."""


class StopAfter(SessionRunHook):
    """Stops the session after a number of its steps."""

    def __init__(self, steps):
        self.left = steps

    def after_run(self, run_context):
        self.left -= 1
        if self.left == 0:
            run_context.request_stop("enough")


def go_through(session, iterable):
    """Do a step for each value."""
    for _ in session.iterate(iterable):
        with session.step():
            pass


def test_values_are_pulled_one_a_step(own):
    """The input is not read ahead: a value is pulled when the loop asks for it."""
    pulled = []

    def values():
        for value in range(3):
            pulled.append(value)
            yield value

    with own() as session:
        for done, value in enumerate(session.iterate(values())):
            assert pulled == list(range(done + 1))
            with session.step():
                assert value == done


def test_it_ends_where_the_session_stops(own):
    """After a stop no further value comes, in this pass and in those after it."""
    seen = []
    with own(StopAfter(7)) as session:
        for number in range(PASSES):
            for value in session.iterate(range(LENGTH)):
                seen.append((number, value))
                with session.step():
                    pass

    assert seen == [*((0, v) for v in range(5)), (1, 0), (1, 1)]
    assert session.outcome.kind == "stopped"


class StopAndKeep(StopAfter):
    """Asks in its last step for a checkpoint to keep as well."""

    def after_run(self, run_context):
        super().after_run(run_context)
        if self.left == 0:
            run_context.request_save("the last one", keep=True)


def test_a_request_of_the_last_step_is_served_if_no_value_is_pulled_behind_it(saved):
    """The loop ends by itself in the step in which a hook stops it."""
    with saved(StopAndKeep(3), every=100) as session:
        numbers = session.iterate(range(LENGTH))
        while session.global_step < 3:
            next(numbers)
            with session.step():
                pass

    assert session.outcome.kind == "stopped"
    [newest] = [each for each in list_checkpoints("runs") if each.global_step == 3]
    assert "the last one" in newest.kept.values()


def test_a_loop_goes_on_after_a_stop_where_it_stopped(saved):
    """A session that was stopped in its second pass is followed by the rest of it."""
    seen = []
    for steps in (7, 100):
        with saved(StopAfter(steps), every=100) as session:
            for number in range(PASSES):
                for value in session.iterate(range(LENGTH)):
                    seen.append((number, value))
                    with session.step():
                        pass

    assert seen == [(n, v) for n in range(PASSES) for v in range(LENGTH)]


@pytest.mark.parametrize("again", [False, True])
def test_a_loop_that_ended_trains_again_only_if_it_is_told_to(saved, again):
    """It does all passes then; otherwise it has nothing to do."""
    lengths = []
    for _ in range(2):
        seen = []
        with saved(again=again) as session:
            for _ in range(PASSES):
                for value in session.iterate(range(LENGTH)):
                    seen.append(value)
                    with session.step():
                        pass
        lengths.append((len(seen), session.global_step))

    assert lengths == [(STEPS, STEPS), (STEPS, 2 * STEPS) if again else (0, STEPS)]
    assert session.outcome.kind == "completed"


def test_a_pass_that_was_left_early_is_over(saved):
    """A break ends a pass; a loop that resumes in the next one does so there."""
    seen = []

    def loop(cut):
        with saved() as session:
            for number in range(PASSES):
                for value in session.iterate(range(LENGTH)):
                    if session.global_step == cut:
                        raise Cut
                    with session.step():
                        seen.append((number, value))
                    if value == 2:
                        break

    with pytest.raises(Cut):
        loop(5)
    loop(100)

    assert seen == [(n, v) for n in range(PASSES) for v in range(3)]


def test_a_pass_inside_another_ends_with_the_value_of_that(own):
    """One that goes on after the pass around it is an error that says what to do."""
    with own() as session:
        outer, inner = session.iterate(range(3)), session.iterate(range(3))
        assert [next(outer), next(inner), next(outer)] == [0, 0, 1]
        with pytest.raises(UsageError, match=r"as in iterate\(zip\(one, other\)\)"):
            next(inner)


def test_another_iterable_may_be_read_between_steps(saved):
    """Values that the loop reads without iterate() are its own affair."""
    seen = []
    for cut in (2, 100):
        with contextlib.suppress(Cut), saved() as session:
            for value in session.iterate(range(LENGTH)):
                if session.global_step == cut:
                    raise Cut
                with session.step():
                    seen.append(value)
                assert sum(range(3)) == 3

    assert seen == [0, 1, 2, 3, 4]


class Signalled:
    """Values 0 to 4; a signal comes while one of them is pulled."""

    def __init__(self, at):
        self.at = at

    def __iter__(self):
        for value in range(LENGTH):
            if value == self.at:
                signal.raise_signal(signal.SIGTERM)
            yield value


def guarded(session, body):
    """Do the passes as a loop does that looks neither left nor right."""
    for number in range(2):
        for value in session.iterate(Signalled(3 if number == 1 else None)):
            with session.step():
                body.append((number, value))


def test_no_value_is_lost_to_a_signal_while_it_is_pulled(saved):
    """Its step is done, and the next session goes on behind it."""
    seen = []
    with saved(every=100) as session:
        guarded(session, seen)
    assert session.outcome.kind == "preempted"
    assert seen[-1] == (1, 3)

    with saved(every=100) as session:
        for number in range(2):
            for value in session.iterate(range(LENGTH)):
                with session.step():
                    seen.append((number, value))

    assert seen == [(n, v) for n in range(2) for v in range(LENGTH)]


def test_no_value_is_lost_to_a_signal_between_two_steps(saved):
    """After a signal the position stays at the last step, whatever passes follow."""
    seen = []
    for at in (7, None):
        with saved(every=100) as session:
            for number in range(3):
                for value in session.iterate(range(LENGTH)):
                    with session.step():
                        seen.append((number, value))
                    if session.global_step == at:
                        signal.raise_signal(signal.SIGTERM)

    assert seen == [(n, v) for n in range(3) for v in range(LENGTH)]


def test_an_auxiliary_step_uses_no_value_up(saved):
    """A value that only an auxiliary step has seen comes again in the next session."""
    seen = []
    for at in (3, None):
        with saved(every=100) as session:
            for value in session.iterate(range(LENGTH)):
                with session.step(kind="aux"):
                    pass
                if value == at:
                    signal.raise_signal(signal.SIGTERM)
                with session.step():
                    seen.append(value)

    assert seen == [0, 1, 2, 3, 4]


def test_a_cancelled_steps_value_is_used_up(saved):
    """The value of a step that was cancelled does not come again."""
    seen = []
    for cut in (2, 100):
        with contextlib.suppress(Cut), saved() as session:
            for value in session.iterate(range(LENGTH)):
                if session.global_step == cut:
                    raise Cut
                with session.step() as step:
                    seen.append(value)
                    if value == 1:
                        step.cancel()

    assert seen == [0, 1, 2, 3, 4]
    assert session.global_step == 4


def test_what_cannot_be_iterated_over_is_an_error(own):
    """An argument that is no iterable is named by its type."""
    message = r"session\.iterate\(\) takes an iterable, not an? int"
    with own() as session, pytest.raises(UsageError, match=message):
        session.iterate(7)


def test_an_error_of_the_input_ends_the_session(own, fetch):
    """An error of the iterable leaves the loop as itself; hooks get on_exception."""

    def values():
        yield 1
        raise ZeroDivisionError

    hook = fetch()
    with pytest.raises(ZeroDivisionError), own(hook) as session:
        go_through(session, values())

    assert hook.ended == ["ZeroDivisionError"]


@pytest.mark.parametrize("passes", [1, PASSES])
def test_the_expected_end_is_that_of_the_open_pass(own, passes):
    """Nobody knows whether another pass follows; within a pass the answer is the same."""
    told = []

    class Asker(SessionRunHook):
        def before_run(self, run_context):
            told.append(run_context.last_step)

        def after_run(self, run_context):
            told.append(run_context.last_step)

    with own(Asker()) as session:
        for _ in range(passes):
            for _ in session.iterate(range(LENGTH)):
                with session.step():
                    pass

    ends = [LENGTH * number for number in range(1, passes + 1)]
    assert told == [end for end in ends for _ in range(2 * LENGTH)]
