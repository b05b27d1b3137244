"""Tests how the end is asked for, when it takes effect, and what it does not do."""

from __future__ import annotations

from typing import Any

import pytest

import hookbus
from hookbus import SessionRunHook


class Stops(SessionRunHook):
    """Asks to stop in the run that starts at a step, in one of the phases."""

    def __init__(self, phase: str, at: int = 0, why: str = "enough") -> None:
        self.phase, self.at, self.why = phase, at, why

    def ask(self, phase: str, run_context: Any) -> None:
        if (phase, run_context.global_step) == (self.phase, self.at):
            run_context.request_stop(self.why)

    def before_run(self, run_context):
        self.ask("before", run_context)

    def after_run(self, run_context):
        self.ask("after", run_context)


class Looks(SessionRunHook):
    """Keeps its contexts, and what they say of a stop in each phase."""

    def __init__(self) -> None:
        self.seen: list[bool] = []
        self.contexts: list[Any] = []

    def before_run(self, run_context):
        self.contexts.append(run_context)
        self.seen.append(run_context.stop_requested)

    def after_run(self, run_context):
        self.seen.append(run_context.stop_requested)


@pytest.mark.parametrize("phase", ["before", "after"])
def test_all_hooks_still_run_in_the_run_in_which_one_asks_to_stop(
    phase, calls, hook, open_session
):
    """Asked in ``before_run``, the run and every ``after_run`` still happen."""
    with open_session(hook("a"), Stops(phase), hook("c")) as session:
        session.run("train")
        assert session.should_stop()
    run = "a.before c.before RUN a.after c.after"
    assert " ".join(calls) == f"a.begin c.begin a.create c.create {run} a.end c.end"


@pytest.mark.parametrize(
    ("phase", "seen"),
    [("before", [False, True, True, True]), ("after", [False] * 3 + [True])],
)
def test_later_hooks_see_that_a_stop_was_asked_for(phase, seen, open_session):
    """``stop_requested`` is true for every call after the one that asked."""
    earlier, later = Looks(), Looks()
    with open_session(earlier, Stops(phase), later) as session:
        session.run("train")
    before, after = zip(earlier.seen, later.seen, strict=True)
    assert [*before, *after] == seen


@pytest.mark.parametrize("phase", ["before", "after"])
def test_the_run_in_which_a_hook_asks_to_stop_returns_as_usual(phase, open_session):
    """The caller gets its values; ``should_stop`` turns true after the run."""
    with open_session(Stops(phase)) as session:
        assert not session.should_stop()
        assert session.run(["n", "train"]) == [0, None]
        assert session.should_stop()


def test_the_loop_has_to_look_at_should_stop(open_session):
    """Nothing is raised into the caller by a stop; only the next ``run`` is refused."""
    with open_session(Stops("after")) as session:
        session.run("train")
        assert session.should_stop()
        assert session.outcome is None
        with pytest.raises(hookbus.RunAfterStopError):
            session.run("train")
        assert session.outcome is None
    assert session.outcome.kind == "stopped"


def test_one_hook_is_enough_to_stop(open_session):
    """``should_stop`` is true although all other hooks want to go on."""
    with open_session(Looks(), Stops("after", at=1), Looks()) as session:
        turns = 0
        while not session.should_stop():
            session.run("train")
            turns += 1
    assert turns == 2


def test_a_finished_context_stops_nothing(open_session):
    """A hook that keeps a context and asks through it later gets an error."""
    looks = Looks()
    with open_session(looks) as session:
        session.run("train")
        with pytest.raises(hookbus.UsageError, match="after the run of this context"):
            looks.contexts[0].request_stop("too late")
        assert not session.should_stop()
        session.run("train")
        assert not session.should_stop()
    assert session.outcome.kind == "completed"


def test_a_stop_cannot_be_withdrawn(open_session):
    """``stop_requested`` cannot be set, and asking again changes nothing."""
    refused = []

    class Withdraws(SessionRunHook):
        def after_run(self, run_context):
            with pytest.raises(AttributeError):
                run_context.stop_requested = False
            refused.append(run_context.stop_requested)

    with open_session(Stops("before"), Withdraws()) as session:
        session.run("train")
        assert session.should_stop()
    assert refused == [True]


def test_the_outcome_names_who_asked_first_and_why(open_session):
    """Of several who ask in one run, the first one's reason is kept."""
    hooks = [Stops("after", why="second"), Stops("before", why="first")]
    with open_session(*hooks) as session:
        session.run("train")
    outcome = session.outcome
    assert (outcome.kind, outcome.who, outcome.why) == ("stopped", "stops-2", "first")


@pytest.mark.parametrize("method", ["before_run", "after_run"])
def test_a_hook_may_stop_the_loop_through_the_coordinator(method, open_session):
    """``should_stop`` turns true at once then, and further runs are not refused."""

    class Coordinates(SessionRunHook):
        def after_create_session(self, coord):
            self.coord = coord

    def ask(self: Any) -> None:
        self.coord.request_stop()

    hook = type("Asks", (Coordinates,), {method: ask})()
    with open_session(hook) as session:
        session.run("train")
        assert session.should_stop()
        assert session.run(["n", "train"]) == [1, None]
