"""A hook can have a run skip its update; everything else is as in any run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import (
    Config,
    DrivenSession,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
)

QUIET = Config(autoload=False, header=False)


class Skips(SessionRunHook):
    """Skips the updates of the runs that begin at these steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def before_run(self, run_context: Any) -> None:
        if run_context.global_step in self.steps:
            run_context.skip_update()


class Sees(SessionRunHook):
    """Notes each run: the step after it, the loss, and whether the update was skipped."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, float, bool]] = []

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("loss")

    def after_run(self, run_values: Any) -> None:
        seen = run_values.global_step, float(run_values.results), run_values.skipped
        self.runs.append(seen)


def line() -> Graph:
    """Return a graph that adds each number of an input to w."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.input("x", lambda: map(float, range(1, 100)))

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: float, x: float) -> tuple[float, dict[str, float]]:
        return w + x, {"loss": 10 * x + w}

    return graph


def numbers() -> Iterator[float]:
    """Yield the same numbers for a custom loop."""
    return map(float, range(1, 9))


EVEN = (0, 2, 5, 6)
SUM = sum(x for x in range(1, 9) if x - 1 not in EVEN)


def by_hand() -> list[tuple[int, float, bool]]:
    """Return a hook's view of eight steps of a plain loop that skips some updates."""
    seen, w = [], 0.0
    for step, x in enumerate(numbers()):
        seen.append((step + 1, 10 * x + w, step in EVEN))
        w += 0.0 if step in EVEN else x
    return seen


def test_a_run_does_not_commit_a_skipped_update():
    """The step counts, the input is used, outputs have new values; w stays."""
    sees = Sees()
    with MonitoredSession(line(), hooks=[Skips(*EVEN), sees], config=QUIET) as session:
        for _ in range(8):
            session.run("train")
        assert session.run("w", kind="aux") == SUM
        assert session.global_step == 8
    assert sees.runs == by_hand()


def test_a_custom_loop_sees_that_it_is_to_skip():
    """step.skipped tells it; hooks see run_values.skipped."""
    w, sees = np.zeros(()), Sees()
    with MonitoredSession(hooks=[Skips(*EVEN), sees], config=QUIET) as session:
        session.track(w=w)
        for x in session.iterate([*numbers()]):
            with session.step() as step:
                step.report(loss=10 * x + float(w))
                if not step.skipped:
                    w += x
    assert w == SUM
    assert sees.runs == by_hand()


def test_a_driven_loop_is_told_who_skips():
    """The request of a step names the hook."""
    driven = DrivenSession(hooks=[Skips(1)], config=QUIET, serves={"skip"})
    driven.begin()
    driven.created()
    found = []
    for _ in range(3):
        found.append(driven.before_step().skipped_by)
        driven.after_step()
    driven.end()
    assert found == [None, "skips", None]


@pytest.mark.parametrize("wants", [(), (0,)])
def test_an_assignment_is_committed_though_the_update_is_not(wants):
    """The variables that hooks assign are not part of the update."""

    class Assigns(SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            run_context.assign({"v": 5.0})

    graph = line()
    graph.variable("v", 0.0)
    with MonitoredSession(graph, hooks=[Skips(*wants), Assigns()], config=QUIET) as session:
        session.run("train")
        assert session.run(["v", "w"], kind="aux") == [5.0, 0.0 if wants else 1.0]


def test_the_outcome_and_the_log_count_what_was_skipped(capsys):
    """By hook."""
    hooks = [Skips(0, 1), Skips(1, 3)]
    with MonitoredSession(line(), hooks=hooks, config=QUIET) as session:
        for _ in range(5):
            session.run("train")
    assert session.outcome.skipped == 3
    lines = capsys.readouterr().err
    assert "updates skipped by=skips updates=2" in lines
    assert "updates skipped by=skips-2 updates=1" in lines
    assert "skipped=3" in lines


def test_a_checkpoint_has_the_values_from_before_the_skipped_update(tmp_path):
    """Cut at any step and resumed, the training is the same."""

    def train() -> Iterator[float]:
        hooks = [Skips(*EVEN), CheckpointSaverHook(tmp_path, save_steps=1)]
        options = {"checkpoint_dir": tmp_path, "save_checkpoint_secs": None}
        with MonitoredTrainingSession(
            line(), hooks=hooks, config=QUIET, **options
        ) as session:
            while session.global_step < 8:
                session.run("train")
                yield session.run("w", kind="aux")

    found = []
    for _ in range(8):
        steps = train()
        found.append(next(steps))
        with pytest.raises(KeyError):  # as if the process died here
            steps.throw(KeyError())
    assert found == [*itertools.accumulate(0 if s in EVEN else s + 1.0 for s in range(8))]


class SkipsLate(SessionRunHook):
    """Asks after the run."""

    def after_run(self, run_context: Any) -> None:
        run_context.skip_update()


@pytest.mark.parametrize("runs", [1, 5])
def test_after_before_run_it_is_too_late(runs):
    """The update is under way."""
    message = r"hook 'skips-late' called run_context.skip_update\(\) after before_run\(\)"
    with (
        pytest.raises(UsageError, match=message),
        MonitoredSession(line(), hooks=[SkipsLate()], config=QUIET) as session,
    ):
        session.run("train")


def test_a_run_without_a_train_op_has_nothing_to_skip():
    """The error names the hook."""
    with (
        pytest.raises(UsageError, match="in a run without a train op") as caught,
        MonitoredSession(line(), hooks=[Skips(0)], config=QUIET) as session,
    ):
        session.run("w")
    assert any("'skips'" in note for note in caught.value.__notes__)


def test_a_run_of_another_kind_updates_nothing():
    """It is refused at once."""

    class Aux(Skips):
        options = HookOptions(kinds=("train", "aux"))

    message = "hook 'aux' called .* in a run of the kind 'aux', which updates nothing"
    with (
        pytest.raises(UsageError, match=message),
        MonitoredSession(line(), hooks=[Aux(0)], config=QUIET) as session,
    ):
        session.run("w", kind="aux")


@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_run_that_fails_has_skipped_nothing(custom_loop):
    """The outcome counts the runs that were done."""
    graph = Graph()
    graph.input("x", lambda: [1.0, 2.0])
    graph.train_op(lambda x: None, name="train")
    kind = None if custom_loop else graph
    with MonitoredSession(kind, hooks=[Skips(*range(5))], config=QUIET) as session:
        if custom_loop:
            for x in (1.0, 2.0, None):
                with session.step():
                    if x is None:
                        raise StopIteration
        else:
            for _ in session.loop():
                pass
    assert (session.outcome.kind, session.outcome.skipped) == ("end_of_input", 2)
