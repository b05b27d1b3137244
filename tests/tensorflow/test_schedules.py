"""At which steps the hooks that come with a schedule act, whatever happens to a session.

A step is the global step after the run. What is done in the middle of a run counts for
that run's step; what is done before the first run, for the step that a session starts at.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import pytest

from hookbus import AbortedError, OutOfRangeError
from tests.support import commands
from tests.support.profiles import cases
from tests.support.schedules import RUNS, Acts, Row, Training, done, surviving

TABLE = [
    # At the start, when a period is over, and at the end if that step is new.
    Row("checkpoint-saver", {"save_steps": 1}, 1, [*range(11)]),
    Row("checkpoint-saver", {"save_steps": 3}, 1, [0, 3, 6, 9, 10]),
    Row("checkpoint-saver", {"save_steps": 4}, 1, [0, 4, 8], runs=8),
    Row("checkpoint-saver", {"save_steps": 99}, 1, [0, 10]),
    Row("checkpoint-saver", {"save_steps": 3}, 2, [0, 4, 8, 12, 16, 20]),
    Row("checkpoint-saver", {"save_steps": 7}, 2, [0, 8, 16, 20]),
    Row("checkpoint-saver", {"save_steps": 3}, 5, [*range(0, 51, 5)]),
    Row("checkpoint-saver", {"save_steps": 7}, 5, [0, 10, 20, 30, 40, 50]),
    # In the first run, and when a period is over since.
    Row("summary-saver", {"save_steps": 3}, 1, [1, 4, 7, 10]),
    Row("summary-saver", {"save_steps": 1}, 1, [*range(1, 11)]),
    Row("summary-saver", {"save_steps": 8}, 1, [1, 9]),
    Row("summary-saver", {"save_steps": 7}, 2, [2, 10, 18]),
    Row("summary-saver", {"save_steps": 3}, 2, [2, 6, 10, 14, 18]),
    Row("summary-saver", {"save_steps": 8}, 5, [5, 15, 25, 35, 45]),
    Row("summary-saver", {"save_steps": 3}, 5, [*range(5, 51, 5)]),
    # The same without the first: that starts the clock.
    Row("step-counter", {"every_n_steps": 3}, 1, [4, 7, 10]),
    Row("step-counter", {"every_n_steps": 1}, 1, [*range(2, 11)]),
    Row("step-counter", {"every_n_steps": 7}, 2, [10, 18]),
    Row("step-counter", {"every_n_steps": 3}, 2, [6, 10, 14, 18]),
    Row("step-counter", {"every_n_steps": 8}, 5, [15, 25, 35, 45]),
    Row("step-counter", {"every_n_steps": 3}, 5, [*range(10, 51, 5)]),
    # When a period is over since the start, but not in the first run.
    Row("profiler", {"save_steps": 3}, 1, [3, 6, 9]),
    Row("profiler", {"save_steps": 2}, 1, [2, 4, 6, 8, 10]),
    Row("profiler", {"save_steps": 1}, 1, [*range(2, 11)]),
    Row("profiler", {"save_steps": 7}, 2, [8, 16]),
    Row("profiler", {"save_steps": 3}, 2, [4, 8, 12, 16, 20]),
    Row("profiler", {"save_steps": 7}, 5, [10, 20, 30, 40, 50]),
    Row("profiler", {"save_steps": 3}, 5, [*range(10, 51, 5)]),
    # By runs, and not by steps: 1, 1 + N, 1 + 2N.
    Row("logging-tensor", {"every_n_iter": 3}, 1, [1, 4, 7, 10]),
    Row("logging-tensor", {"every_n_iter": 1}, 1, [*range(1, 11)]),
    Row("logging-tensor", {"every_n_iter": 3}, 2, [2, 8, 14, 20]),
    Row("logging-tensor", {"every_n_iter": 4}, 5, [5, 25, 45]),
    # Before the first run, by runs, and always at the end.
    Row("in-memory-evaluator", {"every_n_iter": 2}, 1, [0, 2, 4, 6, 8, 8], runs=8),
    Row("in-memory-evaluator", {"every_n_iter": 4}, 1, [0, 4, 8, 10]),
    Row("in-memory-evaluator", {"every_n_iter": 1}, 1, [*range(11), 10]),
    Row("in-memory-evaluator", {"every_n_iter": 3}, 2, [0, 6, 12, 18, 20]),
    Row("in-memory-evaluator", {"every_n_iter": 4}, 5, [0, 20, 40, 50]),
    # In the first run, and in the first one that begins when a period is over: at 0, 3, 6.
    Row("early-stopping", {"run_every_steps": 3}, 1, [1, 4, 7, 10]),
    Row("early-stopping", {"run_every_steps": 1}, 1, [*range(1, 11)]),
    Row("early-stopping", {"run_every_steps": 3}, 2, [2, 6, 10, 14, 18]),
    Row("early-stopping", {"run_every_steps": 7}, 5, [5, 15, 25, 35, 45]),
    # In each run.
    Row("nan-tensor", {}, 1, [*range(1, 11)]),
    Row("nan-tensor", {}, 2, [*range(2, 21, 2)]),
    Row("nan-tensor", {}, 5, [*range(5, 51, 5)]),
    Row("feed-fn", {}, 1, [*range(1, 11)]),
    Row("feed-fn", {}, 2, [*range(2, 21, 2)]),
    Row("feed-fn", {}, 5, [*range(5, 51, 5)]),
    # In each run too, and once it stops.
    Row("stop-at-step", {"num_steps": 10}, 1, [10]),
    Row("stop-at-step", {"num_steps": 19}, 2, [20]),
    Row("stop-at-step", {"num_steps": 12}, 5, [15], runs=3),
    Row("stop-at-step", {"num_steps": 46}, 5, [50]),
]


EVALUATOR = "in-memory-evaluator"
GOING_BACK = {EVALUATOR, "early-stopping", "nan-tensor", "feed-fn"}
"""Hooks that do again what they did in runs that are repeated in a recovery."""
KEEPING = GOING_BACK | {"summary-saver", "logging-tensor", "stop-at-step"}
"""Hooks that go on where an interrupted session stood; others count from each start."""


def moved(row: Row, start: int) -> list[int]:
    """Return where a session that starts at a step acts; a restored step is not saved."""
    steps = [start + step for step in row.steps]
    return steps[1:] if row.hook == "checkpoint-saver" and start else steps


def resumed(row: Row, start: int, saved: bool) -> list[int]:
    """Return the results of two sessions, of which the second resumed at a step."""
    if row.hook in KEEPING:
        return list(row.steps)
    before = [step for step in row.steps if step <= start]
    after = [step for step in moved(row, start) if step <= row.last]
    if row.hook == "checkpoint-saver":
        before, after = [*before, *[start] * saved], [*after, row.last]
    return list(dict.fromkeys(before + after))


@attrs.frozen
class Group:
    """Rows of different hooks, which are in one session.

    Attributes:
        rows: what they have in common is how many runs there are and what each adds.
        number: which one of its kind it is.
        custom_loop: whether the session is around a custom loop.
    """

    rows: Sequence[Row]
    number: int
    custom_loop: bool

    def __str__(self) -> str:
        runs, increment = self.rows[0].runs, self.rows[0].increment
        return f"{runs}x{increment} {self.number}{' custom loop' * self.custom_loop}"

    @property
    def increment(self) -> int:
        return self.rows[0].increment

    @property
    def last(self) -> int:
        return self.rows[0].last

    def training(self, errors: Mapping[int, Exception] | None = None) -> Training:
        """Return a run with the hooks of all rows, and a saver if it is not there."""
        hooks = {row.hook for row in self.rows}
        save_every = None if "checkpoint-saver" in hooks else 2 * self.increment
        return Training(self.rows, self.custom_loop, save_every, dict(errors or {}))

    def resumed(self, start: int, saved: bool = False) -> dict[str, list[int]]:
        """Return the results of two sessions, of which the second resumed at a step.

        Args:
            start: the step.
            saved: whether the first one saved it because it ended there.
        """
        expected = {row.hook: resumed(row, start, saved) for row in self.rows}
        if self.custom_loop and start == 0 and EVALUATOR in expected:
            # The first evaluation comes in the first step, after the checkpoint of step 0.
            expected[EVALUATOR] = [0, *expected[EVALUATOR]]
        return expected

    def seen(self, how: Callable[[str], list[int]]) -> dict[str, list[int]]:
        return {row.hook: how(row.hook) for row in self.rows}


def groups() -> Iterator[Group]:
    """Put each row into a group, once for a graph and once for a custom loop."""
    kinds: dict[tuple[int, int], dict[str, list[Row]]] = {}
    for row in TABLE:
        kinds.setdefault((row.runs, row.increment), {}).setdefault(row.hook, []).append(row)
    for (_, increment), hooks in kinds.items():
        for number, rows in enumerate(itertools.zip_longest(*hooks.values())):
            chosen = [row for row in rows if row is not None]
            yield Group(chosen, number, custom_loop=False)
            if increment == 1:  # as the step of a custom loop adds 1
                yield Group(chosen, number, custom_loop=True)


GROUPS = list(groups())
EACH = pytest.mark.parametrize("group", GROUPS, ids=str)
GRAPHS = pytest.mark.parametrize("group", [g for g in GROUPS if not g.custom_loop], ids=str)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_each_hook_acts_at_the_steps_of_the_table(row):
    """In one session that starts at step 0."""
    Training([row]).run(row.last)
    assert done(row.hook) == row.steps


@pytest.mark.parametrize("row", [row for row in TABLE if row.increment == 1], ids=str)
def test_around_a_custom_loop_the_steps_are_the_same(row):
    """Each of its steps adds 1."""
    Training([row], custom_loop=True).run(row.last)
    assert done(row.hook) == row.steps


ENDS = {
    "completed": lambda _: None,
    "stopped": lambda run_context: run_context.request_stop("enough"),
    "end_of_input": OutOfRangeError("no more"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("group", "end"),
    [
        (group, end)
        for group in GROUPS
        for end in (cases(("stopped",), ENDS) if group.number else ENDS)
    ],
    ids=str,
)
def test_after_a_session_that_was_over_the_schedules_start_anew(group, end):
    """From the step that is restored, as from step 0."""
    how, start = ENDS[end], 2 * group.increment
    if isinstance(how, Exception):
        first = group.training({3: how}).run(start + 1)
    else:
        first = group.training().run(start, Acts(2, how))
    assert (first.outcome.kind, first.global_step) == (end, start)
    before = group.seen(done)
    group.training().run(start + group.last)
    after = {row.hook: done(row.hook)[len(before[row.hook]) :] for row in group.rows}
    assert after == {row.hook: moved(row, start) for row in group.rows}


class Killed(Exception):
    """Leaves a session's block in the middle of a run."""


def dies(_):
    raise Killed


SOME, ALL = (1, 6), range(1, RUNS + 1)
MOMENTS = pytest.mark.parametrize(
    "moments", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"]
)
"""The numbers of runs in which something happens."""


@pytest.fixture
def folders(monkeypatch):
    """Return a function that goes into a new folder."""
    here = Path.cwd()

    def enter(name: object) -> None:
        (here / str(name)).mkdir()
        monkeypatch.chdir(here / str(name))

    return enter


@pytest.mark.sampled(5)
@MOMENTS
@EACH
def test_after_a_kill_the_schedules_go_on(group, moments, folders):
    """Both sessions together leave the same as one alone.

    The killed run is lost, and all since the newest checkpoint is done again. Where a
    hook keeps no state, its schedule counts from the step that is restored.
    """
    for number in range(1, group.rows[0].runs):
        if number not in moments:
            continue
        folders(number)
        with pytest.raises(Killed):
            group.training().run(group.last, Acts(number, dies))
        group.training().run(group.last)
        _, start = done("start")
        assert start < number * group.increment
        assert group.seen(surviving) == group.resumed(start), number


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@EACH
def test_after_a_signal_the_schedules_go_on(group, number):
    """Such a session saves its last step, wherever in a period that is."""
    start = 2 * group.increment
    first = group.training().run(group.last, Acts(2, lambda _: signal.raise_signal(number)))
    assert first.global_step == start
    group.training().run(group.last)
    assert done("start") == [0, start]
    assert group.seen(surviving) == group.resumed(start, saved=True)


def recovered(row: Row) -> list[int]:
    """Return the steps at which a hook acts in a session with a recovery."""
    runs = done("run")
    if row.hook == "logging-tensor":
        return runs[:: row.settings["every_n_iter"]]
    if row.hook == "profiler" and runs[0] == runs[1] >= row.settings["save_steps"]:
        return [runs[0], *row.steps]  # the first step, in a run that is not the first
    return list(row.steps)


@pytest.mark.sampled(4)
@MOMENTS
@GRAPHS
def test_after_a_recovery_what_was_done_stays_done(group, moments, folders):
    """Nothing is done twice where steps are, and then the schedules go on.

    But what goes by runs counts those that are repeated, and what early stopping and the
    evaluator know goes back with the model.
    """
    for number in range(1, group.rows[0].runs + 1):
        if number not in moments:
            continue
        folders(number)
        group.training({number: AbortedError("gone")}).run(group.last)
        assert len(done("start")) == 2
        back = GOING_BACK & {row.hook for row in group.rows}
        seen = group.seen(done) | {name: surviving(name) for name in back}
        assert seen == {row.hook: recovered(row) for row in group.rows}, number


@pytest.mark.parametrize("number", [4, 5])
def test_a_run_that_is_repeated_is_no_run_without_a_step(number, capsys):
    """step-counter has nothing to warn of after a recovery."""
    training = Training([Row("step-counter", {"every_n_steps": 3}, 1, [])], save_every=3)
    training.errors[number] = AbortedError("gone")
    training.run(8)
    assert done("start") == [0, 3]
    assert "has not been increased" not in capsys.readouterr().err


def die_in(group: Group, number: int) -> None:
    """Kill this process in the middle of a run."""
    kill = Acts(number, lambda _: os.kill(os.getpid(), signal.SIGKILL))
    group.training().run(group.last, kill)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=[pytest.mark.slow] if group.number else [], id=str(group))
        for group in GROUPS
        if group.rows[0].runs == RUNS
    ],
)
def test_after_a_process_is_killed_the_schedules_go_on(group):
    """By SIGKILL, which lets nobody say or save anything."""
    command = [sys.executable, __file__, str(group), "6"]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = commands.run(command, env=os.environ | path)
    assert process.returncode == -signal.SIGKILL
    group.training().run(group.last)
    _, start = done("start")
    assert 0 <= start < 6 * group.increment
    assert group.seen(surviving) == group.resumed(start)


if __name__ == "__main__":
    by_name = {str(group): group for group in GROUPS}
    die_in(by_name[sys.argv[1]], int(sys.argv[2]))
