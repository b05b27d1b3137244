"""Serves the requests of hooks: assigns variables, saves a checkpoint, stops."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookbus.backend.reports import ReportGraph
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import Restored
from hookbus.errors import PluginError, SessionClosedError, blaming_writers
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.event_bus import shared
from hookbus.hooks.outcome import (
    Rollback,
    SaveRequest,
    StopReason,
    united,
    united_rollbacks,
)
from hookbus.hooks.requests import RunRequests
from hookbus.library.lookup import changes_of
from hookbus.lifecycle.state import Phase, SessionState
from hookbus.logs import log, shown
from hookbus.peers.agreement import NEVER, Place, Status
from hookbus.process.interrupts import signals_deferred
from hookbus.process.signals import raise_deferred
from hookbus.saving.contents import Snapshot
from hookbus.saving.writing import Draft
from hookbus.swaps import unswapped
from hookbus.validation import plain_params

_CAME = "a signal came"
_MOST_SECS = 600.0
"""The most seconds for which the session waits for a checkpoint that a thread writes."""
_MARGIN = 1.25
"""How much longer than the slowest one before a save may take, when time is short."""
_LONG_BODY = 20
"""The number of steps for one value after which a waiting request is reported."""


def apply_requests(
    state: SessionState,
    context: SessionRunContext | None,
    saving: bool = True,
    together: bool = False,
    cancelled: bool = False,
    goes_on: bool = False,
) -> None:
    """Serve the requests of hooks; with several ranks, those on which all ranks agree.

    Args:
        state: the session.
        context: the context of the run that has just ended; None outside of runs.
        saving: whether to write a checkpoint; if not, a request for one stays open.
        together: whether all ranks call this function now.
        cancelled: whether the run was cancelled before its second half.
        goes_on: whether the program may go on while a checkpoint is written.
    """
    asked = RunRequests() if context is None else context.asked
    if state.agreement is not None:
        if together:
            _exchange(state, asked, now=True)
        else:
            hold_requests(state, asked)
    _serve(state, None if cancelled else context, asked, saving, goes_on)


def apply_between_steps(
    state: SessionState,
    context: SessionRunContext | None,
    together: bool = False,
    goes_on: bool = True,
) -> None:
    """Serve the requests of hooks between two steps of a loop, as :func:`apply_requests`.

    In the body of a value they wait until the next value is pulled, except assignments.
    """
    if not state.contents.position.holds:
        apply_requests(
            state,
            context,
            saving=state.contents.tracking.is_complete,
            together=together,
            goes_on=goes_on,
        )
        return
    asked = RunRequests() if context is None else context.asked
    if state.agreement is not None:
        hold_requests(state, asked)
    _hold_until_pull(state, asked)


def apply_at_pull(state: SessionState) -> None:
    """Serve the requests that wait for the end of the body of a value."""
    loop, context = state.loop, state.loop.last_context
    held, loop.held = loop.held, RunRequests()
    asked = RunRequests() if context is None else context.asked
    asked.stop, asked.save = held.stop or asked.stop, united(held.save, asked.save)
    asked.rollback = held.rollback or asked.rollback
    _stop_by_signal(state, None)
    if context is not None:
        context.reopen()
    try:
        _serve(state, context, asked, state.contents.tracking.is_complete, goes_on=True)
    finally:
        if context is not None:
            context.close()


def apply_cancelled(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests of a step that was cancelled; it is not saved."""
    if state.contents.position.holds:
        apply_between_steps(state, context)
    else:
        apply_requests(state, context, saving=False, cancelled=True)


def is_overdue(state: SessionState) -> bool:
    """Return whether a signal has waited too long for the end of the body of a value.

    It waits as long as threads do at the end of the session, or twice as long as a body
    takes; and no longer than a checkpoint could be written. The session then leaves
    without one.
    """
    left = state.seconds_left
    if left is not None and left < _MARGIN * sum(state.saver.seconds_to_save()):
        return True
    came = state.ending.signals.received_at
    usual = state.contents.position.body_secs(until=came)
    return time.monotonic() - came > max(state.options.grace, 2 * usual)


def _hold_until_pull(state: SessionState, asked: RunRequests) -> None:
    """Have requests wait for the next pull, and commit assignments."""
    loop, steps = state.loop, state.contents.position.body_steps
    stop, save, rollback = state.requests.take_asked(asked)
    held = loop.held
    held.stop, held.save = held.stop or stop, united(held.save, save)
    held.rollback = held.rollback or rollback
    commit(state, asked)
    state.requests.served(asked, is_waiting=True)
    if steps >= _LONG_BODY and not loop.has_warned and loop.is_holding:
        loop.has_warned = True
        log.warning(
            "a request waits for the next value of iterate()",
            why=f"the loop has done {steps} steps for one value; give the inner loop a "
            "session.iterate() of its own",
        )


def _stop_by_signal(state: SessionState, context: SessionRunContext | None) -> None:
    """Have the signal that came stop the session, after a checkpoint."""
    ending = state.ending
    if ending.signals.came() and ending.stop is None:
        state.stop_by_signal()
        state.requests.request_save(ending.signals.name, _CAME, context)


def _serve(
    state: SessionState,
    context: SessionRunContext | None,
    asked: RunRequests,
    saving: bool,
    goes_on: bool = False,
) -> None:
    """Serve requests; *context* belongs to the run that has just ended, if any."""
    requests, ending = state.requests, state.ending
    take_written(state, context)
    _roll_back_if_asked(state, asked, context)
    began = state.global_step - 1 if context is None else context.global_step
    due = ending.due(began, asked)
    if due is not None:
        asked.save = united(asked.save, _last_save(state, due))
    commit(state, asked)
    requested = requests.take_save(asked) if saving else None
    if requested is not None:
        save(state, requested, context, goes_on and due is None and not ending.is_decided)
        if state.agreement is not None:
            # Hooks of some ranks may have made requests around the save.
            _exchange(state, asked, now=True)
        raise_deferred()
        commit(state, asked)  # the assignments of after_save, and those before a refusal
    _roll_back_if_asked(state, asked, context)  # of a hook around the save
    record_values(state)
    stop = None if asked.rollback is not None else ending.take_due(began, asked)
    if stop is not None:
        state.take_stop(stop)
    ending.forget_failed()
    requests.served(asked, state.is_waiting)
    ends = ending.is_cut_short or (ending.stop is not None and state.mode.has_passes)
    if requested is not None and ends and state.mode.takes_reports:
        assert state.backend is not None
        state.saver.skip_further_saves(state.backend.session)


def _last_save(state: SessionState, stop: StopReason) -> SaveRequest | None:
    """Return the request for a checkpoint at a stop; None if the end of the session saves.

    The code of a loop behind the stop is not saved: a resumed program repeats it.
    """
    if stop.kind == "preempted":
        return SaveRequest(stop.who, stop.why)
    who = state.saver.checkpoints.enabled_by
    if who is None or not state.mode.has_passes:
        return None
    return SaveRequest(who, f"end: {stop.kind}")


def hold_requests(state: SessionState, own: RunRequests) -> None:
    """Hold the requests on which all ranks have to agree, until the next exchange."""
    agreement = state.agreement
    assert agreement is not None
    stop, save, rollback = state.requests.take_asked(own)
    asked = agreement.asked
    if stop is not None:
        asked.setdefault("stop", [stop.who, stop.why, stop.kind])
    if rollback is not None and "rollback" not in asked:
        # Further runs follow before the ranks go back, all with as many values as this one.
        taken = state.mode.inputs_to_leave_out(state, rollback)
        asked["rollback"] = [rollback.who, rollback.why, rollback.skip_inputs, taken]
    if save is not None:
        who, why, kept = asked.get("save", (save.who, save.why, {}))
        asked["save"] = [who, why, {**save.kept, **kept}]


def _exchange(
    state: SessionState,
    own: RunRequests,
    place: Place = "in a pass",
    *,
    now: bool = False,
) -> None:
    """Exchange requests with the other ranks; put the agreed ones into *own*.

    *now* waits for the other ranks here, and not only at a boundary.

    Raises:
        PeersDisagreeError: another rank is at another place, or its work differs.
        PeerFailedError: another rank is gone.
    """
    agreement, requests, backend = state.agreement, state.requests, state.backend
    assert agreement is not None
    hold_requests(state, own)
    schedule = None if backend is None else backend.stepper.schedules.get(state.kind)
    boundary = 0.0 if schedule is None else schedule.next_boundary
    signals = state.ending.signals
    under_way = state.saver.under_way
    status = Status(
        state.global_step,
        int(min(boundary, NEVER)),
        signal=signals.noted or 0,
        skipped=requests.skips.total(),
        skipped_at=requests.skipped_at,
        assigned=requests.assigned,
        digests=requests.digests,
        writing=0 if under_way is None else 1 + under_way.is_filled,
    )
    asked, signal = agreement.exchange(status, place, now=now)
    if signal:
        signals.receive(signal)
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
    own.stop, own.save, own.rollback = stop, united(*saves), united_rollbacks(back)


def exchange_at_end_of_pass(state: SessionState) -> None:
    """Serve the requests of the last step of a pass, before the pass is over.

    Raises:
        PeersDisagreeError: another rank has further values.
    """
    if state.agreement is not None and not state.agreement.is_over:
        context = state.loop.last_context
        asked = RunRequests() if context is None else context.asked
        _exchange(state, asked, "at the end of a pass", now=True)
        if state.requests.has_work(asked):
            _serve(state, context, asked, saving=True)


def apply_at_end(state: SessionState) -> None:
    """Serve the requests that still wait when the loop is over, on all ranks.

    A stop that a hook asked for in the last step takes effect. A checkpoint is written at
    the end.

    Raises:
        PeersDisagreeError: another rank goes on.
    """
    held, state.loop.held = state.loop.held, RunRequests()
    asked = RunRequests()
    if state.agreement is not None and not state.agreement.is_over:
        _exchange(state, asked, "at its end", now=True)
    asked.save = united(held.save, asked.save)
    state.requests.served(asked, state.is_waiting)
    back, stop = held.rollback or asked.rollback, held.stop or asked.stop
    if back is not None:
        log.warning("too late to roll back: the loop is over", by=back.who, why=back.why)
    elif stop is not None and state.ending.stop is None:
        state.take_stop(stop)


def commit(state: SessionState, asked: RunRequests) -> None:
    """Commit the assignments of hooks."""
    assert state.backend is not None
    writes = state.requests.take_writes(asked) if asked.writes else {}
    if writes:
        with blaming_writers(writes):
            values = {name: value for name, (_, value) in writes.items()}
            state.backend.session.write(values)
        for name, (who, _) in writes.items():
            log.debug("variable assigned", variable=name, by=who)


def take_rollback(
    state: SessionState, asked: RunRequests, context: SessionRunContext | None
) -> tuple[Rollback, Restored]:
    """Return the request to roll back, and the checkpoint to which the session goes.

    If the run also asked for a stop, the stop waits until the session reaches the step of
    the run again. A stop for another reason, like a preemption, does not wait.

    Raises:
        UsageError: the session saves nothing, or there is no checkpoint.
        NoGoodCheckpointError: there are checkpoints, but none of them is good.
    """
    take_written(state, context, wait=True)  # it may be the newest one
    rollback = state.requests.take_rollback(asked)
    assert rollback is not None
    stop = asked.stop
    if stop is not None and stop.kind == "stopped" and context is not None:
        asked.stop = None
        state.ending.defer(stop, context.global_step)
    return rollback, state.saver.newest(rollback.who)


def count_rollback(state: SessionState, asked: Rollback, restored: Restored) -> None:
    """Count and log a roll-back that is possible, and forget the steps that it undoes.

    Raises:
        TrainingError: the session went back too often.
    """
    state.recoveries.rollbacks.add(asked, state.global_step)
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


def _roll_back_if_asked(
    state: SessionState, asked: RunRequests, context: SessionRunContext | None
) -> None:
    """Roll back a loop if a hook has asked; a session with a graph rolls back later."""
    if asked.rollback is not None and not state.mode.replaces_backend:
        state.mode.roll_back(state, asked, context)


def record_values(state: SessionState) -> None:
    """Record the numbers that hooks have for checkpoints."""
    retention = state.saver.retention
    retention.add_values(state.requests.take_values())
    if retention.values:
        state.saver.record_values(state.global_step)


def apply_after_run(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests of hooks, or of a signal, after a successful run.

    The caller replaces the backend session of a graph that has to roll back.
    """
    asked, ending = context.asked, state.ending
    if state.agreement is not None and context.kind == state.kind:
        _exchange(state, asked)
    if state.contents.position.holds:
        _hold_until_pull(state, asked)
        return
    _stop_by_signal(state, context)
    is_later = asked.rollback is not None and state.mode.replaces_backend
    has_work = ending.is_waiting or state.has_written or state.requests.has_work(asked)
    if has_work and not is_later:
        _serve(state, context, asked, saving=True, goes_on=True)
    if state.recoveries.is_recovering:
        assert state.backend is not None
        state.recoveries.note_progress(state.backend.session)


def record(state: SessionState, params: Any) -> None:
    """Record hyperparameters, tell the hooks, and serve their requests.

    Raises:
        ArgumentTypeError: they are not plain values.
        SessionClosedError: the session is closed.
    """
    state.check_process()
    if state.phase is Phase.CLOSED or state.backend is None:
        raise SessionClosedError("record() on a closed session; create a new one")
    contents = state.contents
    contents.record(plain_params(params))
    params = shared(contents.params)
    state.bus.caller("params_recorded").collect(params, state.global_step)
    if state.requests.pending and not state.is_inside:
        apply_between_steps(state, None)


def heed_signal(state: SessionState) -> bool:
    """Return whether the signal that came ends a custom loop now, between two steps.

    If it does, the session writes the checkpoint at once: a resumed program runs the code
    after the loop again, so the effects of this code must not be saved. In the body of a
    value the signal waits for the next pull.
    """
    ending = state.ending
    if state.is_inside or ending.stop is not None or state.phase is not Phase.RUNNING:
        return True
    contents = state.contents
    if contents.position.holds:
        return False
    state.stop_by_signal()
    if contents.tracking.is_complete and not contents.position.resuming:
        assert state.backend is not None
        state.requests.request_save(ending.signals.name, _CAME)
        apply_requests(state, state.loop.last_context)
    return True


@signals_deferred
def save(
    state: SessionState,
    request: SaveRequest,
    context: SessionRunContext | None,
    goes_on: bool = False,
) -> None:
    """Write a checkpoint, unless the last one is up to date or a hook refuses.

    The checkpoint contains every assignment that hooks make before the write. A signal
    interrupts the hooks, but not the write. If the program *goes_on*, a thread may write
    it; the next save waits for that.
    """
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    step = session.global_step
    if saver.checkpoints.enabled_by is None:
        log.info(
            "a checkpoint was requested, but no plugin saves checkpoints",
            by=request.who,
            why=request.why,
        )
        return
    if not has_time_to_save(state):
        return
    take_written(state, context, wait=True)
    state.backend.stepper.flush_idle()
    write = _write if bus.costs is None else bus.costs.timed(request.who, _write)
    with bus.clock.paused():
        with unswapped(session):
            path = write(state, request, context, goes_on)
        if path is not None:
            _tell_saved(state, step, path, context)


def has_time_to_save(state: SessionState) -> bool:
    """Return whether a save fits into the time before the process is killed.

    If it does not, the session relies on the checkpoint that is under way if that fits,
    and otherwise on the last one.
    """
    saver, left = state.saver, state.seconds_left
    if left is None or saver.last is None:
        return True
    save, before = saver.seconds_to_save()
    if not on_any_rank(state, left < _MARGIN * (save + before)):
        return True
    if on_any_rank(state, left < _MARGIN * before):
        saver.leave_under_way()
    else:
        take_written(state, None, wait=True)
    if not state.relies_on_last and saver.last.step != state.global_step:
        state.relies_on_last = True
        log.warning(
            "no time to save: the next run resumes from the last checkpoint",
            path=shown(saver.last.path),
            seconds_left=round(left, 1),
            a_save_takes=round(save, 1),
        )
    return False


@signals_deferred
def take_written(
    state: SessionState, context: SessionRunContext | None, wait: bool = False
) -> None:
    """Take over the checkpoint that a thread writes, if it stands, and tell the hooks.

    With *wait*, wait for it. With several ranks all of them do it together.

    Raises:
        CheckpointError: it cannot be written.
    """
    saver = state.saver
    if saver.under_way is None or not (wait or state.has_written):
        return
    draft = saver.under_way.writing.draft
    with state.bus.clock.paused():
        try:
            left = state.seconds_left
            path = saver.settle(_MOST_SECS if left is None else min(_MOST_SECS, left))
        except Exception:
            if state.agreement is not None or not saver.copies.has_lost(draft.contents):
                raise
            _save_anew(state, draft.manifest)
            return
        _tell_saved(state, draft.step, path, context)


def _save_anew(state: SessionState, lost: Manifest) -> None:
    """Ask for another checkpoint: the program has deleted the values of this one."""
    log.info(
        "a checkpoint is given up, and the next one is due",
        step=lost.global_step,
        why="the program donates its arrays; from now on they are copied",
    )
    state.saver.copies.trusts_immutable = False
    if state.phase is Phase.RUNNING:
        state.requests.request_save(lost.saved_by, lost.why)


def _tell_saved(
    state: SessionState, step: int, path: Path, context: SessionRunContext | None
) -> None:
    """Tell the hooks that a checkpoint stands; one of them may stop the session."""
    assert state.backend is not None
    session, bus, requests = state.backend.session, state.bus, state.requests
    answers = bus.caller("after_save").collect(session, step, path)
    if not answers:
        return
    who, reason = answers[0]
    if context is not None:
        requests.request_stop(who, str(reason), context)
    elif state.phase is not Phase.CLOSED:
        log.info(
            "a stop is ignored: no run came before the checkpoint", by=who, why=str(reason)
        )


def save_failed(state: SessionState, why: str) -> None:
    """Write the checkpoint of a session that fails, if a hook asked for one.

    A custom loop has no state to save before its first step, or while it repeats its way
    to the checkpoint that it resumes from. Of several ranks the chief saves alone, because
    after an error the others may not come to save; a model that is split over them is not
    saved, because its part would be of no use.

    Raises:
        BaseException: the checkpoint cannot be written.
    """
    saver, contents, backend = state.saver, state.contents, state.backend
    ready = state.first_step is not None and contents.tracking.is_complete
    if saver.checkpoints.failed_directory is None or backend is None or not ready:
        return
    if state.is_abandoned or contents.position.resuming or not saver.is_chief:
        return
    split = _split_over_ranks(state)
    if split:
        log.warning(
            "the failed session is not saved",
            why=f"each rank holds a part of {split!r}, and after an error the ranks cannot "
            "save together",
        )
        return
    session = backend.session
    backend.stepper.flush_idle()
    with unswapped(session):
        snapshot = contents.snapshot(session)
        if not _is_refused(state, snapshot, None):
            saver.write_failed(session, snapshot, why)


def _split_over_ranks(state: SessionState) -> str | None:
    """Return the name of a value of which each rank holds a part; None without one."""
    graph = state.creator.graph
    live = graph.live if isinstance(graph, ReportGraph) else {}
    return next((name for name, value in live.items() if value.is_shared), None)


def _is_refused(
    state: SessionState, snapshot: Snapshot, context: SessionRunContext | None
) -> bool:
    """Return whether a hook refuses to save these values."""
    assert state.backend is not None
    session, veto = state.backend.session, state.bus.caller("veto_save")
    if veto.reaches_nobody:
        return False
    step, values = session.global_step, snapshot.values()
    before = changes_of(values)
    refusals = veto.collect(session, shared(values), step, context)
    _check_unchanged(values, before, [who for who, _ in veto.rows])
    if refusals:
        refuser, reason = refusals[0]
        log.warning("checkpoint refused", step=step, by=refuser, why=reason)
    return bool(refusals)


def _check_unchanged(
    values: Mapping[str, Any], before: Mapping[str, Hashable], hooks: Sequence[str]
) -> None:
    """Check that no hook has changed a value that it got to look at.

    Arrays of NumPy are read-only there; those of other libraries may count changes.

    Raises:
        PluginError: a hook has changed one.
    """
    now = changes_of(values)
    changed = [name for name, count in before.items() if now[name] != count]
    if changed:
        raise PluginError(
            f"veto_save() of {' or '.join(map(repr, hooks))} has changed "
            f"{', '.join(map(repr, changed))}, which the training goes on with: compute "
            "with copies there, or assign a value in before_save()"
        )


def on_any_rank(state: SessionState, flag: bool) -> bool:
    """Return whether a flag is set on any rank, if there are several."""
    agreement = state.agreement
    return flag if agreement is None else any(agreement.gather(flag))


def _write(
    state: SessionState,
    request: SaveRequest,
    context: SessionRunContext | None,
    goes_on: bool,
) -> Path | None:
    """Write a checkpoint; return its directory, or None if it does not stand now."""
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    requests, step = state.requests, session.global_step
    asked = RunRequests() if context is None else context.asked
    snapshot = state.contents.snapshot(session)
    if not on_any_rank(state, not saver.is_safe(session, snapshot)):
        saver.keep_last(request)
        return None
    if on_any_rank(state, _is_refused(state, snapshot, context)):
        requests.take_save(asked)  # the refusal is also the answer to these requests
        return None
    bus.caller("before_save").collect(session, step)
    commit(state, asked)
    # This checkpoint also serves the requests that hooks have made meanwhile.
    request = united(request, requests.take_save(asked)) or request
    record_values(state)  # before it is decided which checkpoints stay
    draft = saver.draft(session, snapshot, request)
    if goes_on and _may_be_late(state, draft):
        saver.write_in_background(draft)
        return None
    return saver.write(draft)


def _may_be_late(state: SessionState, draft: Draft) -> bool:
    """Return whether a thread may write a checkpoint while the program goes on.

    The first one is written at once, and shows that saving works. Unless the plugin that
    saves is told otherwise, so is each one of which other hooks want to hear: they would
    act at another step in each run of the program.
    """
    saver = state.saver
    wanted, who = saver.checkpoints.background, saver.checkpoints.enabled_by
    if wanted is None:
        told = {name for name, _ in state.bus.caller("after_save").rows}
        wanted = told <= {who} and saver.is_cheap_to_copy(draft)
    return not on_any_rank(state, not wanted or saver.last is None)
