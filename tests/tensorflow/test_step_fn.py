"""Step functions: what they must look like, what they get, how they stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hookbus
from hookbus import (
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
)

OFF = hookbus.Config(autoload=False)
EVERY_CLASS = [MonitoredSession, SingularMonitoredSession, MonitoredTrainingSession]


class Trace(SessionRunHook):
    """Writes down its calls and what it got; asks for n, and to stop at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[str] = []
        self.results: list[Any] = []
        self.stop_at = stop_at

    def before_run(self):
        self.calls.append("before_run")
        return SessionRunArgs("n")

    def after_run(self, run_context, run_values):
        self.calls.append("after_run")
        self.results.append(run_values.results)
        if run_values.global_step == self.stop_at:
            run_context.request_stop()

    def end(self):
        self.calls.append("end")


def counting() -> Graph:
    """Return a graph whose train op counts in n; fed ``broken``, it is preempted."""
    graph = Graph()
    graph.variable("n", 0)
    graph.variable("broken", False)

    @graph.train_op(updates="n")
    def train(n, broken):
        if broken:
            raise hookbus.AbortedError("gone")
        return n + 1

    return graph


def opened(*hooks: Any, cls: type = MonitoredSession) -> Any:
    more = {} if cls is SingularMonitoredSession else {"recovery": hookbus.Recovery(5, 0.0)}
    return cls(counting(), hooks=hooks, config=OFF, **more)


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_what_a_step_fn_returns_is_returned(cls):
    """Whatever it is, a type for instance."""
    with opened(cls=cls) as session:
        assert session.run_step_fn(lambda step_context: int) is int


def test_the_session_of_a_step_context_reaches_no_hook():
    """It is the backend session."""
    hook = Trace()
    with opened(hook) as session:
        run = session.run_step_fn(
            lambda step_context: step_context.session.run(["n", "train"])
        )
        assert run == [0, None]
        assert hook.calls == []
        assert session.global_step == 1


def test_run_with_hooks_is_what_run_is_outside():
    """Hooks are asked before it, their fetches join the caller's, they are told after."""
    hook = Trace()
    with opened(hook) as session:
        values = session.run_step_fn(
            lambda step_context: step_context.run_with_hooks(
                {"n": "n", "_": "train"}, feed_dict={"n": 5}
            )
        )
        assert values == {"n": 5, "_": None}
        assert session.run("n") == 6
    assert hook.results == [5, 6]


def test_run_with_hooks_may_be_called_several_times():
    """Each call is a full turn of all hooks."""
    hook = Trace()

    def step_fn(step_context):
        return [step_context.run_with_hooks(["n", "train"])[0] for _ in range(3)]

    with opened(hook) as session:
        assert session.run_step_fn(step_fn) == [0, 1, 2]
        assert hook.calls == ["before_run", "after_run"] * 3


def test_backend_runs_and_hooked_runs_work_on_one_state():
    """Runs of a step function before, between and after are seen by the hooks' runs."""
    hook = Trace()

    def step_fn(step_context):
        step_context.session.run("train")
        step_context.run_with_hooks("train")
        step_context.session.run("train")
        return step_context.run_with_hooks("n")

    with opened(hook) as session:
        assert session.run_step_fn(step_fn) == 3
    assert hook.results == [1, 3]


def test_run_with_hooks_after_a_stop_is_an_error():
    """A hook stopped the session in the run before."""

    def step_fn(step_context):
        step_context.run_with_hooks("train")
        step_context.run_with_hooks("train")

    with opened(Trace(stop_at=1)) as session:
        with pytest.raises(
            RuntimeError, match="Run called even after should_stop requested"
        ):
            session.run_step_fn(step_fn)
        assert session.should_stop()
    assert session.global_step == 1


def stops(step_context):
    step_context.session.run("train")
    step_context.request_stop()
    raise AssertionError("the step function goes on")


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_request_stop_leaves_the_step_fn_at_once(cls):
    """It raises StopIteration where it is called, and no hook is told."""
    hook = Trace()
    session = opened(hook, cls=cls)
    with pytest.raises(StopIteration, match="step_fn has requested the iterations to stop"):
        session.run_step_fn(stops)
    assert hook.calls == []
    session.close()


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_request_stop_ends_the_block_cleanly(cls):
    """The rest of the body is skipped, hooks are told by ``end``, nothing is raised."""
    hook, reached = Trace(), []
    with opened(hook, cls=cls) as session:
        session.run_step_fn(stops)
        reached.append("the rest")
    assert reached == []
    assert hook.calls == ["end"]
    assert session.should_stop()


def test_request_stop_ends_a_loop():
    """A loop around a step function needs no condition of its own."""

    def step_fn(step_context):
        if step_context.session.run("n") == 3:
            step_context.request_stop()
        return step_context.run_with_hooks(["n", "train"])[0]

    seen = []
    with opened() as session:
        while not session.should_stop():
            seen.append(session.run_step_fn(step_fn))
    assert seen == [0, 1, 2]


def test_without_a_block_request_stop_leaves_should_stop_false():
    """The StopIteration reaches the caller, and the session goes on."""
    session = opened()
    with pytest.raises(StopIteration):
        session.run_step_fn(stops)
    assert not session.should_stop()
    session.run("train")
    assert session.global_step == 2
    session.close()


def nothing():
    pass


def other_name(context):
    pass


def one_more(step_context, session):
    pass


def with_default(step_context, rate=0.1):
    pass


def variadic(*args):
    pass


@pytest.mark.parametrize("step_fn", [nothing, other_name, one_more, with_default, variadic])
def test_a_step_fn_takes_step_context_and_nothing_else(step_fn):
    """The argument is told by its name; another list of them is a ValueError."""
    with (
        opened() as session,
        pytest.raises(ValueError, match="`step_fn` may either have one `step_context`"),
    ):
        session.run_step_fn(step_fn)


class Model:
    """Has a step function for a method."""

    rate = 3

    def step(self, step_context):
        step_context.run_with_hooks("train")
        return self.rate

    def too_much(self, step_context, value):
        pass


def test_a_method_is_a_step_fn():
    """Its ``self`` does not count, and it can use its object."""
    with opened() as session:
        assert session.run_step_fn(Model().step) == 3
        assert session.global_step == 1


def test_a_method_takes_no_other_argument_either():
    """The same check as for functions."""
    with opened() as session, pytest.raises(ValueError, match="step_context"):
        session.run_step_fn(Model().too_much)


def own_code(step_context):
    raise hookbus.AbortedError("gone")


def hooked_run(step_context):
    step_context.run_with_hooks("train", feed_dict={"broken": True})


def backend_run(step_context):
    step_context.session.run("train", {"broken": True})


PREEMPTIONS: list[Callable[..., Any]] = [own_code, hooked_run, backend_run]


@pytest.mark.parametrize("preempted", PREEMPTIONS)
@pytest.mark.parametrize("cls", [MonitoredSession, MonitoredTrainingSession])
def test_a_preempted_step_fn_is_called_again(cls, preempted):
    """The whole function, wherever it was preempted; what it did outside is done twice."""
    turns: list[int] = []

    def step_fn(step_context):
        turns.append(len(turns))
        step_context.run_with_hooks("train")
        if len(turns) == 1:
            preempted(step_context)
        return step_context.run_with_hooks("n")

    with opened(cls=cls) as session:
        assert session.run_step_fn(step_fn) == 1
        assert not session.should_stop()
    assert turns == [0, 1]


def test_the_second_call_gets_the_new_backend_session():
    """Its ``session`` is open, and is the one that hooked runs use."""
    sessions = []

    def step_fn(step_context):
        sessions.append(step_context.session)
        if len(sessions) == 1:
            own_code(step_context)
        step_context.session.run("train")
        return step_context.run_with_hooks("n")

    with opened() as session:
        assert session.run_step_fn(step_fn) == 1
    assert sessions[0] is not sessions[1]


@pytest.mark.parametrize("preempted", PREEMPTIONS)
def test_a_singular_session_calls_a_step_fn_once(preempted):
    """A preemption leaves it, like any error."""
    turns: list[int] = []

    def step_fn(step_context):
        turns.append(len(turns))
        preempted(step_context)

    with (
        pytest.raises(hookbus.AbortedError),
        opened(cls=SingularMonitoredSession) as session,
    ):
        session.run_step_fn(step_fn)
    assert turns == [0]
