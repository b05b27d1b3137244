"""How a session ended, as data: what reaches its exit decides, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, TypeAlias

import attrs

from hookbus.errors import END_OF_INPUT, SessionInterruptedError, culprit_of
from hookbus.files import replacing
from hookbus.logs import log

NOBODY = "caller"
"""Whose turn it is while no hook is called."""

OutcomeKind: TypeAlias = Literal[
    "completed", "stopped", "end_of_input", "interrupted", "preempted", "failed"
]


@attrs.frozen
class Outcome:
    """How a session ended.

    Attributes:
        kind: ``completed`` (the caller left the loop), ``stopped`` (a hook asked),
            ``end_of_input``, ``interrupted``, ``preempted`` or ``failed``.
        who: the plugin that stopped or failed it, or ``caller``.
        why: the reason in words.
        step: the global step at the end.
    """

    kind: OutcomeKind
    who: str
    why: str
    step: int


def was_cut_short(ended: str | None) -> bool:
    """Say whether a session goes on where the one before it stood, as if it had not ended.

    A hook asks it in ``load_state_dict``: a period that has begun goes on after a kill, a
    preemption and Ctrl-C, and begins anew after a session that was over.

    Args:
        ended: what ``load_state_dict`` is told: the kind of the outcome, None where the
            session saved the checkpoint and went on.

    >>> was_cut_short(None), was_cut_short("preempted"), was_cut_short("stopped")
    (True, True, False)
    """
    return ended in (None, "interrupted", "preempted")


class StepFnStop(StopIteration):
    """A step function asked for the end of the loop."""


OUTCOME_FILE = "outcome.json"
SWALLOWED = (*END_OF_INPUT, SessionInterruptedError)
"""What ends a session's block well and goes no further."""


@attrs.frozen
class Stop:
    """Somebody asked for the end.

    Attributes:
        who: the plugin, the caller or the signal.
        why: the reason in words.
        kind: what the outcome is called.
    """

    who: str
    why: str
    kind: OutcomeKind = "stopped"


def is_clean_end(error: BaseException | None) -> bool:
    """Say whether hooks are told by ``end``; else by ``on_exception``.

    Clean are: nothing, end of input, a signal's stop, a closed generator, and an exit
    with success.
    """
    if isinstance(error, SystemExit):
        return error.code in (None, 0)
    return error is None or isinstance(error, (*SWALLOWED, GeneratorExit))


def clean_outcome(stop: Stop | None, input_end: BaseException | None, step: int) -> Outcome:
    """Put into words how a session ended well.

    Args:
        stop: who asked to stop and why, if somebody did.
        input_end: the end of input, if it was reached.
        step: the global step.
    """
    if stop is None and isinstance(input_end, StepFnStop):
        stop = Stop(NOBODY, str(input_end))
    if stop is not None:
        return Outcome(stop.kind, stop.who, stop.why, step)
    if input_end is not None:
        who = culprit_of(input_end) or "input"
        why = str(input_end) or type(input_end).__name__
        return Outcome("end_of_input", who, why, step)
    return Outcome("completed", NOBODY, "the caller left the loop", step)


def failed_outcome(error: BaseException | None, step: int, scope: object = None) -> Outcome:
    """Put into words how an error ended a session, which *scope* tells apart."""
    kind: OutcomeKind = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    who = (culprit_of(error, scope) if error is not None else None) or NOBODY
    return Outcome(kind, who, f"{type(error).__name__}: {error}".rstrip(": "), step)


def warn_about_input_end(error: BaseException) -> None:
    """Name a hook or an op that ended the input; from an input it is what it should be."""
    culprit = culprit_of(error)
    if culprit is not None:
        log.warning("end of input was raised by something that is no input", by=culprit)


def log_late_preemption(error: BaseException) -> None:
    """Report a preemption that a thread met while the session ended; it is no matter."""
    log.error("an error occurred when closing the session", error=repr(error))


def write_outcome(outcome: Outcome, directory: Path) -> None:
    """Write ``outcome.json`` into a checkpoint directory, replacing the one before."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / OUTCOME_FILE) as file:
            file.write_text(json.dumps(attrs.asdict(outcome), indent=2) + "\n", "utf-8")
    except OSError as error:
        log.warning("cannot write how the session ended", why=str(error))
