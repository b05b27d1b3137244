"""Tests what an error in a step of a custom loop does, wherever it comes from."""

from __future__ import annotations

import re

import pytest

from hookbus import AbortedError, SessionRunHook, UnavailableError
from hookbus.errors import UnfedPlaceholderError


def test_an_error_leaves_the_step_undone(own, fetch):
    """An error in the block skips every after_run, is not counted, and ends the session."""
    hook = fetch("loss")
    with pytest.raises(ZeroDivisionError), own(hook) as session, session.step() as step:
        step.report(loss=1 / 0)

    assert (hook.results, hook.ended) == ([], ["ZeroDivisionError"])
    assert session.global_step == 0
    assert session.outcome.kind == "failed"


def test_an_error_that_was_caught_counts_for_nothing(own, fetch):
    """A loop that catches a step's error goes on with the next step."""
    hook = fetch("loss")
    with own(hook) as session:
        with pytest.raises(ZeroDivisionError), session.step() as step:
            step.report(loss=1 / 0)
        with session.step() as step:
            step.report(loss=1.0)

    assert (hook.results, hook.ended) == ([1.0], ["end"])
    assert session.outcome.kind == "completed"


def test_an_error_of_a_hook_comes_out_of_the_step(own, fetch):
    """An error of after_run leaves the block, names the hook, and ends the session."""

    class Faulty(SessionRunHook):
        def after_run(self):
            raise ZeroDivisionError

    hook = fetch()
    with (
        pytest.raises(ZeroDivisionError) as caught,
        own(Faulty(), hook) as session,
        session.step(),
    ):
        pass

    assert "raised by plugin 'faulty'" in caught.value.__notes__[0]
    assert (session.outcome.who, hook.ended) == ("faulty", ["ZeroDivisionError"])


@pytest.mark.parametrize("end", [StopIteration("dry"), StopIteration()])
def test_the_end_of_input_in_a_step_is_a_good_end(own, fetch, end):
    """StopIteration from a step's block, a bare next() say, ends the session well."""
    hook = fetch()
    with own(hook) as session, session.step():
        raise end

    assert hook.ended == ["end"]
    assert session.outcome.kind == "end_of_input"


@pytest.mark.parametrize("error", [AbortedError("gone"), UnavailableError("gone")])
def test_a_preemption_in_a_step_is_not_retried(own, fetch, error):
    """A step cannot be done again: a preemption ends the session as failed."""
    hook = fetch()
    with pytest.raises(type(error), match="gone"), own(hook) as session, session.step():
        raise error

    assert hook.steps == [0]
    assert hook.ended == [type(error).__name__]
    assert session.outcome.kind == "failed"


def test_a_preemption_in_a_hook_is_not_retried(own):
    """Nor is one that a hook meets in after_run."""
    created = []

    class Faulty(SessionRunHook):
        def after_create_session(self):
            created.append(1)

        def after_run(self):
            raise AbortedError("gone")

    with pytest.raises(AbortedError), own(Faulty()) as session, session.step():
        pass

    assert created == [1]
    assert session.outcome.kind == "failed"


def test_a_preemption_in_a_thread_is_not_retried(own):
    """One that a thread reports ends the loop; nothing is restored under its feet."""
    created = []

    class Reporter(SessionRunHook):
        def after_create_session(self, coord):
            created.append(coord)

    def loop(session):
        while not session.should_stop():
            with session.step():
                created[0].request_stop(AbortedError("gone"))

    with pytest.raises(AbortedError, match="gone"), own(Reporter()) as session:
        loop(session)

    assert len(created) == 1
    assert (session.global_step, session.outcome.kind) == (1, "failed")


def test_the_error_of_a_hook_that_wants_what_is_not_reported_names_it(own, fetch):
    """The error names the missing report, the hook that wants it, and the existing ones."""
    with (
        pytest.raises(UnfedPlaceholderError) as caught,
        own(fetch("los")) as session,
        session.step() as step,
    ):
        step.report(loss=1.0, rate=0.1)

    assert str(caught.value).startswith(
        "'los' is not reported; the step reports 'loss', 'rate'; did you mean 'loss'? If "
        "not: step.report(los=...). 'los' is fetched by fetch; to run without that hook: "
        "-p no:fetch, or kind='aux' for a run that is no step of the training"
    )
    assert session.outcome.who == "fetch"


@pytest.mark.parametrize("name", ["model.weight", "class"])
def test_the_call_that_would_report_a_value_is_python(own, fetch, name):
    """A name that cannot be a keyword is shown in a dict."""
    with (
        pytest.raises(UnfedPlaceholderError) as caught,
        own(fetch(name)) as session,
        session.step() as step,
    ):
        step.report(loss=1.0)

    (call,) = re.findall(r"step\.(report\(.*?\.\.\..*?\))\.", str(caught.value))
    reported = eval(call, {"report": lambda **values: values})
    assert reported == {name: ...}
