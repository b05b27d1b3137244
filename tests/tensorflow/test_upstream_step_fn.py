"""The rules that TensorFlow's tests of run_step_fn pin."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import (
    AbortedError,
    Config,
    Graph,
    MonitoredSession,
    Recovery,
    SessionRunArgs,
    SingularMonitoredSession,
)

OFF = Config(autoload=False)
ONE_ARGUMENT = "`step_fn` may either have one `step_context` argument"


def graph() -> Graph:
    """Return a graph with a placeholder, its double, and a counter n."""
    made = Graph()
    made.placeholder("x")
    made.op(lambda x: x * 2, name="double")
    made.variable("n", 0)
    made.train_op(lambda n: n + 1, name="train", updates="n")
    return made


def session_of(*hooks: Any) -> MonitoredSession:
    recovery = Recovery(first_wait=0.0)
    return MonitoredSession(graph(), hooks=hooks, config=OFF, recovery=recovery)


class Wants:
    """Asks for n, notes its calls, and can be preempted in one of them."""

    def __init__(self, fails_in: str = "") -> None:
        self.calls: list[str] = []
        self.results: list[Any] = []
        self.fails_in = fails_in

    def note(self, event: str) -> None:
        self.calls.append(event)
        if event == self.fails_in:
            self.fails_in = ""
            raise AbortedError(event)

    def before_run(self):
        self.note("before_run")
        return SessionRunArgs("n")

    def after_run(self, run_context, run_values):
        self.note("after_run")
        self.results.append((run_values.results, run_context.session.run("n")))

    def end(self):
        self.calls.append("end")


def test_a_step_fn_returns_what_it_computes():
    """It runs the backend session with feeds of its own."""

    def step_fn(step_context):
        return step_context.session.run(["x", "double"], {"x": 3})

    with session_of() as session:
        assert session.run_step_fn(step_fn) == [3, 6]


def test_a_step_fn_may_return_a_type():
    """Its result is handed on as it is, whatever it is."""
    with session_of() as session:
        assert session.run_step_fn(lambda step_context: int) is int


def test_a_step_fn_can_stop_the_session():
    """The rest of it and of the block is skipped, and the session has stopped."""
    seen: list[str] = []

    def step_fn(step_context):
        seen.append("before")
        step_context.request_stop()
        seen.append("after")

    with session_of() as session:
        session.run_step_fn(step_fn)
        seen.append("body")
    assert seen == ["before"]
    assert session.should_stop()


def test_a_step_fn_can_stop_a_loop():
    """The block of the loop is left in the turn in which it asks."""
    turns: list[int] = []

    def step_fn(step_context):
        step_context.session.run("train")
        turns.append(step_context.session.global_step)
        if turns[-1] == 3:
            step_context.request_stop()

    with session_of() as session:
        while not session.should_stop():
            session.run_step_fn(step_fn)
    assert turns == [1, 2, 3]
    assert session.outcome.kind == "stopped"


def test_without_a_block_the_stop_of_a_step_fn_is_a_stop_iteration():
    """It reaches the caller, and ``should_stop`` stays False."""
    session = session_of()
    with pytest.raises(StopIteration, match="step_fn has requested"):
        session.run_step_fn(lambda step_context: step_context.request_stop())
    assert not session.should_stop()
    session.close()


@pytest.mark.parametrize(
    "step_fn",
    [
        lambda: None,
        lambda context: None,
        lambda step_context, more: None,
        lambda step_context, more=1: None,
        lambda step_context, *more: None,
        lambda self, step_context: None,
    ],
)
def test_a_step_fn_has_no_other_arguments(step_fn):
    """They are told by name, before the function is called."""
    with session_of() as session, pytest.raises(ValueError, match=ONE_ARGUMENT):
        session.run_step_fn(step_fn)


class Model:
    """Has methods for step functions."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def step(self, step_context):
        self.seen.append(step_context.session.run("double", {"x": self.factor(2)}))

    def factor(self, number):
        return number * 10

    def wrong(self, step_context, more):
        self.seen.append(more)


def test_a_step_fn_may_be_a_method():
    """``self`` does not count, and other methods and attributes can be used."""
    model = Model()
    with session_of() as session:
        session.run_step_fn(model.step)
    assert model.seen == [40]


def test_a_method_has_no_other_arguments_either():
    """The check is the same."""
    with session_of() as session, pytest.raises(ValueError, match=ONE_ARGUMENT):
        session.run_step_fn(Model().wrong)


@pytest.mark.parametrize("cls", [MonitoredSession, SingularMonitoredSession])
def test_hooks_see_only_the_runs_with_hooks(cls):
    """They are asked in run_with_hooks; ``after_run`` sees the state after the run."""
    hook = Wants()

    def step_fn(step_context):
        step_context.session.run("train")
        assert hook.calls == []
        return step_context.run_with_hooks(["n", "train"])[0]

    with cls(graph(), hooks=[hook], config=OFF) as session:
        assert session.run_step_fn(step_fn) == 1
        assert hook.calls == ["before_run", "after_run"]
    assert hook.results == [(1, 2)]


def test_run_with_hooks_takes_what_run_takes():
    """Feeds, options and all."""

    def step_fn(step_context):
        return step_context.run_with_hooks("double", feed_dict={"x": 4})

    with session_of() as session:
        assert session.run_step_fn(step_fn) == 8


def test_the_stop_of_a_step_fn_calls_no_hook_but_end():
    """Neither ``before_run`` nor ``after_run`` belongs to it."""
    hook = Wants()
    with session_of(hook) as session:
        session.run_step_fn(lambda step_context: step_context.request_stop())
    assert hook.calls == ["end"]


@pytest.mark.parametrize("place", ["before its run", "after its run"])
def test_a_step_fn_that_is_preempted_is_called_again(place):
    """The whole of it: what it did before is done twice."""
    seen: list[str] = []
    errors = [AbortedError("gone")]

    def fail(here: str) -> None:
        if here == place and errors:
            raise errors.pop()

    def step_fn(step_context):
        seen.append("called")
        fail("before its run")
        step_context.run_with_hooks("train")
        seen.append("ran")
        fail("after its run")
        return "done"

    hook = Wants()
    with session_of(hook) as session:
        assert session.run_step_fn(step_fn) == "done"
        assert session.run("n", kind="aux") == 1
    again = ["called", "ran"]
    assert seen == (["called", *again] if place == "before its run" else again * 2)


@pytest.mark.parametrize("event", ["before_run", "after_run"])
def test_a_step_fn_whose_hooks_are_preempted_is_called_again(event):
    """A preemption in a hook is one of the step function."""
    hook, seen = Wants(fails_in=event), []

    def step_fn(step_context):
        seen.append("called")
        return step_context.run_with_hooks("train")

    with session_of(hook) as session:
        session.run_step_fn(step_fn)
        assert session.run("n", kind="aux") == 1
    assert len(seen) == 2


def test_a_singular_session_does_not_call_a_step_fn_again():
    """The preemption leaves it."""
    calls: list[int] = []

    def step_fn(step_context):
        calls.append(1)
        raise AbortedError("gone")

    with (
        pytest.raises(AbortedError),
        SingularMonitoredSession(graph(), config=OFF) as session,
    ):
        session.run_step_fn(step_fn)
    assert len(calls) == 1
