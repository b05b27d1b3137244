"""Serves the requests of hooks: assigns variables, saves a checkpoint, stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hookbus.checkpoint.reader import Restored
from hookbus.errors import SessionClosedError, UsageError, blaming_writers
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.outcome import (
    NOBODY,
    Rollback,
    SaveRequest,
    StopReason,
    united,
    united_rollbacks,
)
from hookbus.logs import log
from hookbus.peers.agreement import NEVER, Place, Status
from hookbus.process.interrupts import signals_deferred
from hookbus.process.signals import KINDS, raise_deferred
from hookbus.saving.hook_state import load_hooks
from hookbus.saving.leaves import Snapshot
from hookbus.session.state import Phase, SessionState
from hookbus.swaps import unswapped
from hookbus.validation import plain_params

_CAME = "a signal came"


def act(
    state: SessionState,
    context: SessionRunContext | None,
    saving: bool = True,
    together: bool = False,
) -> None:
    """Serve all requests, or those that all ranks of a training have agreed on.

    Args:
        state: the session.
        context: that of the run that has just ended, if any.
        saving: whether to write a checkpoint; if not, a request for one stays.
        together: whether all ranks do this now.
    """
    if state.agreement is not None:
        if together:
            _exchange(state, now=True)
        else:
            hold_requests(state)
    _serve(state, context, saving)


def _serve(state: SessionState, context: SessionRunContext | None, saving: bool) -> None:
    """Serve all requests."""
    requests = state.requests
    _serve_rollback(state)
    began = state.global_step - 1 if context is None else context.global_step
    due = requests.due_stop(began)
    if due is not None and due.kind == "preempted":
        requests.request_save(due.who, due.why, context)
    commit(state)
    requested = requests.take_save() if saving else None
    if requested is not None:
        save(state, requested, context)
        if state.agreement is not None:
            _exchange(state, now=True)  # what hooks of some ranks asked for around the save
        raise_deferred()
        commit(state)  # the assignments of after_save, and those before a refusal
    _serve_rollback(state)  # of a hook around the save
    record_values(state)
    stop = None if requests.rollback is not None else requests.take_stop(began)
    if stop is not None:
        state.take_stop(stop)
    requests.served()
    cut_short = state.stop is not None and state.stop.kind in KINDS.values()
    if requested is not None and cut_short and state.custom_loop:
        assert state.backend is not None
        state.saver.skip_further_saves(state.backend.session)


def hold_requests(state: SessionState) -> None:
    """Put aside what all ranks have to agree on, until they do."""
    agreement = state.agreement
    assert agreement is not None
    stop, save, rollback = state.requests.take_asked()
    asked = agreement.asked
    if stop is not None:
        asked.setdefault("stop", [stop.who, stop.why, stop.kind])
    if rollback is not None and "rollback" not in asked:
        # Further runs follow before the ranks go back, all with as many values as this one.
        taken = inputs_to_leave_out(state, rollback, None)
        asked["rollback"] = [rollback.who, rollback.why, rollback.skip_inputs, taken]
    if save is not None:
        who, why, kept = asked.get("save", (save.who, save.why, {}))
        asked["save"] = [who, why, {**save.kept, **kept}]


def _exchange(
    state: SessionState, place: Place = "in a pass", *, now: bool = False
) -> None:
    """Tell the other ranks what this one wants; take over what they agree on.

    *now* waits for them here, and not only at a boundary.

    Raises:
        PeersDisagreeError: another rank is elsewhere, or has done other things.
        PeerFailedError: another rank is gone.
    """
    agreement, requests, backend = state.agreement, state.requests, state.backend
    assert agreement is not None
    hold_requests(state)
    schedule = None if backend is None else backend.schedules.get(state.kind)
    boundary = 0.0 if schedule is None else schedule.next_boundary
    status = Status(
        state.global_step,
        int(min(boundary, NEVER)),
        signal=state.signals.noted or 0,
        skipped=requests.skips.total(),
        assigned=requests.assigned,
    )
    asked, signal = agreement.exchange(status, place, now=now)
    if signal:
        state.signals.receive(signal)
    if not asked:
        return
    stops = [(rank, *each["stop"]) for rank, each in asked.items() if "stop" in each]
    saves = [SaveRequest(*each["save"]) for each in asked.values() if "save" in each]
    back = [Rollback(*each["rollback"]) for each in asked.values() if "rollback" in each]
    stop = None
    if stops:
        rank, who, why, kind = stops[0]
        everywhere = len(stops) == agreement.peers.size
        stop = StopReason(who, why if everywhere else f"{why} (rank {rank})", kind)
    requests.put_agreed(stop, united(*saves), united_rollbacks(back))


def exchange_at_end_of_pass(state: SessionState) -> None:
    """Act on what the last step of a pass asked for, before the pass is over.

    Raises:
        PeersDisagreeError: another rank has further values.
    """
    if state.agreement is not None and not state.agreement.is_over:
        _exchange(state, "at the end of a pass", now=True)
        if state.requests.pending:
            _serve(state, state.last_step, saving=True)


def exchange_at_end(state: SessionState) -> None:
    """Wait for the other ranks at the end of the training.

    A stop that a rank asked for in the last step takes effect. A checkpoint is written at
    the end anyway.

    Raises:
        PeersDisagreeError: another rank goes on.
    """
    if state.agreement is None or state.agreement.is_over:
        return
    _exchange(state, "at its end", now=True)
    requests = state.requests
    if requests.rollback is not None:
        asked = requests.rollback
        log.warning("too late to roll back: the loop is over", by=asked.who, why=asked.why)
    elif requests.stop is not None:
        state.take_stop(requests.stop)


def commit(state: SessionState) -> None:
    """Commit the assignments of hooks."""
    assert state.backend is not None
    writes = state.requests.take_writes()
    if writes:
        with blaming_writers(writes):
            values = {name: value for name, (_, value) in writes.items()}
            state.backend.session.write(values)
        for name, (who, _) in writes.items():
            log.debug("variable assigned", variable=name, by=who)


def take_rollback(state: SessionState) -> tuple[Rollback, Restored]:
    """Return the request to roll back, and the checkpoint to which the session goes.

    Raises:
        UsageError: the session saves nothing, or there is no checkpoint.
        NoGoodCheckpointError: there are checkpoints, but none of them is good.
    """
    asked = state.requests.take_rollback()
    assert asked is not None
    return asked, state.saver.newest(asked.who)


def inputs_to_leave_out(
    state: SessionState, asked: Rollback, context: SessionRunContext | None
) -> Mapping[str, Sequence[int]]:
    """Return the numbers of the values that a roll-back leaves out, by input.

    *context* is that of the last run; None if it was not compiled.

    Raises:
        UsageError: the backend pulls from inputs in a way of its own.
    """
    if not asked.skip_inputs:
        return {}
    if asked.taken is not None:
        return asked.taken
    if state.custom_loop:
        return state.contents.epochs.given_last()
    if state.driven:
        return {}  # it does not go back
    assert state.backend is not None
    return state.backend.numbers_of(context)


def count_rollback(state: SessionState, asked: Rollback, restored: Restored) -> None:
    """Count and log a roll-back that is possible, and forget the steps that it undoes.

    Raises:
        TrainingError: the session went back too often.
    """
    state.rollbacks.add(asked, state.global_step)
    log.warning(
        "rolling back",
        by=asked.who,
        why=asked.why,
        step=state.global_step,
        to=restored.manifest.global_step,
    )
    retention = state.saver.retention
    retention.add_values(state.requests.take_values())
    retention.forget_values_after(restored.manifest.global_step)


def _serve_rollback(state: SessionState) -> None:
    """Roll a custom loop back if a hook has asked; a session with a graph does it later."""
    asked = state.requests.rollback
    if asked is not None and state.custom_loop:
        _roll_back_in_place(state)
    elif asked is not None and state.driven:
        raise UsageError(
            f"hook {asked.who!r} called run_context.request_rollback(), but the loop that "
            "runs the steps cannot go back"
        )


def _roll_back_in_place(state: SessionState) -> None:
    """Give what a custom loop tracks the state of the newest good checkpoint.

    The open pass over its input goes back, too, if it can.
    """
    asked, restored = take_rollback(state)
    assert state.backend is not None
    backend, contents, saved = state.backend, state.contents, restored.state
    place = contents.place_of(restored)
    why_not = contents.epochs.why_not_back(place)
    if why_not is not None and not asked.skip_inputs:
        raise UsageError(
            f"hook {asked.who!r} called run_context.request_rollback(skip_inputs=False), "
            f"but the input of session.iterate() does not go back: {why_not}"
        )
    count_rollback(state, asked, restored)
    seek: Callable[[], None] | None = None
    if why_not is None:
        left_out = inputs_to_leave_out(state, asked, None)
        seek = partial(contents.epochs.go_back, place, left_out)
    else:
        log.warning("the input does not go back", why=why_not)
    backend.settle()
    # In the order in which a session begins.
    state.saver.put_back(backend.session, restored, seek)
    load_hooks(contents.hooks, saved.get("hooks", {}), restored.manifest.ended)
    state.bus.caller("after_create_session").collect(backend.session, backend.coord)
    contents.generators.restore(saved.get("random", {}))


def record_values(state: SessionState) -> None:
    """Record the numbers that hooks have for checkpoints."""
    retention = state.saver.retention
    retention.add_values(state.requests.take_values())
    if retention.values:
        state.saver.record_values(state.global_step)


def act_after_run(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests of hooks, or of a signal, after a successful run.

    The caller replaces the backend session of a graph that has to roll back.
    """
    if state.agreement is not None and context.kind == state.kind:
        _exchange(state)
    signalled = state.signals.came() and state.stop is None
    if signalled:
        state.stop_by_signal()
        state.requests.request_save(state.signals.name, _CAME, context)
    is_replaced = not (state.custom_loop or state.driven)
    if state.requests.pending and not (is_replaced and state.requests.rollback is not None):
        _serve(state, context, saving=True)
    if state.recovering:
        assert state.backend is not None
        assert state.preemptions is not None
        state.recovering = not state.preemptions.are_over(state.backend.session)
        state.acts_always = state.recovering or state.agreement is not None


def record(state: SessionState, params: Any) -> None:
    """Record hyperparameters, tell the hooks, and serve what they ask for.

    Raises:
        ArgumentTypeError: they are not plain values.
        SessionClosedError: the session is closed.
    """
    state.check_process()
    if state.phase is Phase.CLOSED or state.backend is None:
        raise SessionClosedError("record() on a closed session; create a new one")
    contents = state.contents
    contents.record(plain_params(params))
    state.bus.caller("params_recorded").collect(contents.params, state.global_step)
    inside = state.block is not None or state.bus.current.name is not NOBODY
    if state.requests.pending and not inside:
        act(state, None, saving=contents.may_save)


def heed_signal(state: SessionState) -> bool:
    """Return whether the signal that came ends a custom loop now, between two steps.

    The checkpoint is written at once: what the program does after its loop is not part of
    what a resumed one continues. A value that would be lost still gets its step before.
    """
    inside = state.block is not None or state.bus.current.name is not NOBODY
    if inside or state.stop is not None or state.phase is not Phase.RUNNING:
        return True
    contents = state.contents
    if contents.epochs.pending:
        return False
    state.stop_by_signal()
    if contents.tracking.is_complete and not contents.epochs.resuming:
        assert state.backend is not None
        state.requests.request_save(state.signals.name, _CAME)
        act(state, state.last_step)
    return True


@signals_deferred
def save(
    state: SessionState, request: SaveRequest, context: SessionRunContext | None
) -> None:
    """Write a checkpoint, unless the last one is up to date or a hook refuses.

    The checkpoint contains what hooks assign until it is written. A signal interrupts the
    hooks, but not the writing.
    """
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    requests = state.requests
    step = session.global_step
    if saver.checkpoints.enabled_by is None:
        log.info(
            "a checkpoint was requested, but no plugin saves checkpoints",
            by=request.who,
            why=request.why,
        )
        return
    state.backend.settle()
    write = _write if bus.costs is None else bus.costs.timed(request.who, _write)
    with unswapped(session):
        path = write(state, request, context)
    if path is None:
        return
    answers = bus.caller("after_save").collect(session, step, path)
    if not answers:
        return
    who, reason = answers[0]
    if context is not None:
        requests.request_stop(who, str(reason))
    elif state.phase is not Phase.CLOSED:
        log.info(
            "a stop is ignored: no run came before the checkpoint", by=who, why=str(reason)
        )


def save_failed(state: SessionState, why: str) -> None:
    """Write the checkpoint of a session that fails, if a hook asked for one.

    There is none before the first step of a custom loop, nor while that repeats its way to
    its checkpoint: what it tracks has no state to tell yet.

    Raises:
        BaseException: it cannot be written.
    """
    saver, contents, backend = state.saver, state.contents, state.backend
    ready = state.first_step is not None and contents.tracking.is_complete
    if saver.checkpoints.failed_directory is None or backend is None or not ready:
        return
    if state.is_abandoned or contents.epochs.resuming or not saver.is_chief:
        return
    session = backend.session
    backend.settle()
    with unswapped(session):
        snapshot = contents.snapshot(session)
        if not _is_refused(state, snapshot, None):
            saver.write_failed(session, snapshot, why)


def _is_refused(
    state: SessionState, snapshot: Snapshot, context: SessionRunContext | None
) -> bool:
    """Return whether a hook refuses to save these values."""
    assert state.backend is not None
    session, veto = state.backend.session, state.bus.caller("veto_save")
    if veto.reaches_nobody:
        return False
    step = session.global_step
    refusals = veto.collect(session, snapshot.values(), step, context)
    if refusals:
        refuser, reason = refusals[0]
        log.warning("checkpoint refused", step=step, by=refuser, why=reason)
    return bool(refusals)


def _on_any_rank(state: SessionState, flag: bool) -> bool:
    """Return whether a flag is set on any rank, if there are several."""
    agreement = state.agreement
    return flag if agreement is None else any(agreement.gather(flag))


def _write(
    state: SessionState, request: SaveRequest, context: SessionRunContext | None
) -> Path | None:
    """Write a checkpoint; return its directory, or None if none is written."""
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    requests, step = state.requests, session.global_step
    snapshot = state.contents.snapshot(session)
    if not _on_any_rank(state, not saver.is_safe(session, snapshot)):
        saver.keep_last(request)
        return None
    if _on_any_rank(state, _is_refused(state, snapshot, context)):
        requests.take_save()  # the refusal is also the answer to these requests
        return None
    bus.caller("before_save").collect(session, step)
    commit(state)
    # Who asked meanwhile gets this checkpoint.
    request = united(request, requests.take_save()) or request
    saver.retention.add_values(requests.take_values())
    return saver.write(session, snapshot, request)
