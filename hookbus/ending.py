"""How a session ended: what reaches its exit decides, once."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from hookbus.errors import END_OF_INPUT, SessionInterruptedError, culprit_of
from hookbus.hook import NOBODY, Outcome, OutcomeKind
from hookbus.logs import log
from hookbus.step_fn import StepFnStop

FILE = "outcome.json"
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


def is_clean(error: BaseException | None) -> bool:
    """Say whether hooks are told by ``end``; else by ``on_exception``.

    Clean are: nothing, end of input, a signal's stop, a closed generator, and an exit
    with success.
    """
    if isinstance(error, SystemExit):
        return error.code in (None, 0)
    return error is None or isinstance(error, (*SWALLOWED, GeneratorExit))


def well(stop: Stop | None, input_end: BaseException | None, step: int) -> Outcome:
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


def badly(error: BaseException | None, step: int, scope: object = None) -> Outcome:
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


def write(outcome: Outcome, directory: Path) -> None:
    """Write ``outcome.json`` into a checkpoint directory, replacing the one before."""
    temporary = directory / f"{FILE}.tmp"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(attrs.asdict(outcome), indent=2) + "\n", "utf-8")
        temporary.rename(directory / FILE)
    except OSError as error:
        log.warning("cannot write how the session ended", why=str(error))
