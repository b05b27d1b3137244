"""Gives the tests of custom loops sessions, and a hook that looks."""

from __future__ import annotations

import attrs
import pytest

from hookbus import (
    Config,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)
from tests.support.watching import lines as lines


class FetchHook(SessionRunHook):
    """Asks for the same in every run, and keeps what it got, and how it all ended."""

    def __init__(self, fetches=None, feed_dict=None):
        self.request = SessionRunArgs(fetches, feed_dict)
        self.results = []
        self.steps = []
        self.ended = []

    def before_run(self, run_context):
        self.steps.append(run_context.global_step)
        return self.request

    def after_run(self, run_values):
        self.results.append(run_values.results)
        self.steps.append(run_values.global_step)

    def end(self):
        self.ended.append("end")

    def on_exception(self, exception):
        self.ended.append(type(exception).__name__)


@attrs.define(eq=False)
class AuxHook(SessionRunHook):
    """Counts the auxiliary and the evaluating runs it is told of."""

    options = HookOptions(kinds=("aux", "eval"))
    seen: list[str] = attrs.field(factory=list)

    def after_run(self, run_context):
        self.seen.append(run_context.kind)


@pytest.fixture
def fetch():
    """Return a function that makes a hook which fetches, and keeps what it got."""
    return FetchHook


@pytest.fixture
def own():
    """Return a function that opens a session without a graph, for hooks in code alone."""

    def open_one(*hooks, **parts):
        return MonitoredSession(hooks=hooks, config=Config(autoload=False), **parts)

    return open_one


@pytest.fixture
def saved():
    """Return a function that opens one that saves into ``runs``, every so many steps."""

    def open_one(*hooks, every=1, directory="runs", again=False):
        return MonitoredTrainingSession(
            checkpoint_dir=directory,
            hooks=hooks,
            save_checkpoint_steps=every,
            save_summaries_steps=None,
            log_step_count_steps=None,
            again=again,
            config=Config(autoload=False),
            exit_on_signal=False,
        )

    return open_one
