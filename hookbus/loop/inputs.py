"""Connects a custom loop with its session: objects to save, inputs, ends of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from hookbus.backend.reports import ReportSession
from hookbus.lifecycle.requests import apply_requests
from hookbus.lifecycle.state import SessionState


def track(state: SessionState, things: Mapping[str, Any]) -> Any:
    """Save objects of a custom loop; return the object, or for several a dict."""
    tracking, graph = state.contents.tracking, state.creator.graph
    values = tracking.add(things)
    graph.hold(tracking.live(values), tracking.states(values))
    return next(iter(values.values())) if len(values) == 1 else values


def wrapping(state: SessionState, name: str | None) -> Callable[[Any], Any] | None:
    """Return a function that wraps the values of a custom loop's input, or None."""
    if name is None:
        return None
    state.loop.input_names.add(name)
    if name not in state.creator.graph.wraps:
        return None
    assert state.backend is not None
    session = cast("ReportSession", state.backend.session)
    return partial(session.wrapped, name)


def end_epoch(state: SessionState, epoch: int) -> None:
    """Tell hooks that a pass over the input of a custom loop has ended."""
    backend = state.usable("aux")
    if not state.bus.caller("epoch_ended").reaches_nobody:
        emit_between_steps(state, "epoch_ended", session=backend.session, epoch=epoch)
    if state.agreement is not None:
        saving = state.contents.may_save
        apply_requests(state, state.loop.last_context, saving, together=True)


def emit_between_steps(state: SessionState, event: str, **arguments: Any) -> None:
    """Send an event between two steps, and serve the requests of hooks.

    For the event, the context of the last step is open for requests again.
    """
    context, step = state.loop.last_context, state.global_step
    if context is not None:
        context.reopen()
    try:
        state.bus.emit(event, **arguments, global_step=step)
        apply_requests(state, context, saving=state.contents.may_save)
    finally:
        if context is not None:
            context.close()
