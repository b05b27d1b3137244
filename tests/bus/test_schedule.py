"""Runs leave out the hooks that are not due, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    AbortedError,
    Config,
    Due,
    Graph,
    MonitoredSession,
    PluginError,
    Recovery,
    SecondOrStepTimer,
    SessionRunHook,
    hookimpl,
)
from hookbus.testing import run_steps
from tests.support.profiles import examples
from tests.support.watching import clock as clock

QUIET = Config(autoload=False, header=False)


class Waits(SessionRunHook):
    """Notes its calls; it is due as its answers say, and then in no run any more."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.calls: list[tuple[str, int]] = []
        self.idle: list[int] = []

    @hookimpl
    def next_due(self, global_step: int) -> Any:
        return self.answers.pop(0) if self.answers else Due()

    @hookimpl
    def idled(self, runs: int) -> None:
        self.idle.append(runs)

    def before_run(self, run_context: Any) -> None:
        self.calls.append(("before", run_context.global_step))

    def after_run(self, run_values: Any) -> None:
        self.calls.append(("after", run_values.global_step))

    @property
    def ended(self) -> list[int]:
        """The steps at the end of the runs that called it."""
        return [step for event, step in self.calls if event == "after"]


@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize(
    ("answers", "steps"),
    [
        ([Due(5)], [1, 5]),
        ([Due(runs=3)], [1, 4]),
        ([Due(9, runs=2), Due(4)], [1, 3, 4]),
        ([Due(2)], [1, 2]),
        ([Due(0)], [1, 2]),
        ([Due(time=0.0)], [1, 2]),
        ([None, None], [1, 2, 3]),
        ([Due()], [1]),
    ],
)
def test_a_run_calls_a_hook_when_it_is_due(answers, steps, custom_loop):
    """The first run calls all hooks, and asks them when they want their next one."""
    hook = Waits(*answers)
    run_steps(hook, steps=10, custom_loop=custom_loop)
    assert hook.ended == steps
    assert [step + 1 for event, step in hook.calls if event == "before"] == steps


def test_a_hook_is_told_how_many_runs_have_left_it_out():
    """Before its next run; a hook that is called each time is told nothing."""
    hook, eager = Waits(Due(5), Due(runs=4), None), Waits(*[None] * 20)
    run_steps(hook, eager, steps=12)
    assert hook.ended == [1, 5, 9, 10]
    assert hook.idle == [3, 3]
    assert eager.idle == []


def test_a_hook_is_told_before_its_state_is_saved(tmp_path):
    """A checkpoint between two of its runs has the right count."""

    class Counts(Waits):
        runs = 0

        def idled(self, runs: int) -> None:
            self.runs += runs

        idled = hookimpl(idled)

        def after_run(self) -> None:
            self.runs += 1

        def state_dict(self) -> dict[str, int]:
            return {"runs": self.runs}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.runs = state["runs"]

    first, second = Counts(Due(20)), Counts(Due(20))
    run_steps(first, steps=7, directory=tmp_path)
    assert first.runs == 7
    run_steps(second, steps=4, directory=tmp_path)
    assert second.runs == 11


def test_time_counts_at_the_end_of_a_run_too(clock):
    """A run that lasts until a hook is due calls its after_run, without before_run."""
    hook = Waits(Due(time=clock[0] + 5))

    class Lasts(SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            clock[0] += 6 if run_context.global_step == 3 else 0

    run_steps(hook, Lasts(), steps=8)
    assert hook.calls == [("before", 0), ("after", 1), ("after", 4)]


class Measures(SessionRunHook):
    """Measures something at step 3."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == 3:
            run_context.emit("measured", values={}, global_step=3)


class MeasuresIfDue(Measures):
    """Does the same, and is called for it alone."""

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(3) if global_step < 3 else Due()


@pytest.mark.parametrize("sender", [Measures, MeasuresIfDue])
def test_after_any_other_event_a_hook_is_asked_again(sender):
    """An event may make a hook due earlier."""

    class Listens(Waits):
        due = Due()

        @hookimpl
        def next_due(self) -> Due:
            return self.due

        @hookimpl
        def measured(self) -> None:
            self.due = Due(runs=2)

    hook = Listens()
    run_steps(hook, sender(), steps=8)
    assert hook.ended == [1, 5, 7]


@pytest.mark.parametrize("sender", [Measures, MeasuresIfDue])
def test_an_event_that_does_not_reach_a_hook_lets_it_wait(sender):
    """The session asks it once, after its run."""

    class Deaf(Waits):
        asked = 0

        @hookimpl
        def next_due(self) -> Due:
            self.asked += 1
            return Due()

    hook = Deaf()
    run_steps(hook, sender(), steps=8)
    assert hook.ended == [1]
    assert hook.asked == 1


def test_a_run_that_adds_another_number_of_steps_reaches_everybody():
    """Its end was not predicted, so a hook may be due that was not asked before it."""
    graph = Graph()
    graph.train_op(lambda: None, name="one")
    graph.train_op(lambda: None, name="ten", increment=10)
    graph.op(lambda: 1.0, name="read")
    hook = Waits(*[Due(1000)] * 20)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for fetch in ("one", "one", "one", "ten", "ten", "ten", "read", "read", "one"):
            session.run(fetch)
    ended = [("after", step) for step in (1, 13, 33, 33, 34)]
    assert hook.calls == [("before", 0), *ended]


def test_a_run_that_does_not_train_changes_no_prediction():
    """The next one that trains is expected to add what the last one did."""
    graph = Graph()
    graph.train_op(lambda: None, name="train")
    graph.op(lambda: 1.0, name="read")
    hook = Waits(*[Due(3)] * 4, None, None)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for fetch in ("train", "train", "read", "train"):
            session.run(fetch)
    assert hook.calls[-2:] == [("before", 2), ("after", 3)]


def test_a_session_that_never_trains_leaves_hooks_out_too():
    """By time; its global step tells nothing of runs, so that they are not counted on."""
    graph = Graph()
    graph.op(lambda: 1.0, name="read")
    waits, counts = Waits(Due(time=1e18)), Waits(*[Due(runs=3)] * 6)
    with MonitoredSession(graph, hooks=[waits, counts], config=QUIET) as session:
        for _ in range(6):
            session.run("read")
    assert len(waits.ended) == 1
    assert len(counts.ended) == 6


class WaitsFor(Waits):
    """Waits for one step, however often it is asked."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(self.step) if global_step < self.step else Due()


def test_an_observer_that_comes_in_a_run_sees_the_rest_of_it():
    """And the hooks that wait go on waiting."""
    seen: list[Any] = []

    class Observes(SessionRunHook):
        @hookimpl
        def addhooks(self, bus: Any) -> None:
            self.bus = bus

        def before_run(self, run_context: Any) -> None:
            if run_context.global_step == 2:
                self.undo = self.bus.observe(seen.append)
            if run_context.global_step == 3:
                self.undo()

        def after_run(self) -> None:
            pass

    graph, hook = Graph(), WaitsFor(5)
    graph.train_op(lambda: None, name="train")
    with MonitoredSession(graph, hooks=[hook, Observes()], config=QUIET) as session:
        for _ in range(8):
            session.run("train")
    assert hook.ended == [1, 5]
    assert sum(hook.idle) == 3
    runs = [(call.event, call.plugin) for call in seen if call.event.endswith("_run")]
    assert runs == [("after_run", "observes"), ("after_run", None)]


def test_another_answer_is_refused():
    """The error names the hook, and what to return."""
    with pytest.raises(PluginError, match=r"'waits'.*next_due\(\) returned 5; return Due"):
        run_steps(Waits(5), steps=3)


def test_a_wrapper_is_called_in_every_run():
    """It may change what the others answer."""

    class Wraps(SessionRunHook):
        runs = 0

        @hookimpl
        def next_due(self) -> Due:
            return Due()

        @hookimpl(wrapper=True)
        def before_run(self):
            self.runs += 1
            return (yield)

    hook = Wraps()
    run_steps(hook, steps=5)
    assert hook.runs == 5


class Periodic(SessionRunHook):
    """Acts at the end of a run when its timer says so; its rule is that of the timer."""

    def __init__(self, every: int) -> None:
        self.every, self.acted = every, []
        self.timer = SecondOrStepTimer(every_steps=every)

    def after_run(self, run_values: Any) -> None:
        step = run_values.global_step
        if self.timer.should_trigger_for_step(step):
            self.timer.update_last_triggered_step(step)
            self.acted.append(step)

    def state_dict(self) -> dict[str, Any]:
        return {"timer": self.timer.state_dict()}

    def load_state_dict(self, state: dict[str, Any], ended: str | None) -> None:
        self.timer.load_state_dict(state["timer"], ended)


class Patient(Periodic):
    """A hook of this kind that says when it is due."""

    @hookimpl
    def next_due(self) -> Due:
        return self.timer.next_due()


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.lists(
        st.sampled_from(["one", "one", "one", "two", "read", "lost", "aux"]), max_size=40
    ),
)
def test_a_hook_that_says_when_it_is_due_does_what_it_did_before(periods, runs):
    """Whatever runs come: of other steps, without any, preempted ones, of another kind."""

    def acts(make: type[Periodic]) -> list[list[int]]:
        graph, hooks, cut = Graph(), [make(every) for every in periods], []

        def step() -> None:
            if cut:
                raise cut.pop()

        graph.train_op(step, name="one")
        graph.train_op(step, name="two", increment=2)
        graph.op(step, name="read")
        at_once = Recovery(most=100, first_wait=0)
        with MonitoredSession(
            graph, hooks=hooks, config=QUIET, recovery=at_once
        ) as session:
            for run in runs:
                if run == "lost":
                    cut.append(AbortedError("preempted"))
                session.run("one" if run in ("lost", "aux") else run, kind=_kind(run))
        return [hook.acted for hook in hooks]

    assert acts(Patient) == acts(Periodic)


def _kind(run: str) -> Any:
    return "aux" if run == "aux" else None
