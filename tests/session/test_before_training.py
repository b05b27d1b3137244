"""Tests the event before the first step: hooks read and write restored values there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import (
    AbortedError,
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    Outcome,
    Recovery,
    SessionRunHook,
    UsageError,
    hookimpl,
    load_tracked,
)
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.errors import PeersDisagreeError
from tests.support.thread_library import ranked, thread_library

OFF = Config(autoload=False, header=False)


class ReadyHook(SessionRunHook):
    """Reads a variable before training, and may do more."""

    def __init__(
        self, name: str = "model.w", does: Callable[[Any], object] | None = None
    ) -> None:
        self.name, self.does, self.told = name, does or (lambda context: None), []

    @hookimpl
    def before_first_run(self) -> None:
        self.told.append("before the first run")

    @hookimpl
    def before_training(self, session: Any, run_context: Any) -> None:
        assert session is run_context.session
        value = np.array(session.run(self.name)).tolist()
        self.told.append(("ready", run_context.global_step, value))
        self.does(run_context)

    def before_run(self) -> None:
        self.told.append("run")


def counting() -> Graph:
    """Return a graph whose train op adds to w."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.variable("other", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return graph


def saving(*hooks: Any, graph: Graph | None = None, **more: Any) -> MonitoredSession:
    """Open a session that saves into ``runs`` every two steps."""
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
        hooks=hooks,
        config=OFF,
        **more,
    )


def loop(*hooks: Any, steps: int = 3, first: float = 0.0) -> tuple[Any, list[float]]:
    """Train in a custom loop; return the session, and the values in the bodies of steps."""
    seen, model = [], {"w": np.array(first)}
    with saving(*hooks) as session:
        session.track(model=model)
        for _ in session.iterate(range(steps)):
            with session.step():
                seen.append(float(model["w"]))
                model["w"] += 1
    return session, seen


def weight_in(step: int) -> float:
    """Return the weight in the checkpoint of a step."""
    return float(load_tracked(f"runs/ckpt-{step}", "model")["w"])


def test_in_a_graph_it_comes_after_everything_is_restored():
    """Each session has it once, before its first run."""
    for step in (0, 2):
        hook = ReadyHook("w")
        with saving(hook, graph=counting()) as session:
            for _ in range(2):
                session.run("train")
        ready = "ready", step, float(step)
        assert hook.told == ["before the first run", ready, "run", "run"]


def test_in_a_loop_it_comes_when_the_first_step_is_entered():
    """The objects are tracked and restored by then, also in the middle of a pass."""
    hook = ReadyHook()
    loop(hook, steps=3, first=5.0)
    assert hook.told == ["before the first run", ("ready", 0, 5.0), "run", "run", "run"]
    hook = ReadyHook()
    _, seen = loop(hook, steps=5)
    assert hook.told[:2] == ["before the first run", ("ready", 3, 8.0)]
    assert seen == [8.0, 9.0]


@pytest.mark.parametrize("now", [False, True])
def test_the_body_of_the_first_step_sees_what_hooks_assign(now):
    """The first checkpoint contains it."""
    hook = ReadyHook(does=lambda context: context.assign({"model.w": 7.0}, now=now))
    late = ReadyHook()
    _, seen = loop(hook, late, steps=2)
    assert seen == [7.0, 8.0]
    assert late.told[1] == ("ready", 0, 7.0 if now else 0.0)
    assert (weight_in(0), weight_in(2)) == (7.0, 9.0)


@pytest.mark.parametrize("now", [False, True])
def test_the_first_run_of_a_graph_reads_what_hooks_assign(now):
    """As if the graph had begun so."""
    hook = ReadyHook("w", lambda context: context.assign({"w": 7.0}, now=now))
    with saving(hook, graph=counting()) as session:
        assert session.run(["w", "train"])[0] == 7.0
    assert read_checkpoint(Path("runs/ckpt-0")).state["variables"]["w"] == 7.0


@pytest.mark.parametrize("kind", ["stopped", "preempted"])
def test_a_stop_ends_the_session_before_the_body_of_the_first_step(kind):
    """Also in the middle of a pass; the next session goes on there."""
    loop(steps=3)
    stop = ReadyHook(does=lambda context: context.request_stop("bad", kind, "early"))
    seen: list[float] = []
    model = {"w": np.array(0.0)}
    with saving(stop, exit_on_signal=False) as session:
        session.track(model=model)
        for _ in session.iterate(range(5)):
            with session.step():
                seen.append(float(model["w"]))
    assert seen == []
    assert session.outcome == Outcome(kind, "ready", "bad", 3, label="early")
    assert "run" not in stop.told
    _, seen = loop(steps=5)
    assert seen == [3.0, 4.0]


def test_a_stop_ends_a_graph_before_its_first_run():
    """All hooks get the event."""
    hooks = [ReadyHook("w", lambda context: context.request_stop("bad")), ReadyHook("w")]
    with saving(*hooks, graph=counting()) as session:
        assert list(session.loop()) == []
    assert session.outcome == Outcome("stopped", "ready", "bad", 0)
    assert [len(hook.told) for hook in hooks] == [2, 2]


def test_a_requested_checkpoint_is_the_first_one():
    """In the middle of a pass as well."""
    keep = ReadyHook(does=lambda context: context.request_save("ready", keep=True))
    for step in (0, 3):
        loop(keep, steps=step + 3)
        kept = read_checkpoint(Path(f"runs/ckpt-{step}")).manifest.kept
        assert kept == {"ready": "ready"}


@pytest.mark.parametrize("method", ["skip_update", "request_rollback"])
def test_what_concerns_a_run_is_an_error(method):
    """There is no run yet."""
    hook = ReadyHook("w", lambda context: getattr(context, method)())
    with pytest.raises(UsageError) as caught, saving(hook, graph=counting()):
        pass
    assert str(caught.value) == (
        f"hook 'ready' called run_context.{method}() before the first run; it concerns a "
        "run: call it in before_run() or later"
    )


def test_afterwards_the_context_takes_no_requests():
    """Those of the first run go through its own."""
    kept: list[Any] = []
    hook = ReadyHook("w", kept.append)
    with saving(hook, graph=counting()) as session:
        session.run("train")
        with pytest.raises(UsageError, match="after the run of this context"):
            kept[0].assign({"w": 1.0})


def test_two_hooks_that_assign_one_variable_are_both_named():
    """As in a run."""
    hooks = [
        type(name, (ReadyHook,), {})(does=lambda context: context.assign({"model.w": 1.0}))
        for name in ("FirstHook", "SecondHook")
    ]
    with pytest.raises(Exception, match="'first' and 'second'"):
        loop(*hooks)


def test_a_session_that_is_over_has_no_training():
    """A hook has declared the training finished."""

    class OverHook(SessionRunHook):
        @hookimpl
        def before_first_run(self) -> str:
            return "all is done"

    graph, custom = ReadyHook("w"), ReadyHook()
    with saving(OverHook(), graph, graph=counting()):
        pass
    with MonitoredSession(hooks=[OverHook(), custom], config=OFF) as session:
        session.track(model={"w": 0.0})
        with session.step():
            raise AssertionError("a step was run")
    assert graph.told == custom.told == []


@pytest.mark.parametrize("graph", [False, True])
def test_an_evaluation_is_no_training(graph):
    """Nor is a step of another kind: the first one that trains begins it."""
    hook = ReadyHook("w" if graph else "model.w")
    made = counting() if graph else None
    with MonitoredSession(made, hooks=[hook], config=OFF, kind="eval") as session:
        if graph:
            session.run("w")
        else:
            with session.step():
                pass
    assert hook.told == ["run"]
    hook = ReadyHook()
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        session.track(model={"w": 1.0})
        for _ in range(2):
            with session.step(kind="aux"):
                pass
        assert hook.told == ["before the first run"]
        for _ in range(2):
            with session.step():
                pass
    assert hook.told[1:] == [("ready", 0, 1.0), "run", "run"]


def test_after_a_preemption_it_comes_again():
    """For the new backend session, with what that has restored."""

    class FailsHook(SessionRunHook):
        failed = False

        def after_run(self, run_values: Any) -> None:
            if run_values.global_step == 3 and not self.failed:
                self.failed = True
                raise AbortedError("the machine is lost")

    hook = ReadyHook("w", lambda context: context.assign({"other": 5.0}))
    with saving(
        hook, FailsHook(), graph=counting(), recovery=Recovery(first_wait=0.0)
    ) as session:
        for _ in range(3):
            session.run("train")
        assert session.run("other", kind="aux") == 5.0
    assert [each for each in hook.told if each[0] == "ready"] == [
        ("ready", 0, 0.0),
        ("ready", 2, 2.0),
    ]


class BackHook(SessionRunHook):
    """Goes back once, after the third step."""

    has_asked = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == 3 and not self.has_asked:
            self.has_asked = True
            run_context.request_rollback("a spike", skip_inputs=False)


@pytest.mark.parametrize("graph", [False, True])
def test_after_a_roll_back_it_comes_again(graph):
    """A value that a hook sets before training also holds in the repeated steps."""
    name = "w" if graph else "model.w"
    hook = ReadyHook(name)
    if graph:
        with saving(hook, BackHook(), graph=counting()) as session:
            for _ in range(4):
                session.run("train")
    else:
        _, seen = loop(hook, BackHook(), steps=4)
        assert seen == [0.0, 1.0, 2.0, 2.0, 3.0]
    assert [each for each in hook.told if each[0] == "ready"] == [
        ("ready", 0, 0.0),
        ("ready", 2, 2.0),
    ]


def test_an_undone_first_step_begins_as_it_did():
    """The state from before the value was pulled lacks what hooks have assigned."""

    class UndoesHook(SessionRunHook):
        options = HookOptions(rolls_back="step")
        undone: tuple[int, ...] = ()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = run_values.global_step
            if step in (1, 3) and step not in self.undone:
                self.undone = (*self.undone, step)
                run_context.request_rollback("again", to="step")

    hook = ReadyHook(does=lambda context: context.assign({"model.w": 7.0}))
    _, seen = loop(hook, UndoesHook(), steps=3)
    assert seen == [7.0, 7.0, 8.0, 9.0, 9.0]
    ready = "ready", 0, 0.0
    assert [each for each in hook.told if each[0] == "ready"] == [ready, ready]


def test_a_wrapped_first_value_is_no_obstacle():
    """The assignment is there in the body; the rest waits until that is over."""

    class WrapsHook(SessionRunHook):
        def begin(self, graph: Graph) -> None:
            graph.wrap("batch", lambda batch: batch + 1)

    def does(context: Any) -> None:
        context.assign({"model.w": 7.0})
        context.request_save("ready")
        context.request_stop("bad")

    seen, model = [], {"w": np.array(0.0)}
    with saving(WrapsHook(), ReadyHook(does=does)) as session:
        session.track(model=model)
        for batch in session.iterate([1, 2, 3], name="batch"):
            with session.step():
                seen.append((batch, float(model["w"])))
    assert seen == [(2, 7.0)]
    assert session.outcome == Outcome("stopped", "ready", "bad", 1)


def test_a_driven_loop_is_told_of_the_stop():
    """With a graph before its first step, without one after it."""
    stop = ReadyHook("w", lambda context: context.request_stop("bad"))
    graph = counting()
    with DrivenSession(graph, hooks=[stop], config=OFF) as driven:
        driven.begin()
        driven.created(EmbeddedSession(graph))
        assert driven.stop.why == "bad"
    stop, model = ReadyHook(does=stop.does), {"w": np.array(0.0)}
    with DrivenSession(hooks=[stop], config=OFF) as driven:
        driven.begin()
        driven.created()
        driven.track(model=model)
        assert driven.stop is None
        driven.before_step()
        assert driven.after_step().why == "bad"


@pytest.fixture
def _library(tmp_path) -> Iterator[None]:
    """The library whose ranks are threads."""
    with thread_library(tmp_path / "library"):
        yield


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("graph", [False, True])
def test_all_ranks_stop_if_one_wants_it(graph):
    """Before the first step."""

    def run(rank: int) -> Any:
        def does(context: Any) -> None:
            if rank == 1:
                context.request_stop("bad")

        hooks = [ReadyHook("w" if graph else "model.w", does)]
        made = counting() if graph else None
        with MonitoredSession(made, hooks=hooks, config=OFF) as session:
            if graph:
                list(session.loop())
            else:
                session.track(model={"w": 0.0})
                for _ in session.iterate(range(3)):
                    with session.step():
                        pass
        return session.outcome.why, session.outcome.step

    assert ranked(2, run) == [("bad (rank 1)", 0)] * 2


@pytest.mark.usefixtures("_library")
def test_ranks_that_assign_other_values_are_an_error():
    """As after a run."""

    def run(rank: int) -> Any:
        hook = ReadyHook("w", lambda context: context.assign({"other": float(rank)}))
        try:
            with MonitoredSession(counting(), hooks=[hook], config=OFF) as session:
                session.run("train")
        except PeersDisagreeError as error:
            return str(error)
        return None

    for told in ranked(2, run):
        assert told.startswith("the ranks differ in the values that hooks have assigned")
