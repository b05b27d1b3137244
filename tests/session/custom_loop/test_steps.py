"""A step of a custom loop: entered is before_run, left is after_run."""

from __future__ import annotations

import pytest

from hookbus import (
    GraphError,
    RunAfterStopError,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.errors import FeedConflictError, SessionClosedError


class StopHook(SessionRunHook):
    """Asks for the end before the first run."""

    def before_run(self, run_context):
        run_context.request_stop("enough")


def test_entering_is_before_run_and_leaving_is_after_run(own):
    """Hooks are called in their order when the block begins, and when it is left."""
    told = []

    class Teller(SessionRunHook):
        def __init__(self, name):
            self.name = name

        def before_run(self):
            told.append(f"before {self.name}")

        def after_run(self):
            told.append(f"after {self.name}")

    with own(Teller("a"), Teller("b")) as session:
        for _ in range(2):
            with session.step():
                told.append("body")

    assert told == ["before a", "before b", "body", "after a", "after b"] * 2


def test_each_hook_gets_what_it_asked_for(own, fetch):
    """Reported values come back in the structure of each hook's own fetches."""
    one, other, none = fetch({"l": "loss"}), fetch(["loss", ("rate",)]), fetch()
    with own(one, other, none) as session, session.step() as step:
        step.report(loss=0.5, rate=0.1)

    assert one.results == [{"l": 0.5}]
    assert other.results == [[0.5, (0.1,)]]
    assert none.results == [None]


def test_the_step_is_counted_before_after_run(own, fetch):
    """A hook sees the step before it in before_run, and the one after it in after_run."""
    hook = fetch("global_step")
    with own(hook) as session:
        for done in range(3):
            assert session.global_step == done
            with session.step():
                assert session.global_step == done

    assert hook.steps == [0, 1, 1, 2, 2, 3]
    assert hook.results == [0, 1, 2]
    assert session.global_step == 3


def test_values_may_be_reported_in_several_calls(own, fetch):
    """Several calls of report() add up, as long as no name comes twice."""
    hook = fetch(["loss", "rate"])
    with own(hook) as session, session.step() as step:
        step.report(loss=1.0)
        step.report(rate=2.0)

    assert hook.results == [[1.0, 2.0]]


def test_a_name_is_reported_once_in_a_step(own):
    """A second report of a name is an error that names it; the next step may again."""
    with own() as session:
        with session.step() as step:
            step.report(loss=1.0)
            with pytest.raises(UsageError, match="'loss' is reported twice in one step"):
                step.report(rate=0.1, loss=2.0)
        assert session.run("loss") == 1.0
        with session.step() as step:
            step.report(loss=3.0)
        assert session.run("loss") == 3.0


def test_a_report_belongs_into_its_step(own):
    """Reporting before the block is entered, or after it is left, is an error."""
    with own() as session:
        step = session.step()
        with pytest.raises(UsageError, match=r"call report\(\) inside the block"):
            step.report(loss=1.0)
        with step:
            pass
        with pytest.raises(UsageError, match=r"call report\(\) inside the block"):
            step.report(loss=1.0)


def test_a_step_can_be_entered_again(own, fetch):
    """A Step object that serves twice has each time the values of that time."""
    hook = fetch("loss")
    with own(hook) as session:
        step = session.step()
        for loss in (1.0, 2.0):
            with step:
                step.report(loss=loss)

    assert hook.results == [1.0, 2.0]


def test_steps_do_not_nest(own, fetch):
    """A step inside a step is an error before any hook is called for it."""
    hook = fetch()
    with own(hook) as session, session.step():
        with pytest.raises(UsageError, match=r"step\(\) inside step\(\)"), session.step():
            pytest.fail("it was entered")
        assert hook.steps == [0]

    assert hook.steps == [0, 1]


def test_a_session_is_not_run_inside_a_step(own):
    """run() in the block is an error that says to report instead."""
    with (
        own() as session,
        session.step(),
        pytest.raises(UsageError, match=r"run\(\) inside step\(\): report"),
    ):
        session.run("loss")


def test_feeds_of_hooks_are_the_steps(own, fetch):
    """The feeds of hooks are in step.feeds by name, which is empty without feeds."""
    hooks = fetch(None, {"rate": 0.1}), fetch(None, {"keep": 0.5})
    with own(*hooks) as session, session.step() as step:
        assert dict(step.feeds) == {"rate": 0.1, "keep": 0.5}

    with own() as session, session.step() as step:
        assert dict(step.feeds) == {}


def test_a_hook_sees_what_is_fed(own, fetch):
    """A value that is fed is what is fetched, whatever the loop reports for that name."""
    reader = fetch("rate")
    with own(fetch(None, {"rate": 0.1}), reader) as session, session.step() as step:
        step.report(rate=0.9)

    assert reader.results == [0.1]


def test_two_hooks_do_not_feed_one_name(own):
    """A conflict of feeds names both hooks, before the step's block begins."""

    class One(SessionRunHook):
        def before_run(self):
            return SessionRunArgs(feed_dict={"rate": 0.1})

    class Other(One):
        pass

    with (
        own(One(), Other()) as session,
        pytest.raises(FeedConflictError, match="'rate' by one and other"),
        session.step(),
    ):
        pytest.fail("the step was entered")


def test_a_cancelled_step_has_not_been(own, fetch):
    """cancel() leaves the step without after_run, and it is not counted."""
    hook = fetch("loss")
    with own(hook) as session:
        with session.step() as step:
            step.report(loss=1.0)
            step.cancel()
        assert (hook.results, session.global_step) == ([], 0)
        with session.step() as step:
            step.report(loss=2.0)

    assert hook.results == [2.0]
    assert hook.steps == [0, 0, 1]
    assert session.outcome.kind == "completed"


def test_a_cancelled_step_is_announced_to_each_hook(own):
    """Each before_run is followed by after_run, or by cancelled with the same context."""
    told = []

    class Pair(SessionRunHook):
        def before_run(self, run_context):
            told.append(("before_run", run_context))

        def after_run(self, run_context):
            told.append(("after_run", run_context))

        @hookimpl
        def cancelled(self, run_context):
            told.append(("cancelled", run_context))

    with own(Pair()) as session:
        for cancels in (True, False):
            with session.step() as step:
                if cancels:
                    step.cancel()

    assert [event for event, _ in told] == [
        "before_run",
        "cancelled",
        "before_run",
        "after_run",
    ]
    assert told[0][1] is told[1][1]
    assert told[2][1] is told[3][1]


@pytest.mark.parametrize("kind", ["aux", "eval", "train"])
def test_only_hooks_of_its_kind_hear_of_a_cancelled_step(own, kind):
    """cancelled reaches the hooks that before_run has reached."""
    heard = []

    class Listener(SessionRunHook):
        @hookimpl
        def cancelled(self, run_context):
            heard.append(run_context.kind)

    with own(Listener()) as session, session.step(kind=kind) as step:
        step.cancel()

    assert heard == [kind] * (kind == "train")


def test_a_hook_may_ask_to_stop_when_a_step_is_cancelled(own):
    """The request is served like one of after_run."""

    class Impatient(SessionRunHook):
        @hookimpl
        def cancelled(self, run_context):
            run_context.request_stop("a step was cancelled")

    with own(Impatient()) as session:
        with session.step() as step:
            step.cancel()
        assert session.should_stop()

    assert (session.outcome.who, session.outcome.why) == (
        "impatient",
        "a step was cancelled",
    )


def test_a_stop_outlives_the_step_that_is_cancelled(own):
    """A hook that asked to stop in before_run stops the session, step or not."""
    with own(StopHook()) as session:
        with session.step() as step:
            step.cancel()
        assert session.should_stop()

    assert (session.outcome.kind, session.outcome.who) == ("stopped", "stop")


def test_a_stop_of_before_run_lets_the_step_happen(own, fetch):
    """A hook that asks in before_run ends the session after this step, not before."""
    hook = fetch()
    with own(StopHook(), hook) as session:
        with session.step():
            assert not session.should_stop()
        assert session.should_stop()

    assert hook.steps == [0, 1]
    assert session.outcome.why == "enough"


def test_no_step_comes_after_a_stop(own):
    """Entering a step after a stop is an error that says who stopped, and why."""
    with own(StopHook()) as session:
        with session.step():
            pass
        with pytest.raises(RunAfterStopError, match=r"stop stopped .*\(enough\)"):
            session.step().__enter__()


def test_an_auxiliary_step_is_allowed_after_a_stop(own):
    """A step of kind aux is for what comes after the training, as an aux run is."""
    with own(StopHook()) as session:
        with session.step():
            pass
        with session.step(kind="aux") as step:
            step.report(held_out=0.9)
        assert session.run("held_out") == 0.9

    assert session.global_step == 1


@pytest.mark.parametrize("kind", ["aux", "eval", "predict"])
def test_only_training_steps_are_counted(own, fetch, kind):
    """A step of another kind reaches no hook of the training and advances nothing."""
    hook = fetch()
    with own(hook) as session:
        with session.step(kind=kind) as step:
            step.report(loss=1.0)
        assert session.global_step == 0

    assert hook.steps == []


def test_steps_of_another_session_kind_are_not_counted(own, fetch):
    """In a session for evaluation hooks see each step, and none is counted."""
    hook = fetch("loss")
    with own(hook, kind="eval") as session, session.step() as step:
        step.report(loss=1.0)

    assert (hook.results, session.global_step) == ([1.0], 0)


def test_an_unknown_kind_is_an_error(own):
    """A kind that there is not is named, with those that there are."""
    with own() as session, pytest.raises(UsageError, match=r"kind='evaluation': .*eval"):
        session.step(kind="evaluation").__enter__()


def test_a_hook_takes_no_steps_of_the_session_that_calls_it(own):
    """step() inside one of the session's own events is an error that names the hook."""

    class Stepper(SessionRunHook):
        def after_run(self):
            session.step()

    with pytest.raises(UsageError, match="hook 'stepper'"), own(Stepper()) as session:
        session.step().__enter__().__exit__(None, None, None)


def test_hooks_have_no_variables_to_assign(own):
    """An assignment to a reported name is an error: it is no variable."""

    class Assigner(SessionRunHook):
        def before_run(self, run_context):
            run_context.assign({"loss": 0.0})

    with (
        pytest.raises(
            GraphError, match="'assigner' writes 'loss', which is not a variable"
        ),
        own(Assigner()) as session,
        session.step(),
    ):
        pass


def test_a_closed_session_has_no_steps(own):
    """Steps, inputs and tracked objects of a session that is over are errors."""
    with own() as session:
        left = session.step()
    for use in (session.step, session.track, lambda: session.iterate([1])):
        with pytest.raises(SessionClosedError, match="create a new one"):
            use()
    with pytest.raises(SessionClosedError):
        left.__enter__()
