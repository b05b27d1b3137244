"""Finishes a session: notifies the hooks, saves, closes, records the outcome."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from hookbus.bus.caller import Failure
from hookbus.checkpoint.files import replacing
from hookbus.config.config import SessionRecord
from hookbus.errors import END_OF_INPUT, SessionInterruptedError
from hookbus.hooks.outcome import (
    Outcome,
    clean_outcome,
    failed_outcome,
    is_clean_end,
)
from hookbus.logs import log, shown
from hookbus.session.requests import save
from hookbus.session.signals import KINDS, exception_for
from hookbus.session.start import inside_event, leave_session, recoverable
from hookbus.session.state import Phase, SessionState


def finish(state: SessionState, reached: BaseException | None) -> BaseException | None:
    """Finish the session, once; *reached* is the error that left its block, or None.

    Returns:
        What the caller raises because of a signal, unless an error is already being raised.

    Raises:
        BaseException: the error of one hook's ``end``, of a thread or of the input.
        BaseExceptionGroup: errors of several hooks.
    """
    began, state.phase = state.phase is not Phase.NEW, Phase.CLOSED
    state.requests.fail_run()  # a run that is left in the middle
    error, clean = _decide(state, reached)
    if clean:
        outcome = clean_outcome(state.stop, state.input_end, state.global_step)
    else:
        outcome = failed_outcome(error, state.global_step, state.bus.current)
    state.outcome = outcome
    failures: list[BaseException] = []
    try:
        try:
            if clean:
                failures += _end_well(state, outcome)
            elif error is not None:
                state.requests.close()
                _tell_exception(state, error, outcome)
        finally:
            thread_error = _close_backend(state)
            state.saver.close()
            if began:
                state.creator.graph.leave()
            _record(state, error, outcome)
        _raise_failures(failures, thread_error)
        if error is not None and error is not reached:
            raise error
    finally:
        leave_session(state)
        exits_by = _leave_signals(state, outcome)
    return exits_by


def _decide(
    state: SessionState, reached: BaseException | None
) -> tuple[BaseException | None, bool]:
    """Return the error that ends the session, or None, and whether the end is clean.

    The end of a session that never became ready is not clean.
    """
    clean = state.first_step is not None and is_clean_end(reached, state.stop)
    backend = state.backend
    if clean and backend is not None:
        thread = backend.coord.exception
        if thread is not None and recoverable(state, thread) is None:
            return thread, False
    try:
        if clean and isinstance(reached, END_OF_INPUT):
            state.end_input(reached)
        state.stop_by_signal()
        state.hold_position()
    except BaseException as late:  # the position of an input cannot be read
        return (late, False) if clean else (reached, False)
    return reached, clean


def _end_well(state: SessionState, outcome: Outcome) -> list[BaseException]:
    """Call every ``end``, save, call every ``finished``; return the errors."""
    assert state.backend is not None
    session, saver = state.backend.session, state.saver
    who = saver.checkpoints.enabled_by
    failures = [error for _, error in _tell(state, "end", session, outcome)]
    requested = state.requests.take_save()
    state.requests.close()
    if who is not None:
        requested = who, f"end: {outcome.kind}"
    if requested is not None:
        failures += _attempt(lambda: save(state, *requested, None))
    failures += [error for _, error in _tell(state, "finished", session, outcome)]
    # A session that ran nothing keeps the mark of the previous one. The end of input, a
    # call that had nothing left to do, and a training that was killed when it had reached
    # its end are marked: no later session may continue them.
    over = (
        outcome.kind == "end_of_input"
        or (state.one_call and outcome.kind in ("completed", "stopped"))
        or (outcome.kind == "stopped" and not saver.is_marked)
    )
    marks = who is not None and (over or session.global_step != state.first_step)
    if marks and not failures:
        failures += _attempt(lambda: saver.mark_ended(session.global_step, outcome.kind))
    return failures


def _tell(state: SessionState, event: str, *arguments: Any) -> list[Failure]:
    """Call all hooks that began; return their errors."""

    def args_of(name: str) -> tuple[Any, ...] | None:
        return arguments if name in state.begun else None

    return state.bus.caller(event).visit(arguments, args_of, keep_going=True)


def _tell_exception(state: SessionState, error: BaseException, outcome: Outcome) -> None:
    session = state.backend.session if state.backend is not None else None
    for name, other in _tell(state, "on_exception", session, error, outcome):
        log.error("a hook failed in on_exception", hook=name, error=repr(other))
        error.add_note(f"hookbus: on_exception() of {name!r} failed: {other!r}")


def _close_backend(state: SessionState) -> BaseException | None:
    """Close the backend session; return the error of one of its threads, or None."""
    if state.backend is None or state.is_inherited:
        return None
    error = state.backend.close(state.grace)
    if error is not None and recoverable(state, error) is not None:
        log.error("error while closing the session", error=repr(error))
        return None
    return error


def _record(state: SessionState, error: BaseException | None, outcome: Outcome) -> None:
    """Record how the session ended: for the command, in outcome.json, in the log."""
    if state.is_inherited:  # a hook forked in its last event
        return
    saver = state.saver
    saved = saver.last_step == outcome.step
    record = SessionRecord(state.kind, state.first_step, outcome, saved, error)
    state.config.records.append(record)
    # An evaluation, or a failed start, is not the end of the training in this directory.
    trained = state.kind == "train" and state.first_step is not None
    if trained and not saver.is_displaced and saver.checkpoints.directory is not None:
        _write_outcome(outcome, saver.checkpoints.directory)
    state.bus.failures.report()
    extra = {"checkpoint": shown(saver.last_path)} if saver.last_path is not None else {}
    if outcome.kind == "failed" and error is not None:
        # The error leaves the session, and whoever reports it shows its text.
        outcome = attrs.evolve(outcome, why=type(error).__name__)
    log.info("session ended", **attrs.asdict(outcome), **extra)
    if state.tracer is not None:
        state.tracer.report()


def _write_outcome(outcome: Outcome, directory: Path) -> None:
    """Write ``outcome.json`` into a checkpoint directory; it replaces the previous one."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / "outcome.json") as file:
            file.write_text(json.dumps(attrs.asdict(outcome), indent=2) + "\n", "utf-8")
    except OSError as error:
        log.warning("cannot write how the session ended", why=str(error))


def _raise_failures(
    failures: list[BaseException], thread_error: BaseException | None
) -> None:
    """Raise the error of a thread first, with the others as notes."""
    if thread_error is not None:
        for failure in failures:
            thread_error.add_note(f"hookbus: another error at the end: {failure!r}")
        if failures and thread_error.__context__ is None:
            thread_error.__context__ = failures[0]
        raise thread_error
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup("several hooks failed at the end", failures)


def _leave_signals(state: SessionState, outcome: Outcome) -> BaseException | None:
    """Stop watching signals; return what has to be raised because of one, or None."""
    saver, signals = state.saver, state.signals
    name, unheard, shared = signals.name, signals.unheard, signals.is_shared
    served = outcome.kind in KINDS.values()
    signals.restore()
    if served and not state.exit_on_signal:
        return None
    if served and shared:
        # A hook that evaluates returns, so that the hooks after it get their events.
        return (
            None
            if inside_event()
            else SessionInterruptedError(
                f"{name} ended the session, and ends the one around it"
            )
        )
    if unheard is None:
        return None
    if not served and saver.ended is not None:
        # It arrived too late to end the session. The program never sees this end, so the
        # next session must continue from here.
        saver.mark_ended(outcome.step, KINDS[unheard])
    return exception_for(unheard)


def _attempt(do: Callable[[], None]) -> list[BaseException]:
    try:
        do()
    except BaseException as error:
        return [error]
    return []
