"""Tests what a hook of one rank asks for, and what all ranks do and are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
    list_checkpoints,
)
from hookbus.checkpoint.reader import read_checkpoint
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)


@pytest.fixture(autouse=True)
def _library(tmp_path) -> Iterator[None]:
    """The library whose ranks are threads."""
    with thread_library(tmp_path / "library"):
        yield


def in_a_graph(*hooks: Any, steps: int = 4) -> MonitoredSession:
    """Train on a graph; return the session."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(steps):
            if not session.should_stop():
                session.run("train")
    return session


def in_a_loop(*hooks: Any, steps: int = 4) -> MonitoredSession:
    """Train in a custom loop; return the session."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in session.iterate(range(steps)):
            with session.step():
                pass
    return session


LOOPS = {"graph": in_a_graph, "custom loop": in_a_loop}


@pytest.fixture(params=LOOPS)
def train(request) -> Callable[..., MonitoredSession]:
    """Return a function that trains."""
    return LOOPS[request.param]


class BeginHook(SessionRunHook):
    """Notes the arguments of ``begin`` about the ranks, and may stop the session."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason

    def begin(self, rank: int, ranks: int) -> str | None:
        self.place = rank, ranks
        return self.reason


def test_begin_tells_how_many_processes_train_together(train):
    """A hook that shares its work out needs to know."""

    def run(rank: int) -> Any:
        hook = BeginHook()
        train(hook)
        return hook.place

    assert ranked(3, run) == [(0, 3), (1, 3), (2, 3)]


def test_a_process_that_trains_alone_is_the_only_one(train):
    """Also one that only evaluates."""
    hook, other = BeginHook(), BeginHook()
    train(hook)
    with MonitoredSession(hooks=[other], config=QUIET, kind="eval"):
        pass
    assert hook.place == other.place == (0, 1)


def test_all_ranks_stop_before_the_first_run_if_a_hook_of_one_wants_it(train):
    """Otherwise the others would wait for it in their first step."""

    def run(rank: int) -> Any:
        outcome = train(BeginHook("no data" if rank == 1 else None)).outcome
        return outcome.kind, outcome.who, outcome.why, outcome.step

    first, second = ranked(2, run)
    assert first == ("stopped", "begin", "no data (rank 1)", 0)
    assert second == ("stopped", "begin", "no data", 0)


class OverHook(SessionRunHook):
    """Declares the training over on one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @hookimpl
    def before_first_run(self) -> str | None:
        return "all is done" if self.rank == 1 else None


def test_all_ranks_stop_if_a_hook_of_one_declares_the_training_over(train):
    """For the same reason."""
    steps = ranked(2, lambda rank: train(OverHook(rank)).outcome.step)
    assert steps == [0, 0]


class GathersHook(SessionRunHook):
    """Asks in each run for a value of each rank."""

    def __init__(self, fetches: Any) -> None:
        self.fetches, self.results = fetches, []

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs(self.fetches, reduce="gather")

    def after_run(self, run_values: Any) -> None:
        self.results.append(run_values.results)


def test_a_hook_gets_the_value_of_each_rank_in_each_run(train):
    """In the structure of its fetches."""

    def run(rank: int) -> Any:
        hook = GathersHook({"steps": ["global_step", "global_step"]})
        train(hook, steps=3)
        return hook.results

    expected = [{"steps": [[step, step], [step, step]]} for step in range(3)]
    assert ranked(2, run) == [expected, expected]


def test_a_process_alone_gathers_lists_of_one(train):
    """So the hook needs no change."""
    hook, other = GathersHook("global_step"), GathersHook(["global_step"])
    other.options = HookOptions(ranks="chief")
    train(hook, other)
    assert hook.results == [[step] for step in range(4)]
    assert other.results == [[[step]] for step in range(4)]


def test_what_a_hook_gathers_alone_is_protected_from_it():
    """As its other results."""
    graph, value = Graph(), np.zeros(2)
    graph.op(lambda: value, name="value")
    hook = GathersHook("value")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("value")
    [[found]] = hook.results
    with pytest.raises(ValueError, match="read-only"):
        found += 1


class AsksHook(SessionRunHook):
    """Does something after the first run."""

    def __init__(self, asks: Callable[[Any], None]) -> None:
        self.asks = asks

    def after_run(self, run_context: Any) -> None:
        if run_context.global_step == 0:
            self.asks(run_context)


def test_all_ranks_end_with_the_label_of_the_one_that_asked(train):
    """As with the reason."""

    def run(rank: int) -> Any:
        def asks(context: Any) -> None:
            if rank == 1:
                context.request_stop("bad", label="pruned")

        outcome = train(AsksHook(asks)).outcome
        return outcome.kind, outcome.who, outcome.why, outcome.label

    assert ranked(2, run) == [("stopped", "asks", "bad (rank 1)", "pruned")] * 2


class SavesWhenBack(SessionRunHook):
    """Has the session go back, and asks for a checkpoint in one event then."""

    def __init__(self, event: str, asks: bool, directory: Path) -> None:
        self.event, self.asks, self.directory = event, asks, directory
        self.went_back = False

    def begin(self, checkpoints: Any) -> None:
        self.checkpoints = checkpoints
        checkpoints.enable(self.directory)

    def after_create_session(self) -> None:
        self.ask("after_create_session")

    @hookimpl
    def rolled_back(self) -> None:
        self.ask("rolled_back")

    def ask(self, event: str) -> None:
        if self.went_back and self.asks and event == self.event:
            self.checkpoints.request_save("back", keep=True)

    def after_run(self, run_context: Any) -> None:
        if run_context.global_step == 0 and not self.went_back:
            run_context.request_save("first")
        if run_context.global_step == 50 and not self.went_back:
            self.went_back = True
            run_context.request_rollback("bad", skip_inputs=False)


@pytest.mark.parametrize("event", ["after_create_session", "rolled_back"])
def test_a_hook_of_one_rank_may_ask_for_a_checkpoint_when_the_session_goes_back(
    event, train, tmp_path
):
    """It is the one to which all ranks went."""

    def run(rank: int) -> Any:
        hook = SavesWhenBack(event, rank == 1, tmp_path / "run")
        return train(hook, steps=100).outcome

    one, other = ranked(2, run)
    assert (one.kind, one.step, one.rolled_back) == (other.kind, other.step, 1)
    first, _ = list_checkpoints(tmp_path / "run")  # ranks agree within 16 steps
    assert first.global_step <= 17
    assert read_checkpoint(first.path).manifest.kept == {"saves-when-back": "back"}
