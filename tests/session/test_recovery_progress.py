"""Only progress resets the count of preemptions: a run beyond all that was done before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    EmbeddedSession,
    EvalSpec,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunHook,
    TrainSpec,
    evaluation,
    learning,
    train_and_evaluate,
)
from tests.support.estimating import RUN, estimator, numbers

OFF = Config(autoload=False, header=False)
FAST = Recovery(most=5, first_wait=0.0)
CALLS = 300
"""More than any bounded training here makes: a run with more recovers for ever."""


class Fails:
    """An op or a hook that is preempted at one step, and counts how often."""

    def __init__(self, at: int) -> None:
        self.at, self.calls, self.failures = at, 0, 0

    def __call__(self, step: int) -> None:
        self.calls += 1
        assert self.calls < CALLS, "it recovers for ever"
        if step == self.at:
            self.failures += 1
            raise AbortedError("the machine is gone")


def failing_graph(fails: Fails) -> Graph:
    """Return a graph whose train op is preempted at a step."""
    graph = Graph()
    graph.input("batch", lambda: range(100))
    graph.variable("w", 0.0)

    @graph.train_op(updates="w", outputs=["loss"])
    def train(w, batch, global_step):
        fails(global_step)
        return w + batch, {"loss": w}

    return graph


def monitored(fails: Fails) -> None:
    """Train in a session that saves every ten steps."""
    with MonitoredTrainingSession(
        failing_graph(fails),
        checkpoint_dir="runs",
        save_checkpoint_steps=10,
        recovery=FAST,
        config=OFF,
    ) as session:
        run_to_the_end(session)


def run_to_the_end(session: MonitoredSession) -> None:
    """Train until the session stops."""
    while not session.should_stop():
        session.run("train")


def slim(fails: Fails) -> None:
    """Train in the style of slim."""
    learning.train(
        "train",
        "runs",
        graph=failing_graph(fails),
        save_checkpoint_steps=10,
        recovery=FAST,
        config=OFF,
    )


def in_estimator(fails: Fails) -> None:
    """Train an Estimator, whose sessions recover five times in a row."""
    trained = estimator(config={"save_checkpoints_steps": 10})
    trained.train(numbers(100), [StepHook(fails)])


def alternating(fails: Fails) -> None:
    """Train an Estimator and evaluate it now and then."""
    train_and_evaluate(
        estimator(config={"save_checkpoints_steps": 10}),
        TrainSpec(numbers(100), hooks=[StepHook(fails)]),
        EvalSpec(numbers(3), throttle_secs=0.0),
    )


class StepHook(SessionRunHook):
    """Is preempted in ``before_run``, at a step."""

    def __init__(self, fails: Fails) -> None:
        self.fails = fails

    def before_run(self, run_context: Any) -> None:
        self.fails(run_context.global_step)


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions whose waits cannot be set, those of an Estimator, wait for 0 seconds."""
    monkeypatch.setattr("hookbus.lifecycle.recovery._LONGEST_WAIT", 0.0)


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("train", [monitored, slim, in_estimator, alternating])
def test_steps_that_are_only_repeated_do_not_reset_the_count(train):
    """A step that always fails is tried six times, though steps before it succeed."""
    fails = Fails(at=12)
    with pytest.raises(AbortedError) as caught:
        train(fails)
    assert "gave up after 5 recoveries" in str(caught.value.__notes__)
    assert fails.failures == 6


def test_progress_between_preemptions_resets_the_count():
    """Twenty preemptions, each further than the one before, never add up."""
    seen: set[int] = set()
    steps: list[int] = []
    graph = Graph()
    graph.variable("w", 0.0)

    @graph.train_op(updates="w")
    def train(w, global_step):
        steps.append(global_step)
        if global_step % 3 == 2 and global_step not in seen:
            seen.add(global_step)
            raise AbortedError("gone")
        return w + 1

    with MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=2,
        recovery=Recovery(most=1, first_wait=0.0),
        config=OFF,
    ) as session:
        while session.global_step < 60:
            session.run("train")
    assert len(seen) == 20
    assert len(steps) < CALLS


def test_a_thread_that_is_preempted_again_and_again_uses_up_the_recoveries():
    """``should_stop`` recovers from it, and repeated steps do not reset the count."""
    threads = []

    class ThreadHook(SessionRunHook):
        def after_create_session(self, coord):
            self.coord = coord

        def after_run(self, run_values):
            if run_values.global_step == 12:
                threads.append(run_values.global_step)
                assert len(threads) < 20, "it recovers for ever"
                self.coord.request_stop(AbortedError("a thread was preempted"))

    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    session = MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=10,
        hooks=[ThreadHook()],
        recovery=FAST,
        config=OFF,
    )
    with pytest.raises(AbortedError, match="a thread was preempted"), session:
        run_to_the_end(session)
    assert len(threads) == 6


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("call", ["evaluation", "Estimator"])
def test_an_evaluation_that_begins_anew_makes_no_progress(call):
    """An evaluation whose twelfth batch always fails is tried six times."""
    batches: list[float] = []

    class BatchHook(SessionRunHook):
        def after_create_session(self):
            self.run = 0

        def before_run(self):
            self.run += 1
            batches.append(self.run)
            assert len(batches) < CALLS, "it recovers for ever"
            if self.run == 12:
                raise AbortedError("gone")

    def evaluate() -> None:
        if call == "Estimator":
            estimator().evaluate(numbers(20), hooks=[BatchHook()])
            return
        graph = Graph()
        graph.input("x", lambda: range(20))
        graph.op(lambda x: x, name="same")
        given = {"graph": graph, "hooks": [BatchHook()], "config": OFF}
        evaluation.evaluate_once(RUN / "ckpt-1", eval_ops="same", **given)

    estimator().train(numbers(1))
    with pytest.raises(AbortedError):
        evaluate()
    assert batches.count(12) == 6


def test_a_prediction_goes_on_behind_its_last_batch_so_each_batch_is_progress(no_waits):
    """Eight preemptions between batches of a prediction never add up to giving up."""
    estimator().train(numbers(1))
    gone: set[int] = set()

    class GoneHook(SessionRunHook):
        def before_run(self, run_context):
            number = run_context.session.pulled()
            if number not in gone:
                gone.add(number)
                raise AbortedError("gone")

    given = estimator().predict(numbers(8), hooks=[GoneHook()])
    assert len(list(given)) == 16
    assert len(gone) >= 8


def test_reading_without_input_loses_nothing_so_each_run_is_progress():
    """A session that serves reads survives preemptions, however many."""
    graph, calls = Graph(), []

    @graph.op
    def answer():
        calls.append(len(calls))
        if len(calls) % 2:
            raise AbortedError("gone")
        return 42

    recovery = Recovery(most=1, first_wait=0.0)
    with MonitoredSession(graph, config=OFF, recovery=recovery) as session:
        assert [session.run("answer") for _ in range(10)] == [42] * 10


class Backend(EmbeddedSession):
    """A backend that cannot be opened in some attempts."""

    attempts: Iterator[bool] = iter(())

    def __init__(self, graph: Graph) -> None:
        if next(self.attempts, False):
            raise AbortedError("not yet")
        super().__init__(graph)


def test_progress_after_failed_attempts_to_open_resets_the_count(monkeypatch):
    """Two failures before the first session do not count against those much later."""
    monkeypatch.setattr(Backend, "attempts", iter([True, True]))
    fails = iter([None, AbortedError("a"), AbortedError("b"), None])
    graph = Graph()
    graph.variable("w", 0.0)

    @graph.train_op(updates="w")
    def train(w):
        error = next(fails, None)
        if error is not None:
            raise error
        return w + 1

    with MonitoredSession(
        graph,
        ChiefSessionCreator(graph, backend=Backend),
        config=OFF,
        recovery=Recovery(most=2, first_wait=0.0),
    ) as session:
        session.run("train")
        session.run("train")


def test_one_recovery_serves_several_sessions():
    """It is a setting: each session counts for itself, whatever an earlier one came to."""
    recovery, calls = Recovery(most=1, first_wait=0.0), []
    graph = Graph()

    @graph.op
    def gone():
        calls.append(1)
        raise AbortedError("gone")

    for tries in (2, 4, 6):
        session = MonitoredSession(graph, config=OFF, recovery=recovery)
        with pytest.raises(AbortedError), session:
            session.run("gone")
        assert len(calls) == tries
