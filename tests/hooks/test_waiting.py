"""Tests what ends a hook's wait inside a run: time, a signal, a stop of the coordinator."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from hookbus import SessionRunHook
from hookbus.testing import run_steps

EVENTS = pytest.mark.parametrize("event", ["before_run", "after_run"])
BOTH = pytest.mark.parametrize("custom_loop", [False, True])


class Waiting(SessionRunHook):
    """Waits in one event of each run."""

    def __init__(self, event: str, seconds: float = 60.0) -> None:
        self.event, self.seconds = event, seconds
        self.ended: list[bool] = []

    def before_run(self, run_context):
        if self.event == "before_run":
            self.ended.append(run_context.wait(self.seconds))

    def after_run(self, run_context):
        if self.event == "after_run":
            self.ended.append(run_context.wait(self.seconds))


def kill():
    os.kill(os.getpid(), signal.SIGTERM)


@EVENTS
@BOTH
def test_a_wait_goes_on_to_its_end(event, custom_loop):
    """It takes the seconds that it was given, and says that it was not cut short."""
    hook = Waiting(event, 0.1)
    began = time.monotonic()
    run_steps(hook, steps=2, custom_loop=custom_loop)
    assert hook.ended == [True, True]
    assert time.monotonic() - began >= 0.2


@EVENTS
@BOTH
def test_a_signal_cuts_a_wait_short(event, custom_loop):
    """The run goes on, and the session ends after it."""

    class KillSoon(SessionRunHook):
        def before_run(self):  # the session handles signals from here on
            threading.Timer(0.2, kill).start()

    hook = Waiting(event)
    steps = run_steps(KillSoon(), hook, custom_loop=custom_loop)
    assert hook.ended == [False]
    assert (steps.outcome.kind, steps.global_step) == ("preempted", 1)


def test_a_signal_that_came_before_in_the_run_cuts_it_short():
    """No wait begins then."""

    class Kill(SessionRunHook):
        def before_run(self):
            kill()

    hook = Waiting("after_run")
    steps = run_steps(Kill(), hook)
    assert (hook.ended, steps.outcome.kind) == ([False], "preempted")


@EVENTS
def test_a_stop_of_the_coordinator_cuts_a_wait_short(event):
    """Threads of the session stop; so does who waits for them."""

    class StopLater(SessionRunHook):
        def after_create_session(self, coord):
            threading.Timer(0.2, coord.request_stop).start()

    hook = Waiting(event)
    steps = run_steps(hook, StopLater())
    assert (hook.ended, steps.global_step) == ([False], 1)
