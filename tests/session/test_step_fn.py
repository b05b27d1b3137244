"""Step functions: odd callables, what passes through, and how errors leave them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    RunMetadata,
    RunOptions,
    SessionRunHook,
    StepContext,
)

OFF = hookbus.Config(autoload=False)


class Told(SessionRunHook):
    """Keeps what it is handed, and stops at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.kinds: list[str] = []
        self.steps: list[int] = []
        self.events: list[str] = []

    def after_run(self, run_context, run_values):
        self.kinds.append(run_context.kind)
        self.steps.append(run_values.global_step)
        if run_values.global_step == self.stop_at:
            run_context.request_stop("enough")

    def end(self):
        self.events.append("end")

    def on_exception(self, exception):
        self.events.append(repr(exception))


def counting() -> Graph:
    """Return a graph with an input of three values, of which a train op counts n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.placeholder("x")
    graph.input("batch", lambda: range(3))
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    graph.train_op(lambda n, batch: n + 1, name="read", updates="n")
    return graph


def opened(*hooks: Any, **more: Any) -> MonitoredSession:
    more = {"recovery": Recovery(3, 0.0), **more}
    return MonitoredSession(counting(), hooks=hooks, config=OFF, **more)


def plain(step_context):
    return step_context.run_with_hooks(["n", "train"])[0]


class Callable:
    """An object that is a step function."""

    def __call__(self, step_context):
        return plain(step_context)


class Methods:
    """Step functions of three kinds."""

    @staticmethod
    def static(step_context):
        return plain(step_context)

    @classmethod
    def of_class(cls, step_context):
        return plain(step_context)


def with_rate(rate, step_context):
    return plain(step_context)


@functools.wraps(plain)
def wrapped(*args):
    return plain(*args)


STEP_FNS = {
    "function": plain,
    "lambda": lambda step_context: plain(step_context),
    "object": Callable(),
    "static method": Methods.static,
    "class method": Methods.of_class,
    "partial": functools.partial(with_rate, 0.1),
    "decorated": wrapped,
}


@pytest.mark.parametrize("step_fn", STEP_FNS.values(), ids=STEP_FNS)
def test_whatever_takes_a_step_context_is_a_step_fn(step_fn):
    """How it came to take it does not matter."""
    with opened() as session:
        assert [session.run_step_fn(step_fn) for _ in range(3)] == [0, 1, 2]


def test_a_step_fn_gets_a_step_context():
    """The class has a public name, for annotations."""
    with opened() as session:
        assert session.run_step_fn(lambda step_context: type(step_context)) is StepContext


def test_all_arguments_of_run_can_be_given_to_run_with_hooks():
    """By position and by name: fetches, feeds, options, metadata, kind."""
    hook, metadata = Told(), RunMetadata()

    def step_fn(step_context):
        step_context.run_with_hooks("x", {"x": 3}, RunOptions(1), metadata)
        return step_context.run_with_hooks(
            fetches="train", feed_dict=None, options=RunOptions(1), run_metadata=metadata
        )

    with opened(hook) as session:
        session.run_step_fn(step_fn)
    assert [op.name for op in metadata.ops] == ["train"]
    assert (hook.steps, hook.kinds) == ([0, 1], ["train", "train"])


def test_an_aux_run_reaches_no_hook_and_is_allowed_after_a_stop():
    """As it is with ``session.run``."""
    hook = Told(stop_at=1)

    def step_fn(step_context):
        step_context.run_with_hooks("train")
        return step_context.run_with_hooks("n", kind="aux")

    with opened(hook) as session:
        assert session.run_step_fn(step_fn) == 1
        assert session.should_stop()
    assert hook.kinds == ["train"]
    assert session.outcome.kind == "stopped"


def test_a_hooks_save_is_done_before_run_with_hooks_returns():
    """Inside a step function, too, the loop acts at the end of each hooked run."""
    with MonitoredTrainingSession(
        counting(), checkpoint_dir="c", save_checkpoint_steps=1, config=OFF
    ) as session:

        def step_fn(step_context):
            step_context.run_with_hooks("train")
            return Path("c/ckpt-1").is_dir()

        assert session.run_step_fn(step_fn)


def test_an_error_leaves_a_step_fn_as_itself():
    """Nothing is retried, and the session goes on where the caller catches it."""
    error, turns = ValueError("broken"), []

    def step_fn(step_context):
        turns.append(step_context)
        raise error

    hook = Told()
    with opened(hook) as session:
        with pytest.raises(ValueError, match="broken") as caught:
            session.run_step_fn(step_fn)
        session.run("train")
    assert caught.value is error
    assert len(turns) == 1
    assert hook.events == ["end"]


def test_request_stop_says_who_stopped_and_why():
    """The outcome names the caller."""
    with opened() as session:
        session.run_step_fn(lambda step_context: step_context.request_stop())
    outcome = session.outcome
    assert (outcome.kind, outcome.who) == ("stopped", "caller")
    assert "step_fn" in outcome.why


def test_a_stop_iteration_of_its_own_is_the_end_of_input():
    """A step function that reads an exhausted iterator ends the block well."""
    hook, source = Told(), iter([1, 2])

    def step_fn(step_context):
        next(source)
        step_context.run_with_hooks("train")

    with opened(hook) as session:
        while not session.should_stop():
            session.run_step_fn(step_fn)
    assert (session.outcome.kind, session.outcome.step) == ("end_of_input", 2)
    assert hook.events == ["end"]


READS = {
    "hooked run": lambda step_context: step_context.run_with_hooks("read"),
    "backend's run": lambda step_context: step_context.session.run("read"),
}


@pytest.mark.parametrize("step_fn", READS.values(), ids=READS)
def test_the_end_of_an_input_ends_a_loop_of_step_fns(step_fn):
    """Whether it comes out of a hooked run or out of one of the backend's own."""
    with opened() as session:
        while not session.should_stop():
            session.run_step_fn(step_fn)
    assert (session.outcome.kind, session.outcome.step) == ("end_of_input", 3)


def test_a_step_fn_that_is_preempted_again_and_again_fails():
    """The number of recoveries in a row is bounded; the preemption itself leaves."""
    turns: list[int] = []

    def step_fn(step_context):
        turns.append(len(turns))
        raise AbortedError("gone")

    with pytest.raises(AbortedError, match="gone") as caught, opened() as session:
        session.run_step_fn(step_fn)
    assert len(turns) == 4
    assert "gave up after 3" in caught.value.__notes__[0]


def test_a_stop_asked_for_before_a_preemption_is_kept():
    """The second call of the function is not allowed another hooked run."""
    hook, turns = Told(stop_at=1), []

    def step_fn(step_context):
        turns.append(len(turns))
        if len(turns) == 1:
            step_context.run_with_hooks("train")
            raise AbortedError("gone")

    with opened(hook) as session:
        session.run_step_fn(step_fn)
        assert session.should_stop()
    assert turns == [0, 1]
    assert (session.outcome.kind, session.outcome.why) == ("stopped", "enough")


def test_a_step_fn_may_call_another_one():
    """Through the session that it belongs to, outside of any hook."""
    with opened() as session:
        assert session.run_step_fn(lambda step_context: session.run_step_fn(plain)) == 0
        assert session.global_step == 1
