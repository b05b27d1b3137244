"""Tests requests that other threads make of a session."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookbus
from hookbus import (
    Config,
    DrivenSession,
    GraphError,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRequests,
    SessionRunHook,
    UsageError,
    hookimpl,
    list_checkpoints,
)
from hookbus.errors import SessionClosedError
from hookbus.testing import run_steps
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)
RUN = Path("run")


def in_thread(ask: Any) -> Any:
    """Call a function in another thread, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(ask()))
    thread.start()
    thread.join()
    return results[0]


class Asking(SessionRunHook):
    """Has another thread make a request after a step."""

    def __init__(self, step: int, ask: Any) -> None:
        self.step, self.ask = step, ask
        self.answers: list[Future[Any]] = []

    def begin(self, requests: SessionRequests) -> None:
        self.requests = requests

    def after_run(self, run_values: Any) -> None:
        if run_values.global_step == self.step:
            self.answers.append(in_thread(lambda: self.ask(self.requests)))


def train(*hooks: Any, directory: Path | None = RUN, values: int = 8) -> Any:
    """Train a loop that counts in its pass, and return the session and what it tracks."""
    opened = MonitoredTrainingSession(
        checkpoint_dir=directory, save_checkpoint_steps=100, hooks=hooks, config=QUIET
    )
    with opened as session:
        held = session.track(w={"w": np.zeros(2), "rate": 0.5})
        for _ in session.iterate(range(values)):
            with session.step() as step:
                held["w"] += held["rate"]
                step.report(loss=float(held["w"][0]))
    return session, held


def test_a_stop_ends_the_session_at_that_step() -> None:
    """The outcome names the hook, and the thread learns that it is done."""
    hook = Asking(3, lambda requests: requests.request_stop("enough", label="pruned"))
    session, _ = train(hook)
    assert (session.global_step, session.outcome.kind) == (3, "stopped")
    assert (session.outcome.who, session.outcome.why) == ("asking", "enough")
    assert session.outcome.label == "pruned"
    assert hook.answers[0].result(0) is None


def test_a_save_gives_the_step_of_the_checkpoint() -> None:
    """The manifest has the reason, and the checkpoint stays if that was asked for."""
    hook = Asking(3, lambda requests: requests.request_save("look", keep=True))
    train(hook)
    assert hook.answers[0].result(0) == 3
    (kept,) = [info for info in list_checkpoints(RUN) if info.global_step == 3]
    assert kept.kept == {"asking": "look"}


def test_an_assignment_changes_what_is_tracked() -> None:
    """The next step computes with it."""
    hook = Asking(4, lambda requests: requests.assign({"w.rate": 0.0}))
    _, held = train(hook, values=8)
    assert hook.answers[0].result(0) is None
    assert held["w"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("ask", "error", "why"),
    [
        (lambda r: r.assign({"w.rte": 0.0}), GraphError, "w.rte"),
        (lambda r: r.assign({"w.w": np.zeros(3)}), GraphError, "shape"),
        (lambda r: r.request_stop("x", kind="over"), UsageError, "'stopped'"),
    ],
)
def test_a_refusal_tells_the_thread_why(ask: Any, error: Any, why: str) -> None:
    """The training goes on as if nothing had been asked."""
    hook = Asking(2, ask)
    session, held = train(hook)
    assert session.outcome.kind == "completed"
    assert held["w"].tolist() == [4.0, 4.0]
    with pytest.raises(error, match=why):
        hook.answers[0].result(0)


class Veto(SessionRunHook):
    """Refuses checkpoints, except the first one."""

    @hookimpl
    def veto_save(self, global_step: int) -> str | None:
        return "not now" if global_step == 3 else None


@pytest.mark.parametrize(
    ("hooks", "directory", "why"),
    [
        pytest.param([Veto()], RUN, "a hook has refused it", id="veto"),
        pytest.param([], None, "no plugin saves checkpoints", id="no directory"),
    ],
)
def test_a_checkpoint_that_is_not_written_is_told(
    hooks: list[Any], directory: Path | None, why: str
) -> None:
    """The thread gets the reason, and the training goes on."""
    hook = Asking(3, lambda requests: requests.request_save("look"))
    session, _ = train(hook, *hooks, directory=directory)
    assert session.outcome.kind == "completed"
    with pytest.raises(UsageError, match=f"at step 3: .*{why}"):
        hook.answers[0].result(0)


def test_a_request_waits_for_the_next_value() -> None:
    """A pass saves and stops between two values, in whose bodies there are two steps."""
    with MonitoredTrainingSession(checkpoint_dir=RUN, config=QUIET) as session:
        w = session.track(w=np.zeros(1))
        for _ in session.iterate(range(5)):
            with session.step():
                w += 1
            asked = in_thread(lambda: session.requests.request_stop("enough"))
            with session.step():
                w += 1
            assert not asked.done()
    assert (session.global_step, w.tolist()) == (2, [2.0])
    assert asked.result(0) is None
    assert session.outcome.who == "caller"


def test_a_request_in_the_last_moment_is_refused() -> None:
    """Behind the last step nothing could serve it."""
    with MonitoredSession(config=QUIET) as session:
        with session.step():
            pass
        asked = in_thread(lambda: session.requests.request_save("late"))
        assert not asked.done()
    with pytest.raises(SessionClosedError, match="serves no further request"):
        asked.result(0)
    with pytest.raises(SessionClosedError, match="serves no further request"):
        in_thread(lambda: session.requests.request_stop("too late")).result(0)


def test_a_graph_serves_them_as_well() -> None:
    """The variables of a graph are assigned, and a stop ends its loop."""

    def ask(requests: SessionRequests) -> Future[None]:
        requests.assign({"w": 5.0}).add_done_callback(seen.append)
        return requests.request_stop("enough")

    seen: list[Future[None]] = []
    hook = Asking(2, ask)
    steps = run_steps(hook, steps=6)
    assert (steps.global_step, steps.outcome.who) == (2, "asking")
    assert steps.variables["w"] == 5.0
    assert [each.result(0) for each in seen] == [None]
    assert hook.answers[0].result(0) is None


def test_a_driven_session_serves_them_as_well() -> None:
    """The loop is told of the stop after its step."""
    session = DrivenSession(config=QUIET)
    session.begin()
    session.created(global_step=0)
    session.before_step()
    asked = in_thread(lambda: session.requests.request_stop("enough"))
    stop = session.after_step({"loss": 1.0})
    assert stop is not None
    assert (stop.who, stop.why) == ("caller", "enough")
    assert asked.result(0) is None
    session.end()


class Patient(Asking):
    """Has no run of its own before step 1000."""

    options = HookOptions(can_wait=True)

    @hookimpl
    def next_due(self) -> hookbus.Due:
        return hookbus.Due(1000)


def test_a_hook_need_not_be_due() -> None:
    """A request of a hook that waits is served after the next step."""
    hook = Patient(1000, None)
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        for number in session.iterate(range(10)):
            with session.step():
                if number == 4:
                    asked = in_thread(lambda: hook.requests.request_stop("enough"))
    assert (session.global_step, session.outcome.who) == (5, "patient")
    assert asked.result(0) is None


def test_of_several_ranks_one_may_stop_and_none_may_assign(tmp_path: Path) -> None:
    """A value that only one rank has would make them differ; a stop, all agree on."""

    def does(rank: int) -> tuple[int, Any]:
        asked = None
        with MonitoredSession(config=QUIET) as session:
            session.track(w={"rate": 0.5})
            for number in session.iterate(range(60)):
                with session.step():
                    if number == 2 and rank == 1:
                        asked = in_thread(lambda: session.requests.assign({"w.rate": 0.0}))
                        in_thread(lambda: session.requests.request_stop("enough"))
        return session.global_step, asked

    with thread_library(tmp_path):
        (first, _), (second, asked) = ranked(2, does)
    assert first == second < 60
    with pytest.raises(UsageError, match="in a run of several ranks"):
        asked.result(0)
