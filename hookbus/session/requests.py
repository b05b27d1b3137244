"""Does what hooks asked for: assigns variables, saves, stops; once, and only here."""

from __future__ import annotations

from hookbus.hooks.context import SessionRunContext
from hookbus.logs import log
from hookbus.session.state import SessionState


def act(
    state: SessionState, context: SessionRunContext | None, saving: bool = True
) -> None:
    """Do all that was asked for.

    Args:
        state: the session.
        context: the context of the run that has just ended; None outside a run.
        saving: whether a checkpoint can be written now; if not, the request stays.
    """
    assert state.backend is not None
    requests, session = state.requests, state.backend.session
    writes = requests.take_writes()
    if writes:
        session.write({name: value for name, (_, value) in writes.items()})
        for name, (who, _) in writes.items():
            log.debug("variable assigned", variable=name, by=who)
    wish = requests.take_save() if saving else None
    if wish is not None:
        save(state, *wish, context)
    began = session.global_step - 1 if context is None else context.global_step
    stop = requests.due_stop(began)
    if stop is not None:
        state.take_stop(stop)


def act_after_run(state: SessionState, context: SessionRunContext) -> None:
    """Do what hooks, or a signal, asked for in a run that succeeded."""
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
    """Write a checkpoint, unless the last one holds everything or a hook refuses.

    The values are read once, before the first hook looks at them.
    """
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    step = session.global_step
    if saver.is_safe(session):
        return
    if saver.checkpoints.enabled_by is None:
        log.info("a checkpoint was asked for, and no saver is on", by=who, why=why)
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
