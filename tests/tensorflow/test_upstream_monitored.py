"""The rules that TensorFlow's tests of MonitoredSession and its singular sister pin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    Graph,
    MonitoredSession,
    OutOfRangeError,
    Recovery,
    RunOptions,
    Scaffold,
    SessionRunArgs,
    SingularMonitoredSession,
    UnavailableError,
)
from hookbus.backend.embedded import EmbeddedSession
from hookbus.errors import GraphFinalizedError

OFF = Config(autoload=False)
BOTH = pytest.mark.parametrize("cls", [MonitoredSession, SingularMonitoredSession])
PREEMPTIONS = pytest.mark.parametrize(
    "cause", [AbortedError("gone"), UnavailableError("gone")]
)


def counting(start: int = 0) -> Graph:
    """Return a graph that counts in n."""
    graph = Graph()
    graph.variable("n", start)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def monitored(
    graph: Graph,
    *hooks: Any,
    scaffold: Scaffold | None = None,
    directory: str | None = None,
    path: Path | None = None,
) -> MonitoredSession:
    """Make a session that recovers without waiting."""
    creator = ChiefSessionCreator(graph, scaffold, directory, path)
    recovery = Recovery(first_wait=0.0)
    return MonitoredSession(None, creator, hooks, config=OFF, recovery=recovery)


def saver(every: int = 1) -> CheckpointSaverHook:
    return CheckpointSaverHook("runs", save_steps=every)


class In:
    """Calls a function in one event of one run, the first by default."""

    def __init__(self, event: str, do: Callable[[], None], run: int = 1) -> None:
        self.event, self.do, self.left = event, do, run

    def at(self, event: str) -> None:
        if event == self.event:
            self.left -= 1
            if self.left == 0:
                self.do()

    def before_run(self):
        self.at("before_run")

    def after_run(self):
        self.at("after_run")


def raising(error: BaseException) -> Callable[[], None]:
    """Return a function that raises an error."""

    def fail() -> None:
        raise error

    return fail


class Reports:
    """Reports an error to the coordinator, as a thread would."""

    def after_create_session(self, coord):
        self.report = coord.request_stop


@BOTH
def test_variables_are_initialized(cls):
    """Nobody has to do it."""
    with cls(counting(7), config=OFF) as session:
        assert session.run("n") == 7


def test_a_session_stops_at_the_last_step():
    """Each later session on the checkpoints also stops there."""
    for expected in [3, 4]:
        stop = StopAtStepHook(last_step=expected)
        with monitored(counting(), stop, saver(), directory="runs") as session:
            runs = len(list(session.loop()))
        assert session.global_step == expected
    assert runs == 1


def test_num_steps_count_from_the_step_that_was_restored():
    """From the step at the creation of the session on, wherever that was."""
    for expected in [2, 4]:
        stop = StopAtStepHook(num_steps=2)
        with monitored(counting(), stop, saver(), directory="runs") as session:
            list(session.loop())
        assert session.global_step == expected


def test_num_steps_count_from_the_step_that_init_fn_set():
    """Values that init_fn loads count as a start as well."""

    def init_fn(scaffold: Any, session: Any) -> None:
        session.global_step = 10

    graph = counting()
    scaffold = Scaffold(graph, init_fn=init_fn)
    with monitored(graph, StopAtStepHook(num_steps=2), scaffold=scaffold) as session:
        list(session.loop())
    assert session.global_step == 12


@pytest.mark.parametrize("by", ["directory", "path"])
def test_a_checkpoint_is_restored_by_directory_or_by_name(by):
    """The newest of a directory, or the one that is named."""
    with monitored(counting(), saver(), directory="runs") as session:
        session.run("train")
        session.run("train")
    place = {"directory": {"directory": "runs"}, "path": {"path": Path("runs/ckpt-1")}}
    expected = {"directory": 2, "path": 1}[by]
    with monitored(counting(), **place[by]) as session:
        assert session.run(["n", "global_step"]) == [expected] * 2


@PREEMPTIONS
def test_a_preemption_in_init_fn_repeats_the_creation(cause):
    """The session is there when the second attempt succeeds."""
    calls: list[Any] = []

    def init_fn(scaffold: Any, session: Any) -> None:
        calls.append(session)
        if len(calls) == 1:
            raise cause
        session.write({"n": 5})

    graph = counting()
    with monitored(graph, scaffold=Scaffold(graph, init_fn=init_fn)) as session:
        assert session.run("n") == 5
    assert len(set(map(id, calls))) == 2


@PREEMPTIONS
@pytest.mark.parametrize("event", ["before_run", "after_run"])
def test_without_a_checkpoint_the_repeated_run_starts_anew(event, cause):
    """Variables have their initial values again, and the step is back at 1."""
    hook = In(event, raising(cause), run=2)
    with monitored(counting(), hook) as session:
        session.run("train")
        session.run("train")
        assert session.run(["n", "global_step"]) == [1, 1]


@PREEMPTIONS
def test_with_a_checkpoint_of_each_step_training_goes_on(cause):
    """The caller sees 1, 2, 3, 4 as without the preemption."""
    hook, steps = In("after_run", raising(cause), run=3), []
    with monitored(counting(), hook, saver(), directory="runs") as session:
        for _ in range(4):
            session.run("train")
            steps.append(session.global_step)
    assert steps == [1, 2, 3, 4]


@BOTH
@pytest.mark.parametrize("error", [OutOfRangeError("end"), StopIteration()])
def test_end_of_input_leaves_the_block_cleanly(error, cls):
    """The rest of the body is skipped, nothing is raised, the session has stopped."""
    with cls(counting(), hooks=[In("before_run", raising(error))], config=OFF) as session:
        session.run("train")
        pytest.fail("the body went on")
    assert session.should_stop()
    assert session.outcome.kind == "end_of_input"


@BOTH
def test_an_error_of_a_run_leaves_the_block(cls):
    """It is raised as it is, and the session has stopped."""
    error = RuntimeError("broken")
    with (
        pytest.raises(RuntimeError, match="broken") as caught,
        cls(counting(), hooks=[In("before_run", raising(error))], config=OFF) as session,
    ):
        session.run("train")
    assert caught.value is error
    assert session.should_stop()


def test_after_an_error_in_the_coordinator_runs_go_on_and_the_exit_raises_it():
    """A caller that does not ask ``should_stop`` learns of it at the end."""
    hook = Reports()
    session = monitored(counting(), hook)
    hook.report(RuntimeError("a thread"))
    session.run("train")
    session.run("train")
    with pytest.raises(RuntimeError, match="a thread"), session:
        pass
    assert session.global_step == 2


def test_after_an_error_in_the_coordinator_should_stop_is_true_and_the_exit_raises_it():
    """A caller that asks ``should_stop`` leaves its loop, and learns why at the end."""
    hook = Reports()
    session = monitored(counting(), hook)
    hook.report(RuntimeError("a thread"))
    with pytest.raises(RuntimeError, match="a thread"), session:
        assert session.should_stop()


@BOTH
def test_a_body_without_an_error_closes_the_session(cls):
    """After the block it is closed, whatever was done in it."""
    with cls(counting(), config=OFF) as session:
        session.run("train")
        assert not session.should_stop()
    assert session.should_stop()


@BOTH
def test_an_error_of_the_body_is_seen_outside_and_closes_the_session(cls):
    """The block does not swallow it."""
    with pytest.raises(KeyError, match="mine"), cls(counting(), config=OFF) as session:
        raise KeyError("mine")
    assert session.should_stop()


@BOTH
def test_the_graph_can_be_had_while_the_session_is_open(cls):
    """It is the one that the session was made for."""
    graph = counting()
    with cls(graph, config=OFF) as session:
        assert session.graph is graph
    assert session.graph is None


def test_a_graph_is_finalized_while_a_session_is_open():
    """Afterwards nodes can be added again."""
    graph = counting()
    with monitored(graph), pytest.raises(GraphFinalizedError):
        graph.variable("late", 1)
    graph.variable("late", 1)


def test_a_graph_that_was_finalized_stays_so():
    """A session undoes only what it did."""
    graph = counting()
    graph.finalize()
    with monitored(graph):
        pass
    assert graph.finalized


class Wants:
    """Asks for options, and notes those that the run had."""

    def __init__(self, trace_level: int) -> None:
        self.options = RunOptions(trace_level=trace_level)

    def before_run(self):
        return SessionRunArgs(options=self.options)

    def after_run(self, run_values):
        self.seen = run_values.options.trace_level


def test_options_of_hooks_are_merged():
    """The strongest one holds, and every hook sees it."""
    hooks = [Wants(1), Wants(3), Wants(2)]
    with monitored(counting(), *hooks) as session:
        session.run("train")
    assert [hook.seen for hook in hooks] == [3, 3, 3]


@pytest.mark.parametrize(("mine", "merged"), [(0, 2), (3, 3)])
def test_options_of_the_caller_and_of_hooks_are_merged(mine, merged):
    """The caller's own object is not changed by it."""
    hook, options = Wants(2), RunOptions(trace_level=mine)
    with monitored(counting(), hook) as session:
        session.run("train", options=options)
    assert hook.seen == merged
    assert options == RunOptions(trace_level=mine)


@BOTH
def test_close_inside_the_block_is_told_at_its_exit(cls):
    """Closing twice is an error, and the block closes as well."""
    with (
        pytest.raises(RuntimeError, match="Session is already closed"),
        cls(counting(), config=OFF) as session,
    ):
        session.close()


@PREEMPTIONS
def test_a_singular_session_does_not_recover(cause):
    """The preemption leaves its block as any error does."""
    hooks = [In("before_run", raising(cause))]
    with (
        pytest.raises(type(cause)) as caught,
        SingularMonitoredSession(counting(), hooks=hooks, config=OFF) as session,
    ):
        session.run("train")
    assert caught.value is cause


def test_an_error_in_the_coordinator_leaves_a_singular_session():
    """``run`` goes on to work, and the exit raises it."""
    hook = Reports()
    session = SingularMonitoredSession(counting(), hooks=[hook], config=OFF)
    hook.report(RuntimeError("a thread"))
    with pytest.raises(RuntimeError, match="a thread"), session:
        session.run("train")
    assert session.global_step == 1


def test_a_singular_session_shows_its_backend_session():
    """While it is open, and not afterwards."""
    session = SingularMonitoredSession(counting(), config=OFF)
    with session:
        assert isinstance(session.raw_session(), EmbeddedSession)
        assert session.raw_session().run("n") == 0
    assert session.raw_session() is None
