"""Provides the services of a session that the contexts of its runs need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus.backend.protocol import Session
from hookbus.errors import UsageError
from hookbus.graph.node import Node
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import NOBODY
from hookbus.hooks.requests import CurrentHook, Requests
from hookbus.lifecycle.state import SessionState
from hookbus.logs import log
from hookbus.swaps import swaps_of


class Services:
    """The services of a session for the contexts of its runs on one backend session.

    The first runs, of a hook that evaluates, may come in ``after_create_session``, when the
    session does not have the backend session yet.

    Attributes:
        requests: takes the requests of hooks.
        current_hook: names the hook that is being called.
    """

    def __init__(self, state: SessionState, session: Session) -> None:
        self._state, self._session = state, session
        self.requests: Requests = state.requests
        self.current_hook: CurrentHook = state.bus.current

    def emit(self, event: str, /, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers without the Nones."""
        return self._state.bus.emit(event, **arguments)

    def writable(self, node: Node | str, value: Any) -> str:
        """Return the name of a variable that the current hook may set to *value*.

        Raises:
            GraphError: the hook may not set it.
        """
        session, who = self._session, f"hook {self.current_hook.name!r}"
        name = session.graph.variable_named(node, who)
        session.check(name, value, who)
        return name

    def check_write(self, kind: Kind) -> None:
        """Check that the current hook may write variables at once in a run of a kind.

        Raises:
            UsageError: no hook is being called, so a run may be under way; the run
                evaluates; or variables have other values for a while, so the hook's would
                be lost.
        """
        if self.current_hook.name is NOBODY:
            raise UsageError(
                "the caller called run_context.assign(now=True) outside of a hook's event, "
                "where a run may be under way; call it in before_run() or after_run()"
            )
        if kind == "eval":
            raise UsageError(
                f"{self.current_hook.spelled()} called run_context.assign(now=True) in a "
                "run of the kind 'eval', which must not change the model; assign in a step "
                "of the training"
            )
        holders = swaps_of(self._session).holders
        if holders:
            name, who = next(iter(holders.items()))
            raise UsageError(
                f"{self.current_hook.spelled()} called run_context.assign(now=True) while "
                f"{who} has swapped {name!r} for an evaluation; assign without now=True"
            )

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables values at once; they are checked."""
        self._session.write(values)
        for name in values:
            log.debug("variable assigned", variable=name, by=self.current_hook.name)

    def planned_end(self) -> int | None:
        """Return the first step at which a hook plans to stop or an input ends, or None."""
        state = self._state
        ends = self.emit("planned_last_step")
        backend = state.backend
        is_current = backend is not None and backend.session is self._session
        left = state.mode.remaining(state) if is_current else None
        if left is not None:
            ends.append(state.global_step + left)
        return min(ends, default=None)

    def epoch(self) -> int | None:
        """Return the number of the epoch, or of a custom loop's open pass; or None."""
        return self._state.mode.epoch(self._state)

    def evaluation(self) -> str | None:
        """Return the name of the evaluation that is under way."""
        return self._state.bus.evaluation

    def input_numbers(self) -> Mapping[str, int]:
        """Return the number of the last value that each input has given."""
        state = self._state
        if state.mode.takes_reports:
            return state.contents.position.given()
        given = self._session.positions()
        return {n: each["pulled"] - 1 for n, each in given.items() if each.get("pulled")}

    def is_ending(self) -> bool:
        """Return whether a signal or the coordinator ends the session."""
        state = self._state
        ended = state.backend is not None and state.backend.coord.should_stop()
        return ended or state.ending.signals.came()

    def was_stopped(self) -> bool:
        """Return whether a stop that a hook asked for took effect."""
        return self._state.ending.was_asked
