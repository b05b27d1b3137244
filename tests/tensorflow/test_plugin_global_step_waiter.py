"""TensorFlow's rules for GlobalStepWaiterHook, kept by global-step-waiter."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hookbus_global_step_waiter import GlobalStepWaiterHook

from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    EmbeddedSession,
    Graph,
    SessionRunHook,
    hookimpl,
)
from hookbus.testing import Recorder, run_steps


class Shared:
    """A backend whose step is moved by others: to the next of these at each look.

    Looks count while *moving* is set, which is in the waiter's turn.
    """

    moving = False
    shares_step = True

    def __init__(self, graph: Graph, steps: Iterable[int]) -> None:
        self._own = EmbeddedSession(graph)
        self._steps = iter(steps)

    @property
    def global_step(self) -> int:
        if self.moving:
            self._own.global_step = next(self._steps)
        return self._own.global_step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self._own.global_step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class Others(SessionRunHook):
    """Lets the others train in the waiter's turn; notes the step of each run."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    @hookimpl(wrapper=True)
    def before_run(self, run_context):
        run_context.session.moving = True
        try:
            return (yield)
        finally:
            run_context.session.moving = False
            self.steps.append(run_context.session.global_step)


def train(hook: GlobalStepWaiterHook, steps: Iterable[int], open_session, graph) -> Others:
    """Do one run where the shared step goes through *steps*."""
    others = Others()
    creator = ChiefSessionCreator(graph, backend=lambda graph: Shared(graph, steps))
    with open_session(others, hook, session_creator=creator) as session:
        session.run("train")
    return others


def told(capsys) -> list[int]:
    """Return the steps in the lines that say that it waits."""
    lines = capsys.readouterr().err.splitlines()
    found = [re.search(r"waiting for the global step .* now=(\d+)", line) for line in lines]
    return [int(match[1]) for match in found if match]


@pytest.mark.parametrize("step", [0, -5])
def test_step_zero_or_less_waits_for_nothing(step, tmp_path, capsys):
    """Nothing is read, and nothing is said."""
    (tmp_path / "ckpt-7").mkdir()
    (tmp_path / "ckpt-7" / "manifest.json").symlink_to(tmp_path)  # reading it would fail
    assert run_steps(GlobalStepWaiterHook(step, tmp_path), steps=2).global_step == 2
    assert told(capsys) == []


def test_it_waits_until_the_step_is_reached(open_session, graph):
    """It looks again and again, with half a second between two looks."""
    began = time.monotonic()
    others = train(GlobalStepWaiterHook(1000), [0, 500, 1100], open_session, graph)
    assert others.steps == [1100]
    assert time.monotonic() - began >= 1.0


def test_it_says_that_it_waits_also_where_the_step_is_reached(open_session, graph, capsys):
    """The line comes before the first look."""
    train(GlobalStepWaiterHook(1000), [1000], open_session, graph)
    assert told(capsys) == [1000]


def test_it_says_so_again_after_more_than_1000_steps(open_session, graph, capsys):
    """More than 1000 above the step that was said last."""
    steps = [0, 1000, 1001, 2001, 2002, 3000]
    train(GlobalStepWaiterHook(3000), steps, open_session, graph)
    assert told(capsys) == [0, 1001, 2002]


def test_only_the_first_run_waits():
    """Whatever becomes of the checkpoints that it waited for."""
    run_steps(steps=3, directory="chief")
    steps = run_steps(GlobalStepWaiterHook(3, "chief"), Remover(), steps=4)
    assert steps.global_step == 4


def test_it_does_not_wait_again_after_a_recovery():
    """A new backend session may be at an earlier step; the worker goes on."""
    run_steps(steps=3, directory="chief")
    errors = {2: AbortedError("the machine is gone")}
    hooks = [GlobalStepWaiterHook(3, "chief"), Remover()]
    steps = run_steps(*hooks, steps=4, errors=errors)
    assert steps.global_step == 4


class Remover(SessionRunHook):
    """Removes the chief's checkpoints after the first run."""

    def after_run(self):
        shutil.rmtree("chief", ignore_errors=True)


def test_a_hook_object_that_is_used_again_waits_anew(capsys):
    """The wait belongs to a session."""
    run_steps(steps=3, directory="chief")
    hook = GlobalStepWaiterHook(3, Path("chief"))
    run_steps(hook, steps=1)
    run_steps(hook, steps=1)
    assert told(capsys) == [3, 3]


def test_it_adds_nothing_to_a_run():
    """It asks for no value and feeds none."""
    run_steps(steps=1, directory="chief")
    recorder = Recorder()
    run_steps(GlobalStepWaiterHook(1, "chief"), recorder, steps=2)
    calls = recorder.calls_of("before_run", "global-step-waiter")
    assert {call.result for call in calls} == {None}
    assert recorder.calls_of("after_run", "global-step-waiter") == []
