"""TensorFlow's rules for CheckpointSaverHook: when it saves, and what is in it."""

from __future__ import annotations

import inspect
from pathlib import Path

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook, CheckpointSaverListener
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    ChiefSessionCreator,
    EmbeddedSession,
    Graph,
    OutOfRangeError,
    SessionRunHook,
)
from hookbus.testing import run_steps


@attrs.define(eq=False)
class Writes(CheckpointSaverListener):
    """Keeps the steps of what was written."""

    steps: list[int] = attrs.field(factory=list)

    def after_save(self, session, global_step_value):
        self.steps.append(global_step_value)


@pytest.fixture
def writes() -> Writes:
    """The checkpoints of a saver in this test."""
    return Writes()


def saver(**settings) -> CheckpointSaverHook:
    """Make a saver that keeps all checkpoints, in the directory saved."""
    return CheckpointSaverHook("saved", **{"max_to_keep": None, **settings})


def saved() -> list[int]:
    """Return the steps of the checkpoints in that directory."""
    paths = Path("saved").glob("ckpt-*")
    return sorted(int(path.name.removeprefix("ckpt-")) for path in paths)


def graph_adding(increment: int) -> Graph:
    """Return a graph whose train op adds so much to the global step."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    return graph


def restored() -> tuple[int, float]:
    """Return the step and the value that the next session begins with."""
    steps = run_steps(directory="saved", steps=0)
    return steps.global_step, steps.variables["w"]


class AsksToSave(SessionRunHook):
    """Asks for a checkpoint after each run."""

    def after_run(self, run_context):
        run_context.request_save("it is wise")


def test_directory_seconds_and_steps_come_first():
    """In this order, as in TensorFlow; both periods are None by default."""
    parameters = inspect.signature(CheckpointSaverHook).parameters
    assert list(parameters)[:3] == ["checkpoint_dir", "save_secs", "save_steps"]
    assert [parameters[name].default for name in ("save_secs", "save_steps")] == [None] * 2


def test_no_period_is_a_value_error():
    """The message is the timer's."""
    with pytest.raises(ValueError, match="Either every_secs or every_steps should be"):
        CheckpointSaverHook("saved")


@pytest.mark.parametrize("periods", [(10, 20), (0, 20)])
def test_both_periods_are_a_value_error(periods):
    """Steps and seconds exclude each other."""
    with pytest.raises(ValueError, match="Can not provide both every_secs and every_steps"):
        CheckpointSaverHook("saved", *periods)


def test_a_checkpoint_is_there_before_the_first_run(open_session):
    """Whatever the period is."""
    with open_session(saver(save_steps=100)):
        assert saved() == [0]


def test_the_first_checkpoint_holds_the_initial_values():
    """A run that failed early begins where it began."""
    error = ValueError("bad batch")
    run_steps(saver(save_steps=100), errors={3: error}, reraise=False)
    assert restored() == (0, 0.0)


def test_checkpoints_come_with_their_runs(open_session):
    """When the run returns its checkpoint is there; every 2 is at 2, and not at 1."""
    found = []
    with open_session(saver(save_steps=2)) as session:
        for _ in range(4):
            session.run("train")
            found.append(saved()[-1])
    assert found == [0, 2, 2, 4]


@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize(
    ("period", "steps"), [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 2, 4, 6]), (3, [0, 3, 6])]
)
def test_checkpoints_come_every_so_many_steps(period, steps, custom_loop):
    """Counted from the one that the session began with."""
    run_steps(saver(save_steps=period), steps=6, custom_loop=custom_loop)
    assert saved() == steps


def test_a_checkpoint_holds_the_values_after_its_run():
    """The updates of the run are in it: 1 + 2 + 3."""
    run_steps(saver(save_steps=3), steps=5, errors={5: OSError()}, reraise=False)
    assert restored() == (3, 6.0)


@pytest.mark.parametrize(("increment", "steps"), [(2, [0, 4, 8, 10]), (3, [0, 3, 6])])
def test_a_period_is_over_when_it_is_reached_or_passed(increment, steps, open_session):
    """Every 3, where runs add 2, is each 4."""
    with open_session(saver(save_steps=3), graph=graph_adding(increment)) as session:
        while session.global_step < steps[-1]:
            session.run("train")
    assert saved() == steps


@pytest.mark.parametrize("period", [1, 3, 5])
def test_runs_that_add_more_than_a_period_are_all_saved(period, open_session):
    """There is no more than one checkpoint a run, and none is left out."""
    with open_session(saver(save_steps=period), graph=graph_adding(5)) as session:
        for _ in range(3):
            session.run("train")
    assert saved() == [0, 5, 10, 15]


def test_runs_of_several_steps_are_saved_by_the_true_step(open_session):
    """5 steps a run and a period of 10; the end saves what is left."""
    with open_session(saver(save_steps=10), graph=graph_adding(5)) as session:
        for _ in range(5):
            session.run("train")
    assert saved() == [0, 10, 20, 25]


def test_runs_that_do_not_advance_the_step_are_not_saved(open_session):
    """Not even with a period of no time at all."""
    with open_session(saver(save_secs=0)) as session:
        session.run("train")
        for _ in range(3):
            session.run("n")
        assert saved() == [0, 1]


def test_by_time_the_period_counts_from_the_last_save(open_session, clock):
    """Every 2 s: at 0, not at 0.5, at 2.5, not at 2.6 and 2.7, at 10."""
    found = []
    with open_session(saver(save_secs=2)) as session:
        for seconds in (0.5, 2.5, 2.6, 2.7, 10):
            clock[0] = 1000.0 + seconds
            session.run("train")
            found.append(saved())
    assert found == [[0], [0, 2], [0, 2], [0, 2], [0, 2, 5]]


@pytest.mark.parametrize(("seconds", "steps"), [(1.99, [0]), (2.0, [0, 1])])
def test_the_clock_starts_with_the_first_checkpoint(seconds, steps, open_session, clock):
    """Exactly a period after it the next one is due."""
    with open_session(saver(save_secs=2)) as session:
        clock[0] += seconds
        session.run("train")
        assert saved() == steps


def test_runs_of_a_part_of_the_period_are_saved_when_it_is_over(open_session, clock):
    """Every 2 s, with runs of 0.7 s: after 2.1 s and 4.2 s, and at the end."""
    with open_session(saver(save_secs=2)) as session:
        for _ in range(7):
            clock[0] += 0.7
            session.run("train")
    assert saved() == [0, 3, 6, 7]


@attrs.define(eq=False)
class Slow(CheckpointSaverListener):
    """Lets some time go by in the save of one step."""

    clock: list[float]
    slow_step: int

    def before_save(self, session, global_step_value):
        if global_step_value == self.slow_step:
            self.clock[0] += 1.5


def test_the_time_that_a_save_takes_is_part_of_the_period(open_session, clock):
    """The period counts from when it was due, and not from when it was on disk."""
    with open_session(saver(save_secs=2, listeners=[Slow(clock, 1)])) as session:
        for seconds in (2.0, 4.0):
            clock[0] = 1000.0 + seconds
            session.run("train")
        assert saved() == [0, 1, 2]


def test_the_time_that_the_first_save_takes_is_part_of_the_period(open_session, clock):
    """In TensorFlow the first period, alone, counts from when it was on disk."""
    with open_session(saver(save_secs=2, listeners=[Slow(clock, 0)])) as session:
        clock[0] = 1002.0
        session.run("train")
        assert saved() == [0, 1]


def test_a_period_of_nothing_saves_each_step():
    """Zero seconds are over at each step."""
    run_steps(saver(save_secs=0), steps=3)
    assert saved() == [0, 1, 2, 3]


@pytest.mark.parametrize("runs", [5, 7])
def test_the_last_step_is_saved_at_the_end(runs):
    """Where it was not due."""
    run_steps(saver(save_steps=3), steps=runs)
    assert saved()[-1] == runs
    assert restored()[0] == runs


@pytest.mark.parametrize("runs", [0, 6])
def test_a_last_step_that_is_saved_is_not_saved_again(runs, writes):
    """A session without a run has one checkpoint."""
    run_steps(saver(save_steps=3, listeners=[writes]), steps=runs)
    assert writes.steps == list(range(0, runs + 1, 3))


def test_the_end_of_input_is_an_end():
    """Its last step is saved."""
    run_steps(saver(save_steps=3), errors={6: OutOfRangeError()}, reraise=False)
    assert saved() == [0, 3, 5]


@pytest.mark.parametrize(("last", "steps"), [(5, [0, 3, 5]), (6, [0, 3, 6])])
def test_a_stop_is_an_end(last, steps):
    """Whoever asked for it; the step at which it stops is saved once."""
    run_steps(StopAtStepHook(last_step=last), saver(save_steps=3))
    assert saved() == steps


@pytest.mark.parametrize("runs", [4, 5])
def test_after_an_error_there_is_no_last_checkpoint(runs, make_graph, open_session):
    """Neither after one in a run, here the fifth, nor after one between two."""
    graph = make_graph(None, None, None, None, ValueError("bad batch"))

    def fail():
        with open_session(saver(save_steps=3), graph=graph) as session:
            for _ in range(runs):
                session.run("train")
            raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        fail()
    assert saved() == [0, 3]


def test_what_another_hook_had_saved_is_not_saved_again(writes):
    """TensorFlow's saver knows of its own checkpoints only."""
    run_steps(saver(save_steps=2, listeners=[writes]), AsksToSave(), steps=3)
    assert writes.steps == [0, 1, 2, 3]


def test_what_another_hook_had_saved_does_not_change_the_period():
    """The saver's own schedule goes on."""

    class AsksOnce(SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_values.global_step == 2:
                run_context.request_save("once")

    run_steps(saver(save_steps=3), AsksOnce(), steps=7)
    assert saved() == [0, 2, 3, 6, 7]


def test_a_restored_step_is_not_saved_again(writes):
    """TensorFlow writes it anew, though it is safe."""
    for runs in (4, 2):
        run_steps(saver(save_steps=100, listeners=[writes]), steps=runs)
    assert writes.steps == [0, 4, 6]


def test_it_asks_for_nothing_and_runs_nothing(calls, open_session):
    """TensorFlow's saver runs the graph a second time for each run, to read the step."""

    class Backend(EmbeddedSession):
        def execute(self, execution):
            calls.append(len(execution.program.results))
            return super().execute(execution)

    creator = ChiefSessionCreator(graph_adding(1), backend=Backend)
    with open_session(saver(save_steps=2), session_creator=creator) as session:
        for _ in range(4):
            session.run("train")
    assert calls == [1] * 4
