"""Serves the requests of hooks: assigns variables, saves a checkpoint, stops."""

from __future__ import annotations

from hookbus.hooks.context import SessionRunContext
from hookbus.logs import log
from hookbus.session.state import SessionState


def act(
    state: SessionState, context: SessionRunContext | None, saving: bool = True
) -> None:
    """Serve all requests; *context* is that of the run that has just ended, if any.

    A request for a checkpoint stays unless *saving*.
    """
    assert state.backend is not None
    requests, session = state.requests, state.backend.session
    writes = requests.take_writes()
    if writes:
        session.write({name: value for name, (_, value) in writes.items()})
        for name, (who, _) in writes.items():
            log.debug("variable assigned", variable=name, by=who)
    requested = requests.take_save() if saving else None
    if requested is not None:
        save(state, *requested, context)
    began = session.global_step - 1 if context is None else context.global_step
    stop = requests.due_stop(began)
    if stop is not None:
        state.take_stop(stop)


def act_after_run(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests of hooks, or of a signal, after a successful run."""
    if state.signals.came() and state.stop is None:
        state.stop_by_signal()
        state.requests.request_save(state.signals.name, "a signal came")
    if state.requests.pending:
        act(state, context)
    if state.recovery is not None and state.recovering:
        state.recovery.in_a_row, state.recovering = 0, False


def save(
    state: SessionState, who: str, why: str, context: SessionRunContext | None
) -> None:
    """Write a checkpoint, unless the last one is up to date or a hook refuses."""
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    step = session.global_step
    if saver.is_safe(session):
        return
    if saver.checkpoints.enabled_by is None:
        log.info(
            "a checkpoint was requested, but no plugin saves checkpoints", by=who, why=why
        )
        return
    snapshot, veto = saver.snapshot(session), bus.caller("before_save")
    if not veto.reaches_nobody:
        refusals = veto.collect(session, snapshot.values(), step, context)
        if refusals:
            refuser, reason = refusals[0]
            log.warning("checkpoint refused", step=step, by=refuser, why=reason)
            return
    bus.caller("saving").collect(session, step)
    path = saver.write(session, snapshot, who, why)
    answers = bus.caller("after_save").collect(session, step, path)
    if answers and context is not None:
        state.requests.request_stop(answers[0][0], str(answers[0][1]))
