"""A hook goes back to before the step: the loop gets its value again, in the same state."""

from __future__ import annotations

import itertools
import os
import random
import signal
from typing import ClassVar

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    SessionRunHook,
    TrainingError,
    UsageError,
    hookimpl,
    list_checkpoints,
)
from tests.support.halving import HalveHook
from tests.support.profiles import cases
from tests.support.saving import saving
from tests.support.watching import lines as lines

OFF = Config(autoload=False, header=False)
COUNT = 10


class CountHook(SessionRunHook):
    """Counts the steps that it saw, in its state."""

    seen = 0

    def after_run(self, run_context, run_values) -> None:
        self.seen += 1

    state_form: ClassVar[dict[str, type]] = {"seen": int}

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state) -> None:
        self.seen = state["seen"]


def batches():
    return [np.arange(16.0) + n for n in range(COUNT)]


def limits(seed: int) -> list[int]:
    """Return how many examples fit into the memory at each step: fewer and fewer."""
    draw = random.Random(seed)
    return sorted((draw.choice([16, 8, 4, 2]) for _ in range(COUNT)), reverse=True)


def by_hand(seed: int):
    """Train with the part of each batch that fits; return everything that it leaves."""
    random.seed(seed)
    w, fits, drawn = np.zeros(2), 16, []
    for number, batch in enumerate(batches()):
        drawn.append(random.random())
        while fits > limits(seed)[number]:
            fits //= 2
        w += [batch[:fits].sum(), drawn[-1] + random.random()]
    return w.tolist(), drawn, random.random()


def hooked(seed: int, directory, *hooks, kill_at=None, wraps=iter):
    random.seed(seed)
    w, drawn = np.zeros(2), {"drawn": []}
    with saving(directory, every=2, hooks=[HalveHook(), *hooks]) as session:
        session.track(w=w, drawn=drawn)
        for batch in session.iterate(wraps(batches()), name="batch"):
            drawn["drawn"] = [*drawn["drawn"], random.random()]
            with session.step() as step:
                w[1] += drawn["drawn"][-1] + random.random()
                if len(batch) > limits(seed)[session.global_step]:
                    raise MemoryError("the batch is too large")
                w[0] += batch.sum()
                step.report(loss=w[0])
            if session.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    return w.tolist(), drawn["drawn"], random.random()


@pytest.mark.parametrize("seed", range(cases(6, 60)))
@pytest.mark.parametrize("wraps", [list, iter])
def test_a_batch_is_halved_where_the_memory_is_used_up(seed, wraps, tmp_path):
    """The sums of the used examples, weights and generators are those of a loop by hand."""
    counts = CountHook()
    assert hooked(seed, tmp_path, counts, wraps=wraps) == by_hand(seed)
    assert counts.seen == COUNT


@pytest.mark.parametrize("at", cases([2, 7], range(1, COUNT)))
def test_killed_and_resumed_it_is_the_same_training(at, tmp_path):
    """The hook keeps in its state by how much it halves."""
    child = os.fork()
    if child == 0:
        try:
            hooked(3, tmp_path, kill_at=at, wraps=list)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert hooked(3, tmp_path, wraps=list) == by_hand(3)


class SharpHook(SessionRunHook):
    """Sharpness-aware minimization: the gradient at the top of a small climb.

    The first pass over a batch climbs. The second one gets the weights from before it.
    """

    options = HookOptions(rolls_back="step")

    def begin(self, graph) -> None:
        self.climb = None
        graph.wrap("gradient", self.changed, reads={"w": "w"})

    def changed(self, gradient, w):
        if self.climb is None:
            self.climb = 0.1 * gradient / np.sqrt((gradient**2).sum())
            return gradient
        climb, self.climb = self.climb, None
        self.is_done = True
        return slope(w + climb, self.batch)

    def before_run(self, run_context) -> None:
        self.is_done = False

    def after_run(self, run_context, run_values) -> None:
        if not self.is_done:
            run_context.request_rollback("the second pass", to="step")


class TwiceHook(SessionRunHook):
    """Takes two passes over each value."""

    options = HookOptions(rolls_back="step")
    passes = 0

    def after_run(self, run_context, run_values) -> None:
        self.passes += 1
        if self.passes % 2:
            run_context.request_rollback("the second pass", to="step")


def trained_twice(directory, send=lambda step: None):
    """Train in steps with two passes; *send* is called in each with its global step."""
    random.seed(1)
    w, drawn = np.ones(2), {"drawn": []}
    with saving(directory, 4, hooks=[TwiceHook()], exit_on_signal=False) as session:
        session.track(w=w, drawn=drawn)
        for value in session.iterate(range(COUNT)):
            drawn["drawn"] = [*drawn["drawn"], random.random()]
            w *= 1.5  # so it matters how often the code before the step runs
            with session.step():
                w += value + random.random()
                send(session.global_step)
    return w.tolist(), drawn["drawn"], random.random()


def saved(directory) -> list[int]:
    return [info.global_step for info in list_checkpoints(directory)]


def test_checkpoints_come_in_their_period_where_each_step_is_undone(tmp_path):
    """One that is asked for in the first pass is written after the second one."""
    trained_twice(tmp_path)
    assert saved(tmp_path) == [1, 4, 8, 10]


@pytest.mark.parametrize("at", cases([0, 6], range(COUNT)))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_training_in_two_passes_resumes_after_any_step(at, number, tmp_path):
    """After the first one as well: no checkpoint is from inside of a value's body."""
    expected = trained_twice(None)

    def send(step):
        if step == at:
            os.kill(os.getpid(), number)

    child = os.fork()
    if child == 0:
        try:
            trained_twice(tmp_path, send)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    periods = [step for step in (0, 1, 4, 8) if step <= at]
    last = at if number == signal.SIGTERM else periods[-1]
    assert max(saved(tmp_path), default=0) == last
    assert trained_twice(tmp_path) == expected


def slope(w, batch):
    return 2 * (w - batch)


def test_a_hook_goes_back_after_a_step_that_went_well():
    """As sharpness-aware minimization does at each batch."""
    values, hook = [np.array([n, 1.0]) for n in range(6)], SharpHook()
    w = np.zeros(2)
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        session.track(w=w)
        for batch in session.iterate(values):
            hook.batch = batch
            with session.step() as step:
                w -= 0.1 * step.through(gradient=slope(w, batch))
    expected = np.zeros(2)
    for batch in values:
        gradient = slope(expected, batch)
        climb = 0.1 * gradient / np.sqrt((gradient**2).sum())
        expected -= 0.1 * slope(expected + climb, batch)
    assert np.array_equal(w, expected)
    assert session.global_step == len(values)
    assert session.outcome.rolled_back == len(values)


def test_the_value_comes_again_as_it_was():
    """Even if the body has changed it in place, or the input gives each value once."""
    got = []
    hook = HalveHook()
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        for batch in session.iterate(iter([np.ones(4), np.ones(4)]), name="batch"):
            got.append(batch.tolist())
            batch *= 7
            with session.step() as step:
                if len(got) == 1:
                    raise MemoryError
            assert step.is_undone == (len(got) == 1)
    assert got == [[1] * 4, [1] * 2, [1] * 2]


def test_the_index_of_a_value_that_comes_again_is_the_same():
    """In enumerate, and in a pass inside of another one."""
    got, failed = [], []
    with MonitoredSession(hooks=[HalveHook()], config=OFF) as session:
        for _ in session.iterate(range(2)):
            for index, batch in session.enumerate([[1, 2], [3, 4]], name="batch"):
                got.append((index, batch))
                with session.step():
                    if index == 1 and not failed:
                        failed.append(True)
                        raise MemoryError
    assert got == [(0, [1, 2]), (1, [3, 4]), (1, [3]), (0, [1]), (1, [3])]


def test_several_steps_of_a_value_are_undone_together():
    """The body of the value is the unit."""
    w, rounds = np.zeros(1), itertools.count()
    with MonitoredSession(hooks=[HalveHook()], config=OFF) as session:
        session.track(w=w)
        for _ in session.iterate([[1, 1]], name="batch"):
            number = next(rounds)
            for part in range(2):
                with session.step():
                    w += 1
                    if number == 0 and part == 1:
                        raise MemoryError
    assert w == 2
    assert session.global_step == 2


def failing(session, error) -> None:
    for _ in session.iterate([[1] * 8], name="batch"):
        with session.step():
            raise error


def test_an_error_that_no_hook_undoes_leaves_the_session(lines):
    """After the hooks were told of it."""
    hook, error = HalveHook(), ValueError("broken")
    session = MonitoredSession(hooks=[hook], config=OFF)
    with pytest.raises(ValueError, match="broken"), session:
        failing(session, error)
    assert hook.told == [error]
    assert session.outcome.kind == "failed"


def test_an_error_of_a_hook_can_be_undone():
    """Like that of a hook that finds a NaN."""
    failed = []

    class FailHook(SessionRunHook):
        def after_run(self, run_context, run_values) -> None:
            if not failed:
                failed.append(True)
                raise MemoryError

    hook, counts = HalveHook(), CountHook()
    with MonitoredSession(hooks=[counts, FailHook(), hook], config=OFF) as session:
        for _ in session.iterate([[1, 2], [3, 4]], name="batch"):
            with session.step():
                pass
    assert (session.global_step, counts.seen, hook.parts) == (2, 2, 2)


def test_a_step_that_never_succeeds_ends_the_session():
    """After as many attempts as a session goes back in a row."""
    session = MonitoredSession(hooks=[HalveHook()], config=OFF)
    with pytest.raises(TrainingError, match="after 10 roll-backs in a row"), session:
        failing(session, MemoryError())


def test_the_log_tells_of_a_step_that_failed(lines):
    """With the error."""
    hooked(3, None)
    (line, *_) = [line for line in lines if line["log_level"] == "warning"]
    assert line["event"] == "a step failed, and is undone"
    assert line["why"] == "MemoryError: the batch is too large"


class AskHook(SessionRunHook):
    """Asks to go back."""

    def __init__(self, where="after_run", declares=True, to="step") -> None:
        self.options = HookOptions(rolls_back="step" if declares else False)
        self.where, self.to = where, to

    def after_run(self, run_context, run_values) -> None:
        if self.where == "after_run":
            run_context.request_rollback("again", to=self.to)

    @hookimpl
    def step_failed(self, run_context, exception) -> None:
        if self.where == "step_failed":
            run_context.request_rollback("again", to=self.to)


def in_pass(session, fails=False) -> None:
    for _ in session.iterate(range(2)):
        with session.step():
            if fails:
                raise MemoryError


def without_pass(session) -> None:
    with session.step():
        pass


@pytest.mark.parametrize(
    ("hook", "loop", "told"),
    [
        (
            AskHook(declares=False),
            in_pass,
            "nothing was copied for it: declare options",
        ),
        (AskHook(), without_pass, "and no value of session.iterate() is in hand: put the"),
        (
            AskHook(to="stepp"),
            in_pass,
            "(to='stepp'): expected 'checkpoint' or 'step'",
        ),
        (
            AskHook("step_failed", to="checkpoint"),
            lambda session: in_pass(session, fails=True),
            "request_rollback() in step_failed(), where a step can only be undone: run_con",
        ),
    ],
)
def test_where_a_step_cannot_be_undone_the_error_names_the_hook(hook, loop, told):
    """And what to do."""
    with (
        pytest.raises(UsageError) as caught,
        MonitoredSession(hooks=[hook], config=OFF) as session,
    ):
        loop(session)
    assert str(caught.value).startswith("hook 'ask' called run_context.request_rollback(")
    assert told in str(caught.value)


def test_a_graph_cannot_go_back_to_a_step():
    """It has no body of a value."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with (
        pytest.raises(UsageError, match="which only a loop over session"),
        MonitoredSession(graph, hooks=[AskHook()], config=OFF) as session,
    ):
        session.run("train")


def test_without_such_a_hook_nothing_is_copied():
    """The state of hooks is read once, when the session begins."""
    reads = []

    class ReadHook(CountHook):
        def state_dict(self):
            reads.append(self.seen)
            return super().state_dict()

    with MonitoredSession(hooks=[ReadHook()], config=OFF) as session:
        in_pass(session)
    assert reads == [0]
