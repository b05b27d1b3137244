"""Counts steps and events, as a plugin of hookbus 0.1 did it."""

from __future__ import annotations

import attrs

from hookbus import (
    HookOptions,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)


@attrs.define(eq=False)
class KeptHook(SessionRunHook):
    """Prints the sum of a value over all steps, and stops at a limit.

    Args:
        name: the value to add up.
        limit: the session stops when the sum is greater; None never stops it.
    """

    options = HookOptions(main_setting="name", after=("nan-tensor",))

    name: str = "loss"
    limit: float | None = None
    _total: float = attrs.field(default=0.0, init=False)
    _events: list[str] = attrs.field(factory=list, init=False)

    def begin(self) -> None:
        self._events.append("begin")

    def after_create_session(self, session: object, coord: object) -> None:
        self._events.append("after_create_session")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self.name)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        self._total += float(run_values.results)
        if self.limit is not None and self._total > self.limit:
            run_context.request_stop(f"the sum of {self.name} is {self._total:g}")

    def end(self, session: object) -> None:
        self._events.append("end")
        print(self._total, self._events)

    def state_dict(self) -> dict[str, float]:
        return {"total": self._total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._total = state["total"]
