"""Serves the requests of hooks: assigns variables, saves a checkpoint, stops."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from hookbus.checkpoint.reader import Restored
from hookbus.errors import SessionClosedError, UsageError
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.event_bus import shared
from hookbus.hooks.hook_options import options_of
from hookbus.hooks.outcome import (
    Rollback,
    SaveRequest,
    StopReason,
    united,
    united_rollbacks,
)
from hookbus.hooks.requests import RunRequests
from hookbus.lifecycle.saves import commit, lacks_time, record_values, save, take_written
from hookbus.lifecycle.state import Phase, SessionState
from hookbus.logs import log
from hookbus.peers.agreement import NEVER, Place, Status
from hookbus.process.signals import raise_deferred
from hookbus.saving.copies import KeptValue
from hookbus.validation import plain_params

_CAME = "a signal came"
_LONG_BODY = 20
"""The number of steps for one value after which a waiting request is reported."""


def apply_requests(
    state: SessionState,
    context: SessionRunContext | None,
    saving: bool = True,
    together: bool = False,
    goes_on: bool = False,
    asked: RunRequests | None = None,
) -> None:
    """Serve the requests of hooks; with several ranks, those on which all ranks agree.

    Args:
        state: the session.
        context: the context of the run that has just ended; None outside of runs.
        saving: whether to write a checkpoint; if not, a request for one stays open.
        together: whether all ranks call this function now.
        goes_on: whether the program may go on while a checkpoint is written.
        asked: the requests, if no run with these has ended, like those of a cancelled run;
            by default those of *context*.
    """
    if asked is None:
        asked = RunRequests() if context is None else context.asked
    if state.agreement is not None:
        if together:
            _exchange(state, asked, now=True)
        else:
            hold_requests(state, asked)
    _serve(state, context, asked, saving, goes_on)


def apply_between_steps(
    state: SessionState,
    context: SessionRunContext | None,
    together: bool = False,
    goes_on: bool = True,
    asked: RunRequests | None = None,
) -> None:
    """Serve the requests of hooks between two steps of a loop, as :func:`apply_requests`.

    In the body of a value they wait until the next value is pulled, except assignments.
    """
    if not state.contents.position.holds:
        saving = state.contents.tracking.is_complete
        apply_requests(state, context, saving, together, goes_on, asked)
        return
    if asked is None:
        asked = RunRequests() if context is None else context.asked
    if state.agreement is not None:
        hold_requests(state, asked)
    hold_until_pull(state, asked)


def apply_at_pull(state: SessionState) -> None:
    """Serve the requests that wait for the end of the body of a value."""
    loop, context = state.loop, state.loop.last_context
    held, loop.held = loop.held, RunRequests()
    asked = RunRequests() if context is None else context.asked
    asked.stop, asked.save = held.stop or asked.stop, united(held.save, asked.save)
    asked.rollback = held.rollback or asked.rollback
    _stop_by_signal(state, None)
    with nullcontext() if context is None else context.reopened():
        _serve(state, context, asked, state.contents.tracking.is_complete, goes_on=True)


def apply_cancelled(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests of a step that was cancelled; it is not saved."""
    if state.contents.position.holds:
        apply_between_steps(state, context)
    else:
        apply_requests(state, None, saving=False, asked=context.asked)


def is_overdue(state: SessionState) -> bool:
    """Return whether a signal has waited too long for the end of the body of a value.

    It waits as long as threads do at the end of the session, or twice as long as a body
    takes; and no longer than a checkpoint could be written. The session then leaves
    without one.
    """
    if lacks_time(state, sum(state.saver.writer.seconds_to_save())):
        return True
    came = state.ending.signals.received_at
    usual = state.contents.position.body_secs(until=came)
    return time.monotonic() - came > max(state.options.grace, 2 * usual)


def hold_until_pull(state: SessionState, asked: RunRequests) -> None:
    """Have requests wait for the next pull, and commit assignments."""
    loop, steps = state.loop, state.contents.position.body_steps
    stop, save, rollback = state.requests.take_asked(asked)
    held = loop.held
    held.stop, held.save = held.stop or stop, united(held.save, save)
    held.rollback = held.rollback or rollback
    commit(state, asked)
    state.requests.served(asked, is_waiting=True)
    if state.requests.owes_answers:
        state.requests.answer("assign")
    if steps >= _LONG_BODY and not loop.has_warned and loop.is_holding:
        loop.has_warned = True
        log.warning(
            "a request waits for the next value of iterate()",
            why=f"the loop has done {steps} steps for one value; give the inner loop its "
            "own session.iterate()",
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
        if requests.owes_answers:
            requests.answer("save", result=_saved(state))
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
    if requests.owes_answers:
        requests.answer("assign")
        if stop is not None:
            requests.answer("stop")
    ends = ending.is_cut_short or (ending.stop is not None and state.mode.has_passes)
    if requested is not None and ends and state.mode.takes_reports:
        assert state.backend is not None
        state.saver.skip_further_saves(state.backend.session)


def _saved(state: SessionState) -> int | UsageError:
    """Return the step of the checkpoint that was requested, or the error without one."""
    assert state.backend is not None
    session, saver = state.backend.session, state.saver
    is_written = saver.is_saved(session) or saver.writer.under_way is not None
    if is_written or state.mode.save is not None:
        return session.global_step
    if saver.checkpoints.enabled_by is None:
        why = "no plugin saves checkpoints: give the session a checkpoint_dir"
    else:
        why = "a hook has refused it, or there was no time; see the log"
    return UsageError(f"no checkpoint was written at step {session.global_step}: {why}")


def _last_save(state: SessionState, stop: StopReason) -> SaveRequest | None:
    """Return the request for a checkpoint at a stop; None if the end of the session saves.

    The code of a loop after the stop is not saved: a resumed program repeats it.
    """
    who = state.saver.checkpoints.enabled_by
    if stop.kind == "preempted":
        mode = state.mode
        is_served = mode.foreign is None or mode.save is not None or who is not None
        return SaveRequest(stop.who, stop.why) if is_served else None
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
        asked.setdefault("stop", [stop.who, stop.why, stop.kind, stop.label])
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
    under_way, effects = state.saver.writer.under_way, requests.effects
    status = Status(
        state.global_step,
        int(min(boundary, NEVER)),
        signal=signals.noted or 0,
        skipped=effects.skipped.total(),
        skipped_at=effects.skipped_at,
        assigned=effects.assigned,
        digests=effects.digests,
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
        rank, who, why, kind, label = stops[0]
        everywhere = len(stops) == agreement.peers.size
        why = why if everywhere else f"{why} (rank {rank})"
        stop = StopReason(who, why, kind, label)
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


def keep_value(state: SessionState, value: Any) -> None:
    """Keep a value that was pulled, and the state, if a hook may go back to them."""
    loop = state.loop
    if loop.kept is not None and not state.contents.position.resuming:
        assert state.backend is not None
        loop.kept.keep(state.contents, state.backend.session, value)
        is_untold = loop.is_untold or not loop.has_begun
        loop.is_kept_untold = is_untold and state.kind == "train"


def kept_value(state: SessionState, asked: Rollback) -> KeptValue:
    """Return the kept value and state, to which a hook asks to go back.

    Raises:
        UsageError: nothing is.
    """
    member = state.bus.members.get(asked.who)
    options = None if member is None else options_of(member.plugin)
    who = f'hook {asked.who!r} called run_context.request_rollback(to="step")'
    if not state.mode.has_passes:
        raise UsageError(f"{who}, which only a loop over session.iterate() can do")
    if options is None or options.rolls_back != "step":
        raise UsageError(
            f"{who}, and nothing was copied for it: declare "
            'options = HookOptions(rolls_back="step")'
        )
    if state.agreement is not None:
        raise UsageError(f"{who}, which a run of several processes cannot do")
    kept, innermost = state.loop.kept, state.contents.position.innermost
    if kept is None or innermost is None or kept.of is not innermost:
        raise UsageError(
            f"{who}, and no value of session.iterate() is in hand: put the step into a pass"
        )
    return kept


def undo_value(
    state: SessionState, asked: RunRequests, context: SessionRunContext | None
) -> None:
    """Go back to the pull of the value in hand; the loop gets it once more.

    A checkpoint that is due is written when the value is done, because the hook that asked
    for it may not ask again. If a signal stops the session here, it is written at once.

    Raises:
        UsageError: nothing is kept for that.
        TrainingError: the session went back too often.
    """
    save = united(asked.save, state.requests.save)
    rollback = state.requests.take_rollback(asked)
    assert rollback is not None
    kept, stop = kept_value(state, rollback), asked.stop
    if stop is not None and stop.kind == "stopped" and context is not None:
        asked.stop = None
        state.ending.defer(stop, context.global_step)
    assert state.backend is not None
    state.recoveries.rollbacks.add(rollback, state.global_step)
    log.debug("undoing a step", by=rollback.who, why=rollback.why, step=state.global_step)
    state.backend.stepper.flush_idle()
    kept.put_back(state.contents, state.backend.session, rollback)
    state.loop.is_untold = state.loop.is_untold or state.loop.is_kept_untold
    waiting = asked if state.ending.stop is not None else state.loop.held
    waiting.save = united(waiting.save, save)
    state.requests.take_values()
    state.saver.retention.forget_values_after(state.global_step)


def undoes_failed_step(
    state: SessionState, context: SessionRunContext, error: Exception
) -> bool:
    """Tell hooks of a step that failed; return whether one of them undoes it.

    Raises:
        UsageError: a hook asks to go back, and nothing is kept for that.
    """
    caller = state.bus.caller("step_failed")
    if caller.reaches_nobody:
        return False
    stop = context.asked.stop
    context.fail()
    caller.collect(context, error)
    rollback = context.asked.rollback
    if rollback is None:
        context.asked.stop = stop  # it may still take effect, if the caller goes on
        return False
    kept_value(state, rollback)
    return True


def _roll_back_if_asked(
    state: SessionState, asked: RunRequests, context: SessionRunContext | None
) -> None:
    """Roll back a loop if a hook has asked; a session with a graph rolls back later."""
    if asked.rollback is None or state.mode.replaces_backend:
        return
    state.mode.roll_back(state, asked, context)
    if state.agreement is not None:
        # Hooks of some ranks may have made requests when the session went back.
        _exchange(state, asked, now=True)


def apply_after_run(state: SessionState, context: SessionRunContext) -> None:
    """Serve the requests of hooks, or of a signal, after a successful run.

    The caller replaces the backend session of a graph that has to roll back.
    """
    if state.requests.inbox.posted:
        _make_posted(state, context)
    asked, ending = context.asked, state.ending
    if state.agreement is not None and context.kind == state.kind:
        _exchange(state, asked)
    if state.contents.position.holds:
        hold_until_pull(state, asked)
        return
    _stop_by_signal(state, context)
    is_later = asked.rollback is not None and state.mode.replaces_backend
    has_work = ending.is_waiting or state.has_written or state.requests.has_work(asked)
    if has_work and not is_later:
        _serve(state, context, asked, saving=True, goes_on=True)
    preemptions = state.recoveries.preemptions
    if preemptions is not None and preemptions.is_recovering:
        assert state.backend is not None
        preemptions.note_progress(state.backend.session)


def _make_posted(state: SessionState, context: SessionRunContext) -> None:
    """Make the requests of other threads through the context of the run that has ended."""
    requests, current = state.requests, state.bus.current
    before = current.name
    for posted in requests.take_posted():
        current.name = posted.who
        try:
            if posted.kind == "assign" and state.agreement is not None:
                raise UsageError(
                    "assign() of another thread in a run of several ranks, which "
                    "would then differ: assign in a hook on all ranks"
                )
            posted.make(context)
        except Exception as error:
            requests.refuse(posted, error)
        finally:
            current.name = before


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
