"""Defines the hooks that the benchmarks time: each fetches one value and keeps it."""

from __future__ import annotations

from hookbus import Due, SessionRunArgs, SessionRunHook, hookimpl

NEVER = 10**9
"""A step that no benchmark reaches."""


class Watcher(SessionRunHook):
    """Fetches one value and keeps it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = None

    def before_run(self, run_context):
        return SessionRunArgs(self.name)

    def after_run(self, run_context, run_values):
        self.last = run_values.results


class ReadyWatcher(Watcher):
    """Does the same, with one request for all runs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.request = SessionRunArgs(name)

    def before_run(self, run_context):
        return self.request


class IdleWatcher(Watcher):
    """Does the same in a run that never comes."""

    @hookimpl
    def next_due(self) -> Due:
        return Due(NEVER)
