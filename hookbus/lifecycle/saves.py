"""Saves a session: asks the hooks, writes at once or in a thread, tells the hooks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookbus.checkpoint.manifest import Manifest
from hookbus.errors import PluginError, blaming_writers
from hookbus.graph.report_graph import ReportGraph
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.event_bus import shared
from hookbus.hooks.hook_options import options_of
from hookbus.hooks.outcome import SaveRequest, united
from hookbus.hooks.requests import RunRequests
from hookbus.library.lookup import changes_of
from hookbus.lifecycle.state import Phase, SessionState
from hookbus.logs import log, shown
from hookbus.process.interrupts import signals_deferred
from hookbus.saving.contents import Snapshot
from hookbus.saving.writing import Draft
from hookbus.swaps import unswapped

_MOST_SECS = 600.0
"""The most seconds for which the session waits for a checkpoint that a thread writes."""
_MARGIN = 1.25
"""The factor by which a save may be slower than all before, when time is short."""


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
    it; the next save waits for that. Another loop may write one of its own instead.

    Raises:
        UsageError: a hook asks another loop for one, which it does not write.
    """
    assert state.backend is not None
    session, saver, bus = state.backend.session, state.saver, state.bus
    step = session.global_step
    if state.mode.save is not None:
        _hand_over(state, state.mode.save, request, context)
        return
    if saver.checkpoints.enabled_by is None:
        if state.mode.foreign is not None and request.who in bus.members:
            state.mode.foreign.check("save", request.who, "asked for a checkpoint")
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


def _hand_over(
    state: SessionState,
    write: Callable[[], None],
    request: SaveRequest,
    context: SessionRunContext | None,
) -> None:
    """Have the loop that runs the steps write a checkpoint, unless a hook refuses."""
    assert state.backend is not None
    session, bus = state.backend.session, state.bus
    asked = RunRequests() if context is None else context.asked
    state.backend.stepper.flush_idle()
    with bus.clock.paused():
        refuses = not bus.caller("veto_save").reaches_nobody
        if refuses and _is_refused(state, state.contents.snapshot(session), context):
            return
        bus.caller("before_save").collect(session, session.global_step)
        commit(state, asked)
        state.requests.take_save(asked)  # this checkpoint also serves these requests
        log.info(
            "checkpoint requested",
            step=session.global_step,
            by=request.who,
            why=request.why,
        )
        write()


def note_saved(state: SessionState, path: Path, context: SessionRunContext | None) -> None:
    """Tell the hooks of a checkpoint that the loop that runs the steps has written."""
    log.debug("checkpoint saved", path=shown(path), step=state.global_step)
    state.ending.written_at = state.global_step
    with state.bus.clock.paused():
        _tell_saved(state, state.global_step, path, context)


def has_time_to_save(state: SessionState) -> bool:
    """Return whether a save fits into the time before the process is killed.

    If it does not, the session relies on the checkpoint that is under way if that fits,
    and otherwise on the last one.
    """
    saver, left = state.saver, state.seconds_left
    if left is None or saver.last is None:
        return True
    takes, before = saver.writer.seconds_to_save()
    if not on_any_rank(state, lacks_time(state, takes + before)):
        return True
    if on_any_rank(state, lacks_time(state, before)):
        saver.writer.leave()
    else:
        take_written(state, None, wait=True)
    if not state.ending.relies_on_last and saver.last.step != state.global_step:
        state.ending.relies_on_last = True
        log.warning(
            "no time to save: the next run resumes from the last checkpoint",
            path=shown(saver.last.path),
            seconds_left=round(left, 1),
            a_save_takes=round(takes, 1),
        )
    return False


def lacks_time(state: SessionState, seconds: float) -> bool:
    """Return whether the process is killed before so many seconds are over, or nearly."""
    left = state.seconds_left
    return left is not None and left < _MARGIN * seconds


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
    if saver.writer.under_way is None or not (wait or state.has_written):
        return
    draft = saver.writer.under_way.writing.draft
    with state.bus.clock.paused():
        try:
            left = state.seconds_left
            path = saver.settle(_MOST_SECS if left is None else min(_MOST_SECS, left))
        except Exception:  # what an array that was deleted raises is up to its library
            if state.agreement is not None or not saver.writer.copies.has_lost(
                draft.contents
            ):
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
    state.saver.writer.copies.trusts_immutable = False
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
        with context.reopened():  # it is over between two steps, as at the end of a pass
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
    act at another step in each run of the program. Hooks that can wait do not mind.
    """
    saver = state.saver
    wanted, who = saver.checkpoints.background, saver.checkpoints.enabled_by
    if wanted is None:
        members, rows = state.bus.members, state.bus.caller("after_save").rows
        told = {n for n, _ in rows if not options_of(members[n].plugin).can_wait}
        wanted = told <= {who} and saver.writer.copies.is_cheap(draft.contents)
    return not on_any_rank(state, not wanted or saver.last is None)


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
            f"{', '.join(map(repr, changed))}, with which the training continues: "
            "compute with copies there, or assign a value in before_save()"
        )


def _split_over_ranks(state: SessionState) -> str | None:
    """Return the name of a value of which each rank holds a part; None without one."""
    graph = state.creator.graph
    live = graph.live if isinstance(graph, ReportGraph) else {}
    shared = {name: value for name, value in live.items() if value.is_shared}
    saved = (name for name, value in shared.items() if value.role == "parameter")
    return next(saved, next(iter(shared), None))


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


def record_values(state: SessionState) -> None:
    """Record the numbers that hooks have for checkpoints."""
    retention = state.saver.retention
    retention.add_values(state.requests.take_values())
    if retention.values:
        state.saver.record_values(state.global_step)


def on_any_rank(state: SessionState, flag: bool) -> bool:
    """Return whether a flag is set on any rank, if there are several."""
    agreement = state.agreement
    return flag if agreement is None else any(agreement.gather(flag))
