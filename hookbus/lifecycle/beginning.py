"""Calls the hooks before the first run, in which they may stop the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus.backend.protocol import Session
from hookbus.errors import PluginError
from hookbus.hooks.context import RunFrame, SessionRunContext
from hookbus.hooks.event_bus import shared
from hookbus.hooks.outcome import NOBODY, StopReason
from hookbus.hooks.requests import RunRequests
from hookbus.lifecycle.services import Services
from hookbus.lifecycle.state import Phase, SessionState
from hookbus.logs import log
from hookbus.peers.agreement import Agreement
from hookbus.process.signals import raise_deferred


def begin(state: SessionState) -> None:
    """Call every ``begin``; the graph may still change. A hook may stop the session here.

    Raises:
        PluginError: the order that the hooks ask for is impossible, or one returned
            something else than a reason.
    """
    bus = state.bus
    bus.check_order()
    bus.configure()
    state.creator.graph.enter()
    state.enter(Phase.BEGUN)
    _call_begin(state)
    _send_lines(state)


def _call_begin(state: SessionState) -> None:
    """Call every ``begin``. A hook without one counts as begun after those before it.

    The first reason that a hook returns stops the session.
    """
    caller, order = state.bus.caller("begin"), list(state.bus.members)
    silent = set(order) - {name for name, _ in caller.rows}
    arguments = (
        state.creator.graph,
        state.saver.checkpoints,
        state.kind,
        state.options.rank,
        state.options.ranks,
        state.bus.clock.seconds,
        state.requests.of(NOBODY),
    )

    def args_of(name: str) -> tuple[Any, ...]:
        raise_deferred()
        state.begun.add(name)
        return (*arguments[:-1], state.requests.of(name))  # each hook has its own

    def owner() -> str:
        return state.bus.current.name

    try:
        with state.creator.graph.adding(owner):
            reasons = caller.visit(arguments, args_of)
    except BaseException:
        reached = max(map(order.index, state.begun), default=-1)
        state.begun.update(silent.intersection(order[: reached + 1]))
        raise
    state.begun.update(silent)
    for who, reason in reasons:
        if not isinstance(reason, str):
            error = PluginError(
                f"plugin {state.bus.members[who].label}: begin() returned {reason!r}; "
                "return a reason to stop, as a str, or None"
            )
            caller.blame(error, who)
            raise error
        state.take_stop(StopReason(who, reason))


def _send_lines(state: SessionState) -> None:
    """Send log lines to the hooks from now on, if one of them has the event."""
    bus = state.bus
    if not bus.implementations("line_logged", state.kind):
        return

    def take(event: str, level: str, fields: Mapping[str, Any]) -> None:
        if not state.is_abandoned:
            bus.caller("line_logged").collect(event, level, shared(fields))

    state.lines.send_to(take)


def stop_before_first_run(state: SessionState, session: Session) -> None:
    """Stop before the first run if a hook declares the training finished."""
    reasons = state.bus.caller("before_first_run").collect(session)
    if reasons:
        who, why = reasons[0][0], str(reasons[0][1])
        log.info("nothing to train", step=session.global_step, by=who, why=why)
        state.take_stop(StopReason(who, why))


def agree_on_stop(state: SessionState, agreement: Agreement) -> None:
    """Stop before the first run if a hook of any rank wants it."""
    own = state.ending.stop
    agreement.where = "opens the session"
    asked = agreement.gather(None if own is None else [own.who, own.why])
    wanted = [(rank, *stop) for rank, stop in enumerate(asked) if stop is not None]
    if wanted and own is None:
        rank, who, why = wanted[0]
        state.take_stop(StopReason(who, f"{why} (rank {rank})"))


def begin_training(state: SessionState, session: Session) -> RunRequests | None:
    """Tell the hooks that each value has its restored state; return what they ask for.

    None if no hook has the event.
    """
    caller = state.bus.caller("before_training")
    if caller.reaches_nobody:
        return None
    frame = RunFrame(Services(state, session), session, state.kind)
    context = SessionRunContext.before_all(frame, session.global_step)
    try:
        caller.collect(session, context)
    finally:
        context.close()
    return context.asked
