"""A block that counts several steps behaves as a train op that counts as many."""

from __future__ import annotations

import contextlib
import os
import signal

import attrs
import numpy as np
import pytest
from hookbus_progress import ProgressHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    hookimpl,
    latest_checkpoint,
    list_checkpoints,
)
from hookbus.errors import ArgumentTypeError
from hookbus.hooks.timer import SecondOrStepTimer

BLOCKS, STEPS = 12, 8
PERIODS = (1, 5, 8, 20)
BAD = (0, -8, True, False, 8.0, "8", None, np.int64(8))


@attrs.define(eq=False)
class PeriodHook(SessionRunHook):
    """Notes when it is asked and told, every so many steps; it waits in between."""

    options = HookOptions(can_wait=True)
    timer: SecondOrStepTimer
    told: list[tuple[str, int, int]] = attrs.field(factory=list)

    @hookimpl
    def next_due(self):
        return self.timer.next_due()

    def after_run(self, run_context, run_values):
        began, step = run_context.global_step, run_values.global_step
        if self.timer.should_trigger_for_step(step):
            self.timer.update_last_triggered_step(step)
            self.told.append(("due", began, step))

    @hookimpl
    def cancelled(self, run_context):
        self.told.append(("cancelled", run_context.global_step, run_context.global_step))


@attrs.define(eq=False)
class EveryRunHook(SessionRunHook):
    """Notes each run."""

    told: list[tuple[int, ...]] = attrs.field(factory=list)
    asks_at: tuple[int, ...] = ()

    def before_run(self, run_context):
        self.told.append((run_context.global_step,))

    def after_run(self, run_context, run_values):
        self.told.append((run_context.global_step, run_values.global_step))
        if run_values.global_step in self.asks_at:
            run_context.request_save("asked")


def a_graph(increments):
    """Return a graph whose train op adds to w, and the functions that do one run of it."""
    graph = Graph()
    graph.variable("w", 0.0)
    names = {}
    for increment in {*increments}:
        names[increment] = f"train_{increment}"
        graph.train_op(
            lambda w: w * 1.5 + 1,
            name=names[increment],
            updates="w",
            increment=increment,
        )
    return graph, names


def in_a_graph(session, names, increments, at=None, act=None):
    """Do the runs that are left, each with its increment."""
    while not session.should_stop():
        done = done_of(session.global_step, increments)
        if done == len(increments):
            break
        if done == at:
            act()
        session.run(names[increments[done]])


def done_of(step, increments):
    """Return how many runs have led to a step."""
    sums = [0, *np.cumsum(increments).tolist()]
    return sums.index(step)


def in_blocks(session, w, increments, at=None, act=None):
    """Do the blocks that are left, each with its increment."""
    for number in session.iterate(range(len(increments))):
        with session.step(increment=increments[number]):
            if number == at:
                act()
            w *= 1.5
            w += 1


def opened(graph, hooks, directory, every):
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=every,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
        exit_on_signal=False,
    )


def train(form, increments, directory, stop=None, every=20, at=None, act=None):
    """Train in a graph or in blocks; return all that hooks saw, and how it ended."""
    timers = [PeriodHook(SecondOrStepTimer(every_steps=period)) for period in PERIODS]
    hooks = [*timers, EveryRunHook(asks_at=(24,))]
    if stop is not None:
        hooks.append(StopAtStepHook(last_step=stop))
    if form == "graph":
        graph, names = a_graph(increments)
        with opened(graph, hooks, directory, every) as session:
            in_a_graph(session, names, increments, at, act)
    else:
        w = np.zeros(())
        with opened(None, hooks, directory, every) as session:
            session.track(w=w)
            in_blocks(session, w, increments, at, act)
    return {
        "told": [hook.told for hook in hooks[: len(PERIODS) + 1]],
        "ended": (session.global_step, session.outcome.kind, session.outcome.why),
        "saved": [each.global_step for each in list_checkpoints(directory)],
    }


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


UNEQUAL = [8, 8, 3, 1, 1, 8, 20, 8, 8, 5]


@pytest.mark.parametrize("stop", [None, 8, 30, 33])
@pytest.mark.parametrize("increments", [[STEPS] * BLOCKS, UNEQUAL, [1] * BLOCKS])
def test_a_block_counts_as_a_train_op_does(increments, stop):
    """Periods, stops and saves come at the steps at which they come in a graph."""
    graph = train("graph", increments, "graph", stop)
    blocks = train("blocks", increments, "blocks", stop)
    assert blocks == graph


def test_periods_that_are_no_multiple_come_with_the_block_that_reaches_them():
    """A period of 20 steps is over in the blocks that end at step 24, 48 and so on."""
    seen = train("blocks", [STEPS] * BLOCKS, "blocks", every=20)
    due = [[step for _, _, step in told] for told in seen["told"][: len(PERIODS)]]
    assert due == [[*range(8, 97, 8)]] * 3 + [[8, 32, 56, 80]]
    assert seen["saved"] == [0, 24, 48, 72, 96]


@pytest.mark.parametrize("at", [2, 5, 6])
def test_it_goes_on_after_a_kill_as_a_train_op_does(at):
    """Hooks see the same after a kill in a block, and the weights are the same."""
    increments = [STEPS] * BLOCKS
    seen = {}
    for form in ("graph", "blocks"):
        child = os.fork()
        if child == 0:
            try:
                train(form, increments, form, at=at, act=kill)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        seen[form, "left"] = [each.global_step for each in list_checkpoints(form)]
        seen[form] = train(form, increments, form)
    assert seen["blocks", "left"] == seen["graph", "left"]
    assert seen["blocks"] == seen["graph"]
    assert seen["blocks"]["ended"][0] == STEPS * BLOCKS


@pytest.mark.parametrize("at", [0, 4])
def test_an_error_in_a_block_counts_no_step(at):
    """The block that an error leaves counts nothing, as a run that fails counts nothing."""

    def fail():
        raise ZeroDivisionError

    steps = {}
    for form in ("graph", "blocks"):
        with contextlib.suppress(ZeroDivisionError):
            train(form, [STEPS] * BLOCKS, form, at=at, act=fail)
        newest = latest_checkpoint(form)
        steps[form] = None if newest is None else newest.global_step
    assert steps["blocks"] == steps["graph"]


def test_a_cancelled_block_counts_no_step(own):
    """A block that is cancelled adds nothing, and the next one counts as always."""
    hook = PeriodHook(SecondOrStepTimer(every_steps=1))
    with own(hook) as session:
        for number in range(4):
            with session.step(increment=STEPS) as step:
                if number == 1:
                    step.cancel()
    assert hook.told == [
        ("due", 0, 8),
        ("cancelled", 8, 8),
        ("due", 8, 16),
        ("due", 16, 24),
    ]


def test_a_block_without_the_argument_counts_one_step_again(own, fetch):
    """Blocks with and without an increment may alternate; a fed step also counts."""
    hook = fetch("loss", {"loss": 3.0})
    with own(hook) as session:
        for increment in (8, None, 3, 1):
            more = {} if increment is None else {"increment": increment}
            with session.step(**more) as step:
                step.report(loss=1.0)
    assert hook.steps == [0, 8, 8, 9, 9, 12, 12, 13]
    assert hook.results == [3.0] * 4


def test_a_block_that_does_not_train_counts_no_step(own):
    """An auxiliary block adds nothing to the global step, whatever its increment."""
    with own() as session:
        with session.step(kind="aux", increment=STEPS):
            pass
        assert session.global_step == 0


@pytest.mark.parametrize("increment", BAD, ids=repr)
def test_an_increment_is_a_whole_number_of_at_least_1(own, increment):
    """Anything else is refused, before any hook is called, in the first and later steps."""
    hook = EveryRunHook()
    error = UsageError if type(increment) is int else ArgumentTypeError
    message = r"^step\(increment=.*\): expected a whole number of at least 1$"
    with own(hook) as session:
        for _ in range(2):
            told = [*hook.told]
            with pytest.raises(error, match=message) as caught:
                session.step(increment=increment)
            assert type(caught.value) is error
            assert repr(increment) in str(caught.value)
            assert hook.told == told
            with session.step():
                pass
        assert session.global_step == 2


@attrs.define(eq=False)
class EndHook(SessionRunHook):
    """Notes the expected last step after each run."""

    told: list[int | None] = attrs.field(factory=list)

    def after_run(self, run_context):
        self.told.append(run_context.last_step)


@pytest.mark.parametrize("passes", [1, 3])
def test_the_expected_end_counts_the_steps_of_blocks(own, passes):
    """The last step is known from the first block of each pass on."""
    hook = EndHook()
    with own(hook) as session:
        for _ in range(passes):
            for _ in session.iterate(range(5)):
                with session.step(increment=STEPS):
                    pass
    assert hook.told == [5 * STEPS * (each + 1) for each in range(passes) for _ in range(5)]


def test_the_expected_end_is_exact_in_a_resumed_pass(saved):
    """It is measured in the part of the pass that this session runs."""
    told = []
    for stop in (24, 96):
        hook = EndHook()
        with saved(hook, StopAtStepHook(last_step=stop), every=8) as session:
            session.track(w=np.zeros(()))
            for _ in session.iterate(range(10)):
                with session.step(increment=STEPS):
                    pass
        told += hook.told
    assert told == [24] * 3 + [80] * 7


@pytest.mark.parametrize(
    "bodies",
    [[(8, 8)] * 6, [(8,), (4,)] * 3, [(), (), (), (8,)] * 3, [(1, 7)] * 6],
    ids=repr,
)
def test_the_expected_end_follows_the_mean_of_a_value(own, bodies):
    """Values with several blocks, with unequal ones and with none have their mean."""
    hook = EndHook()
    with own(hook) as session:
        for body in session.iterate(bodies):
            for increment in body:
                with session.step(increment=increment):
                    pass
    end = sum(sum(body) for body in bodies)
    assert hook.told[-1] == end
    later = hook.told[len(hook.told) // 2 :]
    assert all(abs(known - end) <= 4 for known in later)


def test_nothing_is_expected_of_values_with_passes_of_their_own(own):
    """How many steps the passes of later values will have is not known."""
    hook = EndHook()
    with own(hook) as session:
        for _ in session.iterate(range(3)):
            for _ in session.iterate(range(2)):
                with session.step(increment=STEPS):
                    pass
            with session.step():
                pass
    assert hook.told == [16, 16, None, 33, 33, None, 50, 50, None]


def test_progress_shows_the_steps_of_all_blocks(own, lines):
    """The plugin progress has the total of the pass in steps, not in values."""
    with own(ProgressHook(every_secs=0)) as session:
        for _ in session.iterate(range(4)):
            with session.step(increment=STEPS):
                pass
    shown = [(each["step"], each["of"]) for each in lines if each["event"] == "progress"]
    assert shown == [(8, 32), (16, 32), (24, 32), (32, 32)]


def test_a_long_block_is_no_long_body(own, lines):
    """A request waits for the pull after one block without a warning."""

    class Saves(SessionRunHook):
        def after_run(self, run_context):
            run_context.request_save("always")

    with own(Saves()) as session:
        for _ in session.iterate(range(2)):
            with session.step(increment=1000):
                pass
    assert "a request waits for the next value of iterate()" not in [
        each["event"] for each in lines
    ]
