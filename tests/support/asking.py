"""A hook that asks for the same in each run and keeps what it is handed."""

from __future__ import annotations

from typing import Any

from hookbus import SessionRunContext, SessionRunHook, SessionRunValues


class Asker(SessionRunHook):
    """Asks for the same in each run and keeps what it is handed."""

    def __init__(self, request: Any = None) -> None:
        self.request = request
        self.contexts: list[SessionRunContext] = []
        self.values: list[SessionRunValues] = []

    def before_run(self, run_context):
        self.contexts.append(run_context)
        return self.request

    def after_run(self, run_context, run_values):
        self.contexts.append(run_context)
        self.values.append(run_values)

    @property
    def results(self) -> list[Any]:
        return [values.results for values in self.values]
