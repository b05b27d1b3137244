"""Tests a session that a foreign loop drives: its events, and what the loop is told."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import (
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    OutOfRangeError,
    RunAfterStopError,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.errors import ArgumentTypeError, SessionClosedError
from hookbus.testing import Recorder
from tests.support.handlers import SIGNALS, exits_by

OFF = Config(autoload=False, header=False)
MOMENTS = ("begin", "created", "before_step", "after_step", "cancel_step", "end")


def make_graph() -> Graph:
    """Return a graph whose train op adds x to w."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.placeholder("x")
    graph.op(lambda w: w * 2, name="double")
    graph.train_op(lambda w, x: w + x, name="train", updates="w")
    return graph


def driven_by(*hooks: Any, graph: Graph | None = None, **arguments: Any) -> DrivenSession:
    return DrivenSession(graph or make_graph(), hooks, config=OFF, **arguments)


def start(driven: DrivenSession) -> EmbeddedSession:
    """Call the events up to the first step; return the backend session."""
    driven.begin()
    engine = EmbeddedSession(driven.graph)
    driven.created(engine)
    return engine


def step(driven: DrivenSession, engine: EmbeddedSession) -> hookbus.StopReason | None:
    """Do one step, as a loop does that knows nothing of the hooks."""
    wanted = driven.before_step()
    names = [*wanted.fetches, "train"]
    values = engine.run(names, {"x": 1.0, **wanted.feeds})
    return driven.after_step(dict(zip(names, values, strict=True)))


def loop(driven: DrivenSession, most: int = 100) -> None:
    """Drive a session to its end."""
    with driven:
        engine = start(driven)
        while driven.stop is None and driven.global_step < most:
            step(driven, engine)


def fail_in_a_step(driven: DrivenSession, error: Exception) -> None:
    """Do one step, and fail in the next one."""
    step(driven, start(driven))
    driven.before_step()
    raise error


def saved_step() -> int:
    """Return the step of the newest checkpoint."""
    found = hookbus.latest_checkpoint("run")
    assert found is not None
    return found.global_step


class LookHook(SessionRunHook):
    """Fetches a node, and keeps its values and the steps."""

    def __init__(self, fetches: Any = "w") -> None:
        self.fetches, self.seen, self.told = fetches, [], []

    def after_create_session(self, session):
        self.told.append(f"created at {session.global_step}")

    def before_run(self):
        return SessionRunArgs(self.fetches)

    def after_run(self, run_values):
        self.seen.append((run_values.global_step, run_values.results))

    def end(self, outcome):
        self.told.append(f"end {outcome.kind}")

    def on_exception(self, exception):
        self.told.append(repr(exception))

    @hookimpl
    def cancelled(self):
        self.told.append("cancelled")


class StopHook(SessionRunHook):
    """Asks to stop after a step, with a state that says how many steps it saw."""

    def __init__(self, at: int) -> None:
        self.at, self.steps = at, 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if run_values.global_step == self.at:
            run_context.request_stop("enough")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state, ended):
        self.steps = state["steps"]


def test_hooks_get_the_events_of_a_monitored_session() -> None:
    """The calls, their order and their hooks are those of a MonitoredSession."""

    def hooks(directory: str) -> list[Any]:
        return [
            LookHook({"a": "w", "b": "double"}),
            CheckpointSaverHook(directory, save_steps=2),
            NanTensorHook("double"),
            StopAtStepHook(last_step=5),
            Recorder(),
        ]

    driven, own = hooks("a"), hooks("b")
    loop(driven_by(*driven))
    with MonitoredSession(make_graph(), hooks=own, config=OFF) as session:
        while not session.should_stop():
            session.run("train", {"x": 1.0})
    calls = [
        [(call.event, call.plugin) for call in each[-1].calls] for each in (driven, own)
    ]
    assert calls[0] == calls[1]
    assert (
        driven[0].seen == own[0].seen == [(n + 1, {"a": n, "b": 2 * n}) for n in range(5)]
    )
    assert driven[0].told == own[0].told == ["created at 0", "end stopped"]


def test_a_stop_is_returned_with_its_reason() -> None:
    """The loop learns who asked and why, the outcome says it, and a further step fails."""
    driven = driven_by(StopHook(2))
    engine = start(driven)
    assert step(driven, engine) is None
    assert driven.stop is None
    stop = step(driven, engine)
    assert stop is not None
    assert stop == driven.stop
    assert (stop.who, stop.why, stop.kind) == ("stop", "enough", "stopped")
    with pytest.raises(RunAfterStopError, match=r"stop stopped the session \(enough\)"):
        driven.before_step()
    assert driven.before_step(kind="aux").fetches == ()
    outcome = driven.end()
    assert outcome == hookbus.Outcome("stopped", "stop", "enough", 2)
    assert driven.outcome == outcome
    assert driven.stop == stop


def test_a_request_names_each_node_once() -> None:
    """Several hooks that want a node have the loop fetch it once; it may give more."""
    graph = make_graph()
    first = LookHook(["w", "double"])
    second = LookHook({"again": graph.resolve("w")})
    driven = driven_by(first, second, graph=graph)
    engine = start(driven)
    wanted = driven.before_step()
    assert wanted.fetches == ("w", "double")
    assert wanted.options == RunOptions()
    engine.run("train", {"x": 1.0})
    driven.after_step({"double": 7.0, "w": 3.0, "unasked": None})
    driven.end()
    assert first.seen == [(1, [3.0, 7.0])]
    assert second.seen == [(1, {"again": 3.0})]


def test_hooks_see_what_the_loop_fetches() -> None:
    """It is in ``original_args``, and the request names only what hooks want besides."""

    class OriginalHook(SessionRunHook):
        def before_run(self, run_context):
            self.fetches = run_context.original_args.fetches

    hook, look = OriginalHook(), LookHook("w")
    driven = driven_by(hook, look)
    start(driven)
    assert driven.before_step(["double", "train"]).fetches == ("w",)
    assert hook.fetches == ["double", "train"]
    driven.after_step({"w": 1.0})
    driven.before_step()
    assert hook.fetches == []
    driven.end()
    assert look.seen == [(0, 1.0)]


class AskHook(SessionRunHook):
    """Feeds x, asks for a trace, and keeps the record."""

    def before_run(self):
        return SessionRunArgs("w", {"x": 10.0}, RunOptions(RunOptions.FULL_TRACE))

    def after_run(self, run_values):
        self.record = run_values.run_metadata.native, run_values.options.trace_level


def test_feeds_and_options_reach_the_loop() -> None:
    """The request has the feeds of hooks, and the loop fills in the record of the run."""
    hook = AskHook()
    driven = driven_by(hook, serves={"feed"})
    engine = start(driven)
    wanted = driven.before_step()
    assert dict(wanted.feeds) == {"x": 10.0}
    wanted.metadata.native = {"level": wanted.options.trace_level}
    names = [*wanted.fetches, "train"]
    driven.after_step(dict(zip(names, engine.run(names, wanted.feeds), strict=True)))
    driven.end()
    assert hook.record == ({"level": 3}, 3)
    assert engine.variables()["w"] == 10.0


class AssignHook(SessionRunHook):
    """Assigns w before one step and after another."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def before_run(self, run_context):
        if run_context.global_step == 0:
            run_context.assign({"w": 100.0})

    def after_run(self, run_context):
        self.seen.append(run_context.session.run("w"))
        if run_context.global_step == 1:
            run_context.assign({"w": 50.0})


def test_assignments_are_made_at_the_end_of_the_step() -> None:
    """One of ``before_run`` does not change what the step reads; the next one sees both."""
    look, hook = LookHook(), AssignHook()
    loop(driven_by(look, hook), most=3)
    assert [value for _, value in look.seen] == [0.0, 100.0, 50.0]
    assert hook.seen == [100.0, 101.0, 51.0]


def test_nodes_that_hooks_add_are_there_when_the_backend_is_created() -> None:
    """The graph may change until ``created``: by hooks in ``begin``, and by the loop."""

    class AddHook(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda w: w + 0.5, name="half")

    look = LookHook(["half", "late"])
    driven = driven_by(AddHook(), look)
    driven.begin()
    driven.graph.op(lambda w: -w, name="late")
    engine = EmbeddedSession(driven.graph)
    driven.created(engine)
    step(driven, engine)
    with pytest.raises(hookbus.errors.GraphFinalizedError):
        driven.graph.op(lambda w: w, name="too_late")
    driven.end()
    assert look.seen == [(1, [0.5, 0.0])]


def test_it_saves_and_resumes() -> None:
    """A session with a checkpoint_dir restores variables, step and hooks."""
    flags = {"HOOKBUS_ADDOPTS": "--checkpoint-saver-save-steps=2"}
    config = Config.from_environment(flags)
    for last, steps in ((3, 3), (7, 7)):
        hook = StopHook(last)
        driven = DrivenSession(make_graph(), [hook], "run", config=config)
        loop(driven)
        assert hook.steps == steps
        assert driven.global_step == last
    assert json.loads(Path("run/outcome.json").read_text("utf-8"))["step"] == 7
    assert saved_step() == 7


def test_a_complete_training_does_no_step() -> None:
    """If a hook declares the training complete, the loop stops before its first step."""
    for stops in (False, True):
        driven = driven_by(StopAtStepHook(last_step=2), checkpoint_dir="run")
        start(driven)
        assert (driven.stop is not None) == stops
        while driven.stop is None:
            step(driven, driven._state.backend.session)
        driven.end()
    assert driven.outcome is not None
    assert (driven.outcome.kind, driven.outcome.who) == ("stopped", "stop-at-step")


def test_a_failed_step_is_forgotten_when_the_loop_recovers() -> None:
    """``created`` restores again; hooks get ``after_create_session`` and their state."""
    look, hook = LookHook(), StopHook(4)
    saver = CheckpointSaverHook("run", save_steps=3)
    driven = driven_by(look, hook, saver, checkpoint_dir="run")
    engine = start(driven)
    for _ in range(3):
        step(driven, engine)
    driven.before_step()  # and the engine fails
    engine = EmbeddedSession(driven.graph)
    driven.created(engine)
    assert (driven.global_step, engine.variables()["w"], hook.steps) == (3, 3.0, 3)
    assert step(driven, engine) is not None
    driven.end()
    assert look.told == ["created at 0", "created at 3", "end stopped"]
    assert [n for n, _ in look.seen] == [1, 2, 3, 4]


def test_hooks_keep_their_state_if_the_loop_restores_by_itself() -> None:
    """Without a checkpoint_dir the loop may have restored a later step than the first."""
    hook = StopHook(9)
    driven = driven_by(hook)
    engine = start(driven)
    step(driven, engine)
    engine = EmbeddedSession(driven.graph)
    engine.global_step = 1
    engine.write({"w": 1.0})
    driven.created(engine)
    step(driven, engine)
    driven.end()
    assert hook.steps == 2


@pytest.mark.parametrize("directory", [None, "run"])
def test_a_backend_that_is_lost_before_it_is_ready_is_replaced(directory) -> None:
    """If ``created`` raises a preemption, the loop may call it again with another one."""

    class LostHook(SessionRunHook):
        lost = False

        def after_create_session(self):
            if not self.lost:
                self.lost = True
                raise hookbus.AbortedError("lost")

    look = LookHook()
    driven = driven_by(LostHook(), look, checkpoint_dir=directory)
    driven.begin()
    with pytest.raises(hookbus.AbortedError):
        driven.created(EmbeddedSession(driven.graph))
    engine = EmbeddedSession(driven.graph)
    driven.created(engine)
    step(driven, engine)
    driven.end()
    assert look.told == ["created at 0", "end completed"]
    assert (Path("run/ckpt-1").exists()) == (directory is not None)


def test_a_stop_in_a_failed_step_holds_for_its_repetition() -> None:
    """It takes effect after the step that is repeated, although nobody asks again."""

    class OnceHook(SessionRunHook):
        asked = False

        def before_run(self, run_context):
            if not self.asked:
                self.asked = True
                run_context.request_stop("once")

    driven = driven_by(OnceHook())
    start(driven)
    driven.before_step()
    engine = EmbeddedSession(driven.graph)
    driven.created(engine)
    assert driven.stop is None
    stop = step(driven, engine)
    assert stop is not None
    assert stop.why == "once"
    driven.end()


def test_a_step_can_be_left_out() -> None:
    """After ``cancel_step`` the step does not count, and the next one may begin."""
    look = LookHook()
    driven = driven_by(look)
    engine = start(driven)
    driven.before_step()
    driven.cancel_step()
    step(driven, engine)
    driven.end()
    assert look.told == ["created at 0", "cancelled", "end completed"]
    assert look.seen == [(1, 0.0)]


def test_what_hooks_ask_for_in_a_step_that_is_left_out_is_served() -> None:
    """A stop takes effect and an assignment is made; the step is not counted."""

    class EagerHook(SessionRunHook):
        def before_run(self, run_context):
            run_context.assign({"w": 100.0})
            run_context.request_stop("at once")

    driven = driven_by(EagerHook())
    engine = start(driven)
    driven.before_step()
    driven.cancel_step()
    assert driven.stop is not None
    assert driven.stop.why == "at once"
    assert engine.variables()["w"] == 100.0
    assert driven.end().step == 0


def test_a_request_after_the_step_is_refused() -> None:
    """A hook that keeps its context cannot use it between two steps."""

    class KeepHook(SessionRunHook):
        def after_run(self, run_context):
            self.context = run_context

    hook = KeepHook()
    driven = driven_by(hook)
    step(driven, start(driven))
    with pytest.raises(UsageError, match="after the run of this context"):
        hook.context.request_stop("too late")
    driven.end()


def test_an_error_reaches_the_hooks() -> None:
    """An error that leaves the block is told to hooks, and goes on."""
    look = LookHook()
    driven = driven_by(look)
    error = ZeroDivisionError("in the engine")
    with pytest.raises(ZeroDivisionError), driven:
        fail_in_a_step(driven, error)
    assert look.told == ["created at 0", "ZeroDivisionError('in the engine')"]
    assert driven.outcome is not None
    assert (driven.outcome.kind, driven.outcome.step) == ("failed", 1)
    assert driven.outcome.why == "ZeroDivisionError: in the engine"


def test_an_error_of_a_hook_is_that_of_the_loop() -> None:
    """A hook's error leaves the method; given to ``failed``, the outcome names it."""
    driven = driven_by(NanTensorHook("double"))
    engine = start(driven)
    engine.write({"w": float("nan")})
    with pytest.raises(hookbus.TrainingError) as caught:
        step(driven, engine)
    assert driven.failed(caught.value).who == "nan-tensor"


def test_an_error_before_the_first_step_reaches_those_that_began() -> None:
    """If ``begin`` of a hook fails, those before it get ``on_exception``."""

    class BadHook(SessionRunHook):
        def begin(self):
            raise ZeroDivisionError("bad")

    look, late = LookHook(), LookHook()
    driven = driven_by(look, BadHook(), late)
    with pytest.raises(ZeroDivisionError), driven:
        start(driven)
    assert (look.told, late.told) == (["ZeroDivisionError('bad')"], [])


def test_the_end_of_input_is_a_good_end() -> None:
    """An OutOfRangeError ends it as every session; the step that began is forgotten."""
    look = LookHook()
    driven = driven_by(look)
    with driven:
        fail_in_a_step(driven, OutOfRangeError("no more"))
    assert look.told == ["created at 0", "end end_of_input"]
    assert driven.outcome == hookbus.Outcome("end_of_input", "input", "no more", 1)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["between", "inside"])
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "custom"])
def test_a_signal_ends_it_after_the_step(number: int, moment: str, graph: bool) -> None:
    """The step is finished and saved, the loop told, and the end exits as everywhere."""
    hooks, stops = [CheckpointSaverHook("run", save_steps=100)], []
    with exits_by(number), driven_session(graph, hooks, checkpoint_dir="run") as driven:
        act = begun(driven)
        act(driven, {})
        if moment == "between":
            os.kill(os.getpid(), number)
            driven.before_step()
        else:
            driven.before_step()
            os.kill(os.getpid(), number)
        stops.append(driven.after_step({"w": 1.0}))
    assert [stop.who for stop in stops] == [signal.Signals(number).name]
    assert driven.outcome is not None
    kind = "interrupted" if number == signal.SIGINT else "preempted"
    assert driven.outcome.kind == kind
    assert saved_step() == driven.global_step


def driven_session(graph: bool, hooks: list[Any], **arguments: Any) -> DrivenSession:
    given = make_graph() if graph else None
    return DrivenSession(given, hooks, config=OFF, **arguments)


def begun(driven: DrivenSession) -> Callable[[DrivenSession, dict[str, float]], Any]:
    """Begin a session of either kind; return a function that does one step."""
    if isinstance(driven.graph, hookbus.backend.ReportGraph):
        driven.begin()
        driven.created()

        def report(driven, values):
            driven.before_step()
            return driven.after_step(values)

        return report
    engine = start(driven)
    return lambda driven, _: step(driven, engine)


def test_a_signal_between_two_steps_can_be_read() -> None:
    """A loop that looks at ``stop`` learns of a signal without a further step."""
    driven = driven_by(exit_on_signal=False)
    start(driven)
    os.kill(os.getpid(), signal.SIGTERM)
    assert driven.stop is not None
    assert driven.stop.kind == "preempted"
    assert driven.end().kind == "preempted"


def test_a_thread_that_stops_its_coordinator_ends_the_loop() -> None:
    """The loop is told, and the error of the thread leaves ``end``."""

    class ThreadHook(SessionRunHook):
        def after_create_session(self, coord):
            def work():
                with coord.stop_on_exception():
                    raise ZeroDivisionError("in a thread")

            self.thread = threading.Thread(target=work)
            self.thread.start()
            coord.register_thread(self.thread)

    hook = ThreadHook()
    driven = driven_by(hook)
    start(driven)
    hook.thread.join()
    assert driven.stop is not None
    assert (driven.stop.who, driven.stop.why) == (
        "coordinator",
        "ZeroDivisionError: in a thread",
    )
    with pytest.raises(ZeroDivisionError):
        driven.end()
    assert driven.outcome is not None
    assert driven.outcome.kind == "failed"


def test_a_loop_without_a_graph_reports_values_and_tracks_objects() -> None:
    """Hooks see what it reports; what it tracks is saved, and restored by the next one."""
    for last in (3, 6):
        look, weights = LookHook(["loss", "model"]), np.zeros(2)
        driven = driven_session(False, [look, StopHook(last)], checkpoint_dir="run")
        with driven:
            driven.begin()
            driven.created()
            assert driven.track(model=weights) is weights
            while driven.stop is None:
                assert {*driven.before_step().fetches} >= {"loss", "model"}
                weights += 1
                loss = float(driven.global_step)
                driven.after_step({"loss": loss, "model": weights.copy})
        assert [loss for _, (loss, _) in look.seen] == [last - 3, last - 2, last - 1]
        assert weights[0] == last


def test_a_loop_without_a_graph_leaves_steps_out() -> None:
    """A cancelled step tells the hooks and does not count."""
    look = LookHook("loss")
    driven = driven_session(False, [look])
    act = begun(driven)
    driven.before_step()
    driven.cancel_step()
    act(driven, {"loss": 1.0})
    assert driven.end().step == 1
    assert look.told == ["created at 0", "cancelled", "end completed"]


def test_a_call_of_a_loop_without_a_graph_may_count_several_steps() -> None:
    """The increment of one call does not count for the next one; a stop comes as always."""
    look = LookHook(["loss"])
    driven = DrivenSession(None, [look, StopAtStepHook(last_step=12)], config=OFF)
    driven.begin()
    driven.created()
    stops = []
    for more in ({"increment": 8}, {}, {"increment": 8}):
        driven.before_step()
        stops.append(driven.after_step({"loss": 1.0}, **more))
    assert [step for step, _ in look.seen] == [8, 9, 17]
    assert [stop and stop.why for stop in stops] == [None, None, "step 12 is reached"]
    assert driven.end().step == 17


@pytest.mark.parametrize("increment", [0, -1, True, 8.0, "8"], ids=repr)
def test_an_increment_of_a_call_is_a_whole_number_of_at_least_1(increment: Any) -> None:
    """The step stays open, so that the loop may correct the call."""
    driven = DrivenSession(None, config=OFF)
    driven.begin()
    driven.created()
    driven.before_step()
    error = UsageError if type(increment) is int else ArgumentTypeError
    message = r"^after_step\(increment=.*\): expected a whole number of at least 1$"
    with pytest.raises(error, match=message) as caught:
        driven.after_step({}, increment=increment)
    assert type(caught.value) is error
    driven.after_step({})
    assert driven.end().step == 1


def test_a_loop_with_a_graph_counts_its_steps_itself() -> None:
    """An increment beside the global step of the backend session is refused."""
    driven = driven_by()
    engine = start(driven)
    driven.before_step()
    engine.run("train", {"x": 1.0})
    with pytest.raises(UsageError, match=r"^after_step\(\) takes no increment: the "):
        driven.after_step({}, increment=8)
    driven.after_step({})
    assert driven.end().step == 1


def test_a_loop_without_a_graph_evaluates_between_steps() -> None:
    """Hooks get the means, and may stop the loop then."""

    class BestHook(SessionRunHook):
        @hookimpl
        def evaluated(self, metrics, name, global_step):
            self.seen = metrics, name, global_step
            self.context.request_stop("good enough")

        def after_run(self, run_context):
            self.context = run_context

    hook = BestHook()
    driven = driven_session(False, [hook])
    with driven:
        begun(driven)(driven, {"loss": 1.0})
        with driven.evaluation("val") as evaluation:
            evaluation.report(loss=1.0)
            evaluation.report(loss=2.0)
        assert driven.stop is not None
        assert (driven.stop.who, driven.stop.why) == ("best", "good enough")
    assert hook.seen == ({"loss": 1.5}, "val", 1)


def after_begin(driven: DrivenSession) -> None:
    driven.begin()


def after_created(driven: DrivenSession) -> None:
    start(driven)


def inside_a_step(driven: DrivenSession) -> None:
    start(driven)
    driven.before_step()


def after_the_end(driven: DrivenSession) -> None:
    start(driven)
    driven.end()


WRONG = [
    (None, "created", "created() before begin(); call begin() first"),
    (None, "before_step", "before_step() before begin(); call begin() first"),
    (None, "end", "end() before begin(); call begin() first"),
    (after_begin, "begin", "begin() was called before; call it once"),
    (after_begin, "created", "created() needs the backend session that runs the graph"),
    (after_begin, "before_step", "before_step() before created(); call created() first"),
    (after_begin, "end", "end() before created(); call created() first"),
    (after_created, "begin", "begin() was called before; call it once"),
    (after_created, "after_step", "after_step() outside a step; call before_step() first"),
    (
        after_created,
        "cancel_step",
        "cancel_step() outside a step; call before_step() first",
    ),
    (
        inside_a_step,
        "before_step",
        "before_step() inside a step: call after_step() or cancel_step() first; if the "
        "session has failed, created() or failed()",
    ),
    (
        inside_a_step,
        "after_step",
        "after_step() lacks the value of 'w', which a hook fetches; give one for each of "
        "the fetches that before_step() returned",
    ),
]


@pytest.mark.parametrize(("before", "method", "message"), WRONG)
def test_a_wrong_order_of_calls_is_an_error(before, method: str, message: str) -> None:
    """It says what to call instead, and the session goes on as if nothing was called."""
    driven = driven_by(LookHook())
    if before is not None:
        before(driven)
    with pytest.raises(UsageError) as caught:
        getattr(driven, method)()
    assert str(caught.value) == message
    assert driven.failed(ValueError("x")).kind == "failed"


@pytest.mark.parametrize("method", MOMENTS)
def test_a_call_after_the_end_is_an_error(method: str) -> None:
    """Each method says that the session has ended."""
    driven = driven_by(LookHook())
    after_the_end(driven)
    with pytest.raises(SessionClosedError) as caught:
        getattr(driven, method)()
    expected = f"{method}() after the end; create a new DrivenSession"
    assert str(caught.value) == expected
    with pytest.raises(SessionClosedError, match=r"failed\(\) after the end"):
        driven.failed(ValueError())


def test_the_session_must_be_of_the_graph() -> None:
    """A session of another graph, or one for a loop without a graph, is refused."""
    driven = driven_by()
    driven.begin()
    with pytest.raises(UsageError, match=r"^created\(\) got a session of another graph; "):
        driven.created(EmbeddedSession(make_graph()))
    driven.created(EmbeddedSession(driven.graph))
    with pytest.raises(UsageError, match=r"^track\(\) is for a custom loop, but this "):
        driven.track(model=np.zeros(2))
    with pytest.raises(UsageError, match=r"^evaluation\(\) is for a custom loop, but "):
        driven.evaluation()
    driven.end()
    plain = driven_session(False, [])
    plain.begin()
    with pytest.raises(UsageError, match=r"^created\(\) takes no session: "):
        plain.created(EmbeddedSession(make_graph()))
    plain.created()
    with pytest.raises(UsageError, match=r"^before_step\(\) takes no fetches: "):
        plain.before_step("loss")
    with pytest.raises(UsageError, match="and a loop without a graph cannot recover; "):
        plain.created()
    plain.end()


def test_a_hook_cannot_drive_the_session() -> None:
    """A step inside an event is refused, with the name of the hook."""

    class BadHook(SessionRunHook):
        def after_create_session(self):
            driven.before_step()

    driven = driven_by(BadHook())
    with pytest.raises(UsageError, match="before created"), driven:
        start(driven)

    class InsideHook(SessionRunHook):
        def after_run(self):
            driven.before_step()

    driven = driven_by(InsideHook())
    with pytest.raises(UsageError, match=r"^before_step\(\) in hook 'inside': "), driven:
        step(driven, start(driven))


def written_to(directory: str) -> dict[str, list[int]]:
    """Return the steps at which each number was written for TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(directory).Reload()
    tags = reader.Tags()["scalars"]
    return {tag: [event.step for event in reader.Scalars(tag)] for tag in tags}


def test_a_directory_gets_summaries_and_speed_as_often_as_in_a_training_session():
    """The loop that runs the steps makes no difference to the defaults."""
    graphs = [make_graph(), make_graph()]
    for graph in graphs:
        graph.op(lambda w: w * 2, name="loss")
    with MonitoredTrainingSession(graphs[0], checkpoint_dir="own", config=OFF) as session:
        for _ in range(205):
            session.run("train", {"x": 1.0})
    loop(driven_by(graph=graphs[1], checkpoint_dir="driven"), most=205)
    expected = {"loss": [1, 101, 201], "global_step/sec": [101, 201]}
    assert written_to("driven") == written_to("own") == expected
