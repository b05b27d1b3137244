"""TensorFlow's rules for CheckpointSaverListener, kept by checkpoint-saver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook, CheckpointSaverListener

from hookbus import AbortedError, OutOfRangeError, SessionRunHook
from hookbus.testing import run_steps

EVENTS = "begin", "before", "after", "end"


@attrs.define(eq=False)
class Listener(CheckpointSaverListener):
    """Notes each call as ``NAME.EVENT STEP``; raises or answers what it was given."""

    name: str
    calls: list[str]
    answers: dict[int, object] = attrs.field(factory=dict)
    fails_at: str = ""

    def note(self, event: str, step: int | None = None) -> None:
        call = event if step is None else f"{event} {step}"
        self.calls.append(f"{self.name}.{call}")
        if self.fails_at == call:
            raise OSError(f"no {call} today")

    def begin(self):
        self.note("begin")

    def before_save(self, session, global_step_value):
        self.note("before", global_step_value)

    def after_save(self, session, global_step_value):
        self.note("after", global_step_value)
        return self.answers.get(global_step_value)

    def end(self, session, global_step_value):
        self.note("end", global_step_value)


@pytest.fixture
def listener(calls) -> Callable[..., Listener]:
    """Make a listener, of the name a unless another one is given."""
    return lambda name="a", **given: Listener(name, calls, **given)


def saver(*listeners: CheckpointSaverListener, **period) -> CheckpointSaverHook:
    """Make a saver into the directory saved, every step unless told otherwise."""
    given = period or {"save_steps": 1}
    return CheckpointSaverHook("saved", listeners=listeners, max_to_keep=None, **given)


def saved() -> list[int]:
    """Return the steps of the checkpoints in that directory."""
    paths = Path("saved").glob("ckpt-*")
    return sorted(int(path.name.removeprefix("ckpt-")) for path in paths)


def counts(calls: list[str], name: str = "a") -> list[int]:
    """Return how often a listener was told of each event."""
    return [sum(c.startswith(f"{name}.{event}") for c in calls) for event in EVENTS]


def test_its_methods_do_nothing():
    """A class that overrides no method is also a listener."""
    plain = CheckpointSaverListener()
    plain.begin()
    assert plain.before_save(None, 1) is plain.after_save(None, 1) is None
    plain.end(None, 1)
    assert run_steps(saver(plain), steps=2).outcome.kind == "completed"


def test_all_before_the_save_then_all_after_it(calls, listener):
    """In their order, phase by phase."""
    run_steps(saver(listener("a"), listener("b"), save_steps=2), steps=2)
    told = [call for call in calls if call.endswith(" 2") and "end" not in call]
    assert told == ["a.before 2", "b.before 2", "a.after 2", "b.after 2"]


def test_the_checkpoint_is_written_between_the_two_phases():
    """Before it nothing of it can be seen, after it all of it."""
    found = []

    class Looks(CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            found.append(saved())

        def after_save(self, session, global_step_value):
            found.append(saved())

    run_steps(saver(Looks()), steps=1)
    assert found == [[], [0], [0], [0, 1]]


def test_begin_comes_in_the_savers_begin(calls, hook, listener, open_session):
    """Once, between the hooks before it and those after it."""
    with open_session(hook("h"), saver(listener("a"), listener("b")), hook("i")):
        begun = [call for call in calls if "begin" in call]
    assert begun == ["h.begin", "a.begin", "b.begin", "i.begin"]


def test_a_recovery_does_not_begin_them_again(calls, listener):
    """Nor does it tell an end."""
    error = AbortedError("the machine is gone")
    run_steps(saver(listener()), steps=4, errors={3: error})
    assert (calls.count("a.begin"), calls.count("a.end 4")) == (1, 1)
    assert counts(calls)[3] == 1


def test_the_first_checkpoint_is_told_before_the_first_run(calls, listener, open_session):
    """With the step that the session starts at."""
    with open_session(saver(listener(), save_steps=100)):
        assert calls == ["a.begin", "a.before 0", "a.after 0"]


def test_every_step_is_told_once(calls, listener):
    """Every step, 2 runs: saves of 0, 1 and 2, and none more at the end."""
    run_steps(saver(listener()), steps=2)
    assert counts(calls) == [1, 3, 3, 1]
    assert calls[-3:] == ["a.before 2", "a.after 2", "a.end 2"]


def test_within_a_period_only_the_ends_are_told(calls, listener, clock):
    """Every 2 s, 2 runs within them: a save at the start and one at the end."""
    run_steps(saver(listener(), save_secs=2), steps=2)
    assert calls == [
        *("a.begin", "a.before 0", "a.after 0"),
        *("a.before 2", "a.after 2", "a.end 2"),
    ]


def test_they_are_told_when_a_period_in_seconds_is_over(
    calls, listener, clock, open_session
):
    """Every 2 s: after 2.5 s, and not after 0.5 s and 2.6 s."""
    with open_session(saver(listener(), save_secs=2)) as session:
        for seconds in (0.5, 2.5, 2.6):
            clock[0] = 1000.0 + seconds
            session.run("train")
    told = [call for call in calls if "after " in call]
    assert told == ["a.after 0", "a.after 2", "a.after 3"]


def test_all_are_told_the_same(calls, listener):
    """Each as often as the others."""
    run_steps(saver(listener("a"), listener("b"), save_steps=2), steps=5)
    assert counts(calls, "a") == counts(calls, "b") == [1, 4, 4, 1]


def test_the_end_comes_after_the_last_save(calls, listener):
    """With the last step."""
    run_steps(saver(listener(), save_steps=100), steps=3)
    assert calls[-3:] == ["a.before 3", "a.after 3", "a.end 3"]


def test_the_end_comes_after_every_hooks_end(calls, hook, listener, open_session):
    """In TensorFlow it comes in the saver's turn."""
    with open_session(hook("h"), saver(listener(), save_steps=9), hook("i")) as session:
        session.run("train")
    last = ["h.end", "i.end", "a.before 1", "a.after 1", "a.end 1"]
    assert calls[-5:] == last


def test_the_end_comes_though_no_save_was_needed(calls, listener):
    """A session that restored and did no run has an end."""
    run_steps(saver(), steps=2)
    run_steps(saver(listener()), steps=0)
    assert calls == ["a.begin", "a.end 2"]


def test_the_end_of_input_is_an_end(calls, listener):
    """The last step is saved, and then the end is told."""
    errors = {3: OutOfRangeError()}
    run_steps(saver(listener(), save_steps=9), errors=errors, reraise=False)
    assert calls[-3:] == ["a.before 2", "a.after 2", "a.end 2"]


def test_after_an_error_there_is_neither_a_save_nor_an_end(calls, listener):
    """They are told no more."""
    errors = {3: ValueError("bad batch")}
    run_steps(saver(listener()), errors=errors, reraise=False)
    assert calls[-1] == "a.after 2"


def test_the_session_has_the_values_that_are_saved():
    """Before the save and after it, also for the raw runs of a listener."""
    found = []

    class Reads(CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            found.append((global_step_value, session.global_step, session.run("w")))

        after_save = before_save

    run_steps(saver(Reads(), save_steps=2), steps=2)
    assert found == [(0, 0, 0.0)] * 2 + [(2, 2, 3.0)] * 2


@pytest.mark.parametrize("answer", [True, 1, "enough"])
def test_a_true_answer_after_a_save_stops_after_that_run(answer, listener, open_session):
    """Whatever is true counts; the run returns, and should_stop is true then."""
    with open_session(saver(listener(answers={2: answer}))) as session:
        session.run("train")
        assert not session.should_stop()
        session.run("train")
        assert session.should_stop()
    assert session.outcome.who == "checkpoint-saver"


@pytest.mark.parametrize("answer", [None, False, 0, ""])
def test_another_answer_does_not_stop(answer, listener):
    """Only what is true does."""
    steps = run_steps(saver(listener(answers=dict.fromkeys(range(9), answer))), steps=3)
    assert steps.outcome.kind == "completed"


def test_the_others_are_told_though_one_stops(calls, listener):
    """Wherever it stands in the list."""
    run_steps(saver(listener("a", answers={2: True}), listener("b")))
    assert calls[-4:] == ["a.after 2", "b.after 2", "a.end 2", "b.end 2"]


def test_who_stopped_is_logged(listener, capsys):
    """The line names the class of the listener."""
    run_steps(saver(listener(answers={2: True})))
    assert "Listener asked for it after a save" in capsys.readouterr().err


def test_the_answer_to_the_first_save_does_not_count(listener):
    """There was no run that could be the last."""
    steps = run_steps(saver(listener(answers={0: True})), steps=3)
    assert (steps.outcome.kind, steps.global_step) == ("completed", 3)


def test_the_answer_to_the_last_save_does_not_count(listener):
    """The session has ended already."""
    steps = run_steps(saver(listener(answers={3: True}), save_steps=2), steps=3)
    assert (steps.outcome.kind, steps.outcome.who) == ("completed", "caller")


@pytest.mark.parametrize(
    ("call", "steps"),
    [("before 2", [0, 1]), ("after 2", [0, 1, 2])],
    ids=["before", "after"],
)
def test_its_error_is_one_of_the_saver(call, steps, calls, listener):
    """It leaves the run; raised after the save, the checkpoint is on disk already."""
    failed = run_steps(saver(listener(fails_at=call), listener("b")), reraise=False)
    assert isinstance(failed.error, OSError)
    assert "checkpoint-saver" in failed.error.__notes__[0]
    assert f"b.{call}" not in calls
    assert saved() == steps


def test_an_error_in_begin_keeps_the_session_from_being_made(listener):
    """As any hook's error there does."""
    with pytest.raises(OSError, match="no begin today"):
        run_steps(saver(listener(fails_at="begin")))
    assert not Path("saved", "ckpt-0").exists()


def test_an_error_in_end_leaves_the_session(listener):
    """With its last checkpoint written."""
    failed = run_steps(saver(listener(fails_at="end 3")), steps=3, reraise=False)
    assert isinstance(failed.error, OSError)
    assert saved()[-1] == 3


def test_they_are_told_of_what_other_hooks_had_saved(calls, listener):
    """TensorFlow's are told of the saves of their own hook only."""

    class Asks(SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_values.global_step == 2:
                run_context.request_save("once")

    run_steps(saver(listener(), save_steps=100), Asks(), steps=3)
    assert [call for call in calls if "after " in call] == [
        *("a.after 0", "a.after 2", "a.after 3")
    ]


def test_a_session_with_listeners_can_be_resumed(calls, listener):
    """The second one starts at step 2."""
    run_steps(saver(listener()), steps=2)
    calls.clear()
    assert run_steps(saver(listener()), steps=1).global_step == 3
    assert calls == ["a.begin", "a.before 3", "a.after 3", "a.end 3"]


def test_no_listeners_may_be_told_as_none():
    """As in TensorFlow, where that is the default."""
    run_steps(CheckpointSaverHook("saved", save_steps=1, listeners=None), steps=1)
    assert saved() == [0, 1]
