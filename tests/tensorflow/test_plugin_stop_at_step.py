"""TensorFlow's rules for StopAtStepHook, kept by stop-at-step."""

from __future__ import annotations

import inspect

import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import ChiefSessionCreator, EmbeddedSession, Graph, SessionRunHook, UsageError
from hookbus.testing import run_steps

MANY = 40


def graph_adding(increment: int) -> Graph:
    """Return a graph whose train op adds so much to the global step."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    return graph


class TrainsWhenCreated(SessionRunHook):
    """Runs the backend session three times before the first run of the session."""

    def after_create_session(self, session):
        for _ in range(3):
            session.run("train")


@pytest.fixture
def steps_of(open_session):
    """Train until the session stops, and return the step after each run."""

    def steps_of(*hooks, increment=1):
        steps = []
        with open_session(*hooks, graph=graph_adding(increment)) as session:
            while not session.should_stop() and len(steps) < MANY:
                session.run("train")
                steps.append(session.global_step)
        return steps

    return steps_of


def test_num_steps_comes_first_and_both_are_none_by_default():
    """The arguments are num_steps and last_step."""
    parameters = inspect.signature(StopAtStepHook).parameters.values()
    given = [(parameter.name, parameter.default) for parameter in parameters]
    assert given == [("num_steps", None), ("last_step", None)]


def test_no_target_is_a_value_error():
    """One of the two is needed."""
    told = r"^One of num_steps or last_step must be specified\.$"
    with pytest.raises(UsageError, match=told) as caught:
        StopAtStepHook()
    assert isinstance(caught.value, ValueError)


def test_both_targets_are_a_value_error():
    """One of the two is enough."""
    told = r"^Only one of num_steps or last_step can be specified\.$"
    with pytest.raises(ValueError, match=told):
        StopAtStepHook(10, 20)


@pytest.mark.parametrize("custom_loop", [False, True])
def test_it_stops_at_exactly_the_last_step(custom_loop):
    """Not after the run before it, and not a run later."""
    steps = run_steps(StopAtStepHook(last_step=10), steps=MANY, custom_loop=custom_loop)
    assert (steps.outcome.kind, steps.global_step) == ("stopped", 10)


def test_should_stop_is_true_after_the_last_run_only(open_session):
    """The run that reaches the target returns as usual."""
    told = []
    with open_session(StopAtStepHook(last_step=3)) as session:
        for _ in range(3):
            session.run("train")
            told.append(session.should_stop())
    assert told == [False, False, True]


def test_num_steps_counts_from_the_step_that_was_restored(tmp_path):
    """10 steps from step 5 on end at 15."""
    run_steps(steps=5, directory=tmp_path)
    steps = run_steps(StopAtStepHook(num_steps=10), steps=MANY, directory=tmp_path)
    assert steps.global_step == 15


@pytest.mark.parametrize(("first", "steps"), [(True, [4, 5]), (False, [])])
def test_num_steps_counts_from_the_step_when_the_session_is_made(first, steps, steps_of):
    """In the hook's own turn: what an earlier hook trains there comes before the count."""
    hooks = [TrainsWhenCreated(), StopAtStepHook(num_steps=2)]
    assert steps_of(*(hooks if first else reversed(hooks))) == steps


def test_a_hook_that_is_used_again_keeps_its_target(tmp_path):
    """It was fixed once and is reached: 3 steps, then none; TensorFlow does one more."""
    hook = StopAtStepHook(num_steps=3)
    for _ in range(3):
        assert run_steps(hook, directory=tmp_path).global_step == 3


def test_a_hook_that_is_used_again_does_all_steps_of_a_new_model(steps_of):
    """Where the step is 0 again, the target of before fits."""
    hook = StopAtStepHook(num_steps=3)
    assert steps_of(hook) == [1, 2, 3]
    assert steps_of(hook) == [1, 2, 3]


@pytest.mark.parametrize("target", ["num_steps", "last_step"])
@pytest.mark.parametrize("number", [0, -5])
def test_a_target_is_above_0(target, number):
    """TensorFlow accepts any number and does one run."""
    told = f"invalid {target}={number}. StopAtStepHook expects a number above 0."
    with pytest.raises(UsageError, match=told):
        StopAtStepHook(**{target: number})


@pytest.mark.parametrize("last_step", [10, 50])
def test_a_session_beyond_the_last_step_does_no_run(last_step, tmp_path):
    """It stays at 50, however often it is started; TensorFlow stops at 51, 52 and 53."""
    run_steps(steps=50, directory=tmp_path)
    for _ in range(3):
        steps = run_steps(StopAtStepHook(last_step=last_step), directory=tmp_path)
        assert (steps.outcome.kind, steps.global_step) == ("stopped", 50)


def test_runs_that_do_not_advance_the_step_never_stop(open_session):
    """The global step counts, and not the number of runs."""
    with open_session(StopAtStepHook(num_steps=2), graph=graph_adding(0)) as session:
        for _ in range(MANY):
            session.run("train")
        assert not session.should_stop()


def test_a_jump_over_the_target_is_seen(steps_of):
    """A run that leads from 5 to 15 passes 10."""
    hook = StopAtStepHook(last_step=10)

    class Jumps(SessionRunHook):
        def before_run(self, run_context):
            if run_context.global_step == 5:
                for _ in range(9):
                    run_context.session.run("train")

    assert steps_of(Jumps(), hook) == [1, 2, 3, 4, 5, 15]


def test_a_target_that_was_passed_between_two_runs_stops_after_the_next(open_session):
    """It is looked at in the hook's own runs."""
    with open_session(StopAtStepHook(last_step=5)) as session:
        session.run("train")
        for _ in range(6):
            session.run("train", kind="aux")
        assert (session.global_step, session.should_stop()) == (7, False)
        session.run("n")
        assert (session.global_step, session.should_stop()) == (7, True)


@pytest.mark.parametrize(
    ("increment", "target", "steps"),
    [(5, 12, [5, 10, 15]), (5, 10, [5, 10]), (2, 5, [2, 4, 6]), (50, 3, [50])],
)
def test_the_first_run_that_reaches_the_target_is_the_last(
    increment, target, steps, steps_of
):
    """TensorFlow guesses that a run adds 1, and may stop one run too late."""
    assert steps_of(StopAtStepHook(num_steps=target), increment=increment) == steps
    assert steps_of(StopAtStepHook(last_step=target), increment=increment) == steps


def test_it_asks_for_nothing_and_runs_nothing(calls, open_session):
    """The step is known: no fetch, and one run of the backend for each run."""

    class Backend(EmbeddedSession):
        def execute(self, execution):
            calls.append(len(execution.program.results))
            return super().execute(execution)

    creator = ChiefSessionCreator(graph_adding(1), backend=Backend)
    with open_session(StopAtStepHook(last_step=3), session_creator=creator) as session:
        while not session.should_stop():
            session.run("train")
    assert calls == [1, 1, 1]


def test_a_session_that_failed_is_done_to_its_end(tmp_path):
    """In TensorFlow num_steps counts anew from the checkpoint: 3 + 10."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 1, "steps": MANY}
    error = OSError("the disk is gone")
    hook = StopAtStepHook(num_steps=10)
    run_steps(hook, errors={4: error}, reraise=False, **given)
    assert run_steps(StopAtStepHook(num_steps=10), **given).global_step == 10
