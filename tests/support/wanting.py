"""A hook that fetches in each run, and keeps what it gets."""

from __future__ import annotations

import attrs

from hookbus import SessionRunArgs, SessionRunHook


@attrs.define(eq=False)
class Wants(SessionRunHook):
    """Fetches values in each run, and keeps what it gets.

    Attributes:
        fetches: what it fetches.
        missing: what happens with a value that does not exist.
        seen: what it got, run by run.
    """

    fetches: object
    missing: str = "error"
    seen: list = attrs.field(factory=list)

    def before_run(self):
        return SessionRunArgs(self.fetches, missing=self.missing)

    def after_run(self, run_values):
        self.seen.append(run_values.results)
