"""Finishes a session: notifies the hooks, saves, closes, records the outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.bus.caller import Failure
from hookbus.checkpoint.files import replacing
from hookbus.config.config import SessionRecord, record_end
from hookbus.errors import (
    END_OF_INPUT,
    SessionInterruptedError,
    add_note,
    repr_of,
    set_context,
    text_of,
)
from hookbus.hooks.outcome import (
    OUTCOME_FILE,
    Outcome,
    SaveRequest,
    clean_outcome,
    failed_outcome,
    is_clean_end,
    united,
)
from hookbus.lifecycle.requests import apply_at_end
from hookbus.lifecycle.saves import (
    has_time_to_save,
    record_values,
    save,
    save_failed,
    take_written,
)
from hookbus.lifecycle.start import inside_event, leave_session, recoverable
from hookbus.lifecycle.state import Phase, SessionState
from hookbus.logs import log, shown
from hookbus.process.signals import KINDS, SignalExit, exception_for, take_deferred


def finish(state: SessionState, reached: BaseException | None) -> BaseException | None:
    """Finish the session, once; *reached* is the error that left its block, or None.

    Each part of the end is tried, even if an earlier part failed: hooks are told, threads
    joined, the directory unlocked, the outcome recorded, the handlers of signals restored.

    Returns:
        The exception that the caller raises because of a signal, unless it already raises
        an error; or None.

    Raises:
        BaseException: the error of one hook's ``end``, of a thread or of the input, or an
            exception that a signal handler has deferred.
        BaseExceptionGroup: errors of several hooks.
    """
    began = state.phase is not Phase.NEW
    state.enter(Phase.CLOSED)
    state.abort_run()  # a run that is left in the middle
    error, clean = _decide(state, reached)
    if clean:
        outcome = clean_outcome(
            state.ending.stop, state.ending.input_end, state.global_step
        )
    else:
        error = _told_to_peers(state, error)
        outcome = failed_outcome(error, state.global_step, state.bus.current)
    state.outcome = outcome = attrs.evolve(
        outcome,
        params=state.contents.params,
        skipped=state.requests.effects.skipped.total(),
        rolled_back=state.recoveries.rollbacks.count,
    )
    failures: list[BaseException] = []

    def tell() -> None:
        if clean:
            failures.extend(_end_well(state, outcome))
        elif error is not None:
            state.requests.close()
            failures.extend(_end_writing(state, error))
            failures.extend(_save_failed(state, error, outcome))
            state.lines.send_to(None)
            failures.extend(_tell_exception(state, error, outcome))

    failures += _attempt(tell)
    of_threads = _attempt(lambda: _close_backend(state))
    failures += _attempt(state.saver.close)
    if began:
        failures += _attempt(state.creator.graph.leave)
    failures += _attempt(lambda: _record(state, error, outcome, clean))
    failures += _attempt(lambda: _leave_peers(state))
    leave_session(state)
    exits_by: list[BaseException | None] = []
    failures += _attempt(lambda: exits_by.append(_leave_signals(state, outcome)))
    deferred = take_deferred()
    if deferred is not None and not isinstance(error, KeyboardInterrupt):
        failures.append(deferred)
    if failures or of_threads or error is not reached:
        exits_by.clear()  # an error is raised instead, whose traceback must not keep it
    _raise_failures(failures, of_threads)
    if error is not None and error is not reached:
        raise error
    return exits_by[0]


def leave(
    state: SessionState, reached: BaseException | None, raised: BaseException | None
) -> None:
    """End the session, and exit by the signal that ended it.

    Args:
        state: the session; in a forked child nothing happens.
        reached: the error that ends the session, or None.
        raised: the error that is being raised; if it is not part of a clean end, it takes
            precedence over the signal.

    Raises:
        KeyboardInterrupt, SystemExit: a signal ended the session.
        BaseException: what :func:`finish` raises.
    """
    if state.is_abandoned:
        return
    exits_by = finish(state, reached)
    try:
        if exits_by is not None and is_clean_end(raised, state.ending.stop is not None):
            raise exits_by from None
    finally:
        # Its traceback contains this frame: without a cycle it goes when it is caught.
        del exits_by


def _decide(
    state: SessionState, reached: BaseException | None
) -> tuple[BaseException | None, bool]:
    """Return the error that ends the session, or None, and whether the end is clean.

    The end of a session that never became ready is not clean.
    """
    clean = state.first_step is not None and is_clean_end(reached, state.is_stopping)
    if clean:
        deferred = take_deferred()
        if deferred is not None:
            return deferred, False
    try:
        backend = state.backend
        thread = backend.coord.exception if backend is not None else None
        if clean and thread is not None and recoverable(state, thread) is None:
            return thread, False
        if clean and isinstance(reached, END_OF_INPUT):
            state.end_input(reached)
        if clean and state.mode.takes_reports and not state.is_stopped:
            # Also after a signal of which no pull has told the program. What resumes here
            # must not apply the code after the last step once more.
            state.contents.position.finish()
        if clean:
            apply_at_end(state)
        state.stop_by_signal()
        state.freeze_position()
    except BaseException as late:  # the position of an input cannot be read
        return (late, False) if clean else (reached, False)
    return reached, clean


def _told_to_peers(
    state: SessionState, error: BaseException | None
) -> BaseException | None:
    """Report an error to the other ranks; return their error if that is its cause."""
    if state.agreement is None or error is None:
        return error
    error = state.agreement.explained(error)
    state.agreement.fail(error)
    return error


def _leave_peers(state: SessionState) -> None:
    """Release the link to the other ranks, if there are any."""
    if state.agreement is not None and not state.is_abandoned:
        state.agreement.close()


def _end_well(state: SessionState, outcome: Outcome) -> list[BaseException]:
    """Call every ``end``, save, call every ``finished``; return the errors."""
    assert state.backend is not None
    session, saver = state.backend.session, state.saver
    who = saver.checkpoints.enabled_by
    if state.mode.takes_reports:
        state.loop.warn_of_wraps(state.creator.graph)
    failures = [error for _, error in _tell(state, "end", session, outcome)]
    if has_time_to_save(state):
        failures += _attempt(lambda: take_written(state, None, wait=True))
    requested = state.requests.take_save()
    state.requests.close("ended")
    if who is not None:
        requested = united(SaveRequest(who, f"end: {outcome.kind}"), requested)
    if state.mode.takes_reports and outcome.kind in KINDS.values():
        # Before the first step, the next program resumes from the checkpoint that this one
        # restored, if any: so far, this program has only repeated earlier work.
        safe = state.contents.tracking.is_complete and not state.loop.is_cut_inside
        requested = requested if safe else None
    if requested is not None:
        failures += _attempt(lambda: save(state, requested, None))
    failures += _attempt(lambda: record_values(state))
    if not state.options.one_call:
        # A hook may upload the directory in its last event, or clear it away.
        failures += _mark_end(state, outcome, failures)
    state.lines.send_to(None)
    failures += [error for _, error in _tell(state, "finished", session, outcome)]
    failures += _attempt(state.check_process)  # a hook may have forked in its last event
    state.requests.close()
    failures += _attempt(lambda: record_values(state))
    if state.options.one_call:  # its last evaluation is a part of the call
        failures += _mark_end(state, outcome, failures)
    return failures


def _mark_end(
    state: SessionState, outcome: Outcome, failures: Sequence[BaseException]
) -> list[BaseException]:
    """Record in the directory how the session ended; return the errors."""
    assert state.backend is not None
    step, saver = state.backend.session.global_step, state.saver
    # A session that ran nothing keeps the mark of the previous session, with exceptions:
    # the end of input, a call with nothing left to do, and a stop at a target that a killed
    # session had reached. No later session may continue from these.
    is_marked = saver.last is not None and saver.last.is_marked
    over = (
        outcome.kind == "end_of_input"
        or (state.options.one_call and outcome.kind in ("completed", "stopped"))
        or (outcome.kind == "stopped" and not is_marked)
    )
    marks = saver.checkpoints.enabled_by is not None and not failures
    marks &= over or step != state.first_step
    found = _attempt(lambda: saver.mark_ended(step, outcome.kind)) if marks else []
    return found + _attempt(lambda: _record_in_directory(state, outcome))


def _tell(state: SessionState, event: str, *arguments: Any) -> list[Failure]:
    """Call all hooks that began; return their errors."""

    def args_of(name: str) -> tuple[Any, ...] | None:
        return arguments if name in state.begun else None

    return state.bus.caller(event).visit_all(arguments, args_of)


def _tell_exception(
    state: SessionState, error: BaseException, outcome: Outcome
) -> list[BaseException]:
    """Call every ``on_exception``; return the interrupts that left one."""
    session = state.backend.session if state.backend is not None else None
    interrupts: list[BaseException] = []
    for name, other in _tell(state, "on_exception", session, error, outcome):
        if isinstance(other, KeyboardInterrupt):
            interrupts.append(other)
        log.error("a hook failed in on_exception", hook=name, error=repr_of(other))
        add_note(error, f"on_exception() of {name!r} failed: {repr_of(other)}")
    return [] if isinstance(error, KeyboardInterrupt) else interrupts


def _end_writing(state: SessionState, error: BaseException) -> list[BaseException]:
    """Wait for the checkpoint that a thread writes; return the interrupts of that.

    After a second Ctrl-C the session ends at once. Of several ranks, others may not come to
    complete it.
    """
    if isinstance(error, KeyboardInterrupt) or state.agreement is not None:
        state.saver.writer.leave()
    failures = _attempt(lambda: take_written(state, None, wait=True))
    for other in failures:
        log.error("a checkpoint is not written", error=repr_of(other))
        add_note(error, f"a checkpoint is not written: {repr_of(other)}")
    return [other for other in failures if isinstance(other, KeyboardInterrupt)]


def _save_failed(
    state: SessionState, error: BaseException, outcome: Outcome
) -> list[BaseException]:
    """Write the checkpoint of a failed session; return the interrupts of the write.

    After a second Ctrl-C the session ends at once, without this checkpoint.
    """
    if outcome.kind != "failed":
        return []
    why = f"failed: {type(error).__name__}"
    failures = _attempt(lambda: save_failed(state, why))
    for other in failures:
        log.error("the failed session is not saved", error=repr_of(other))
        add_note(error, f"the failed session is not saved: {repr_of(other)}")
    return [other for other in failures if isinstance(other, KeyboardInterrupt)]


def _close_backend(state: SessionState) -> None:
    """Close the backend session; raise the error of one of its threads."""
    if state.backend is None or state.is_abandoned:
        return
    left = state.seconds_left
    grace = state.options.grace
    error = state.backend.close(grace if left is None else min(grace, max(left, 0.0)))
    if isinstance(error, Exception) and recoverable(state, error) is not None:
        log.error("error while closing the session", error=repr_of(error))
    elif error is not None:
        raise error


def _record(
    state: SessionState, error: BaseException | None, outcome: Outcome, clean: bool
) -> None:
    """Record how the session ended: for the command, and in the log."""
    if state.is_abandoned:  # a hook forked in its last event
        return
    if not clean:  # the lock that was released has told whether the directory is ours
        _record_in_directory(state, outcome)
    last = state.saver.last
    saved = last is not None and (last.step == outcome.step or state.ending.relies_on_last)
    saved = saved or state.ending.written_at == outcome.step
    record = SessionRecord(state.kind, state.first_step, outcome, saved)
    record_end(state.options.config, record, error)
    _report_nothing_to_train(state, outcome)
    state.bus.failures.report()
    for who, updates in state.requests.effects.skipped.items():
        log.info("updates skipped", by=who, updates=updates)
    extra = {} if last is None else {"checkpoint": shown(last.path)}
    if outcome.kind == "failed" and error is not None:
        # The error leaves the session, and its report shows the text.
        outcome = attrs.evolve(outcome, why=type(error).__name__)
    log.info("session ended", **_told(outcome), **extra)
    if state.bus.tracer is not None:
        state.bus.tracer.report()
    if state.bus.costs is not None:
        state.bus.costs.report()
    if state.options.config.show_step:
        _show_step(state)


def _record_in_directory(state: SessionState, outcome: Outcome) -> None:
    """Write ``outcome.json`` into the checkpoint directory, if the session trained.

    An evaluation, or a failed start, is not the end of the training in its directory.
    """
    saver = state.saver
    trained = state.kind == "train" and state.first_step is not None
    written = saver.is_chief and not saver.is_displaced and not state.is_abandoned
    if trained and written and saver.checkpoints.directory is not None:
        _write_outcome(outcome, saver.checkpoints.directory)


def _report_nothing_to_train(state: SessionState, outcome: Outcome) -> None:
    """Log that the training had finished before, if that is why the session did no step."""
    last, ended = state.saver.last, None
    if state.kind == "train" and last is not None and outcome.step == state.first_step:
        ended = last.restored_end
    if ended in ("completed", "end_of_input") and outcome.kind == ended:
        log.info(
            "nothing to train",
            step=outcome.step,
            why=f"the training has ended: {ended}",
            path=shown(state.saver.store.directory),
            next="give it more epochs or data, use --again, or take another directory",
        )


def _show_step(state: SessionState) -> None:
    """Log the source of the compiled step."""
    source = None if state.backend is None else state.backend.stepper.compiled_step
    if source is None:
        log.info("no compiled step", why="no two steps in a row did the same")
    else:
        log.info(f"compiled step\n{source.rstrip()}")


def _write_outcome(outcome: Outcome, directory: Path) -> None:
    """Write or replace ``outcome.json`` in a checkpoint directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / OUTCOME_FILE) as file:
            params = {"params": outcome.params} if outcome.params else {}
            content = {**_told(outcome), **params}
            file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    except OSError as error:
        log.warning("cannot write how the session ended", why=text_of(error))


def _told(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of an outcome, without the hyperparameters."""
    told = attrs.asdict(outcome, recurse=False)
    del told["params"]
    for rare in ("label", "skipped", "rolled_back"):
        if not told[rare]:
            del told[rare]
    return told


def _raise_failures(failures: list[BaseException], of_threads: list[BaseException]) -> None:
    """Raise the errors of the end.

    An interrupt comes first, and then the error of a thread, with the others as notes.
    """
    everything = [*of_threads, *failures]
    interrupts = [error for error in everything if isinstance(error, KeyboardInterrupt)]
    for first in (*interrupts, *of_threads):
        others = [error for error in everything if error is not first]
        for other in others:
            add_note(first, f"another error at the end: {repr_of(other)}")
        if others and first.__context__ is None:
            set_context(first, others[0])
        raise first
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup("several hooks failed at the end", failures)


def _leave_signals(state: SessionState, outcome: Outcome) -> BaseException | None:
    """Stop watching signals; return the exception to raise because of one, or None."""
    exits_by: BaseException | None = None
    try:
        exits_by = _exit_by_signal(state, outcome)
    finally:
        state.ending.signals.restore(exit_on_way=isinstance(exits_by, SignalExit))
    return exits_by or _exit_by_signal(state, outcome)  # one that arrived meanwhile


def _exit_by_signal(state: SessionState, outcome: Outcome) -> BaseException | None:
    saver, signals = state.saver, state.ending.signals
    unhandled_signal = signals.unhandled_signal
    served = outcome.kind in KINDS.values()
    if served and not state.options.exit_on_signal:
        return None
    if served and signals.is_shared:
        # A hook that evaluates returns, so that the hooks after it get their events.
        if inside_event():
            return None
        return SessionInterruptedError(
            f"{signals.name} ended the session, and ends the one around it"
        )
    if unhandled_signal is None:
        # A hook may have asked for a preemption, which ends the process as SIGTERM does.
        asked = outcome.kind == "preempted" and signals.received is None
        return SignalExit() if asked and not inside_event() else None
    if not served and saver.last is not None and saver.last.ended is not None:
        # The signal arrived too late to end the session. The program never sees this end,
        # so the next session must continue from here.
        saver.mark_ended_late(outcome.step, KINDS[unhandled_signal])
    return exception_for(unhandled_signal)


def _attempt(do: Callable[[], object]) -> list[BaseException]:
    try:
        do()
    except BaseException as error:
        return [error]
    return []
