"""A step of a custom loop that repeats takes a short way, and does what others do."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import Config, MonitoredTrainingSession, SessionRunArgs, SessionRunHook
from hookbus.loop.step import Step
from tests.support.askers import HOOKS, Asker, join, made, terminate
from tests.support.profiles import cases

QUIET = Config(autoload=False, header=False)
STEPS = st.lists(
    st.sampled_from(
        [
            *["usual"] * 12,
            "another value",
            "another order",
            "more names",
            "fewer names",
            "late",
            "summary",
            "cancelled",
            "failed",
            "auxiliary",
            "evaluation",
            "read",
            "registered",
            "signal",
        ]
    ),
    max_size=24,
)


def do(session: MonitoredTrainingSession, what: str, log: list[Any], value: Any) -> None:
    """Do one step, or what a program may do between two steps."""
    if what == "evaluation":
        with session.evaluation() as evaluation:
            evaluation.report(accuracy=value)
    elif what == "read":
        log.append(session.run("loss"))
    elif what == "registered":
        join(session, log)
    elif what == "signal":
        terminate()
    else:
        with session.step(kind="aux" if what == "auxiliary" else None) as step:
            log.append(("fed", dict(step.feeds)))
            report(step, what, log, value)
            if what == "cancelled":
                step.cancel()
            if what == "failed":
                raise KeyError(what)


def report(step: Step, what: str, log: list[Any], value: Any) -> None:
    """Report the values of a step."""
    if what == "another order":
        step.report(n=2)
        step.report(step=0.5, w=[1], loss=value)
    elif what == "fewer names":
        step.report(loss=value)
    elif what == "late":
        step.report(loss=lambda: (log.append("called"), value)[1], n=2, step=0.5, w=[1])
    else:
        step.report(loss=value, n=2, step=0.5, w=[1])
    if what == "more names":
        step.report(more=1)
    if what == "summary":
        step.summary.scalar("shown", value)


def trace_of(hooks: list[Any], steps: list[str], short: bool, place: Any) -> list[Any]:
    """Train; return all that hooks and the program see, and what is left behind."""
    log: list[Any] = []
    askers = made(log, hooks, short)
    session = MonitoredTrainingSession(
        hooks=askers,
        checkpoint_dir=place,
        save_checkpoint_steps=5,
        config=QUIET,
    )
    for asker in askers:
        if isinstance(asker, Asker):
            asker.session = session
    number, w = 0, np.zeros(2)
    try:
        with session:
            session.track(w=w)
            for number, what in enumerate(session.iterate(steps)):
                try:
                    do(session, what, log, 0.5 + number * (what == "another value"))
                except KeyError as error:
                    log.append(("error", str(error), getattr(error, "__notes__", None)))
                log.append((number, session.global_step, w.tolist()))
    except (Exception, SystemExit) as error:
        log.append((type(error).__name__, str(error), getattr(error, "__notes__", None)))
    assert session.outcome is not None
    return [*log, session.outcome.kind, session.outcome.who, session.outcome.step]


@pytest.mark.long
@pytest.mark.parametrize("part", range(cases(1, 16)))
@settings(max_examples=cases(50, 500), deadline=None)
@given(hooks=HOOKS, steps=STEPS)
def test_a_repeated_step_leaves_the_same_trace_as_any_other(part, hooks, steps):
    """Whatever hooks ask for, the loop reports, and happens in between."""
    traces = []
    for short in (True, False):
        with tempfile.TemporaryDirectory() as place:
            traces.append(trace_of(hooks, steps, short, place))
            traces[-1].append(saved_in(place))
    assert traces[0] == traces[1]


def saved_in(place: str) -> list[str]:
    """Return the names of the checkpoints in a directory."""
    return sorted(path.name for path in Path(place).glob("ckpt-*"))


class Ways(SessionRunHook):
    """Fetches the loss, and notes in which steps it is called on the short way."""

    def __init__(self) -> None:
        self.ways: list[bool] = []

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("loss")

    def after_run(self) -> None:
        self.ways.append(any(f.name == "tell" for f in traceback.extract_stack()))


def test_a_step_that_repeats_takes_the_short_way():
    """From the third one on: the first two are the same."""
    hook = Ways()
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        for number in range(6):
            with session.step() as step:
                step.report(loss=number)
    assert hook.ways == [False, False, True, True, True, True]


def test_steps_that_report_other_names_in_turns_each_take_a_short_way():
    """Like a loop that knows its accuracy in every second step."""
    hook = Ways()
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        for number in range(12):
            more = {"accuracy": 0.5} if number % 2 else {}
            with session.step() as step:
                step.report(loss=number, **more)
    assert hook.ways == [False] * 4 + [True] * 8
