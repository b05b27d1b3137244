"""Describes the end of a session, and the requests of plugins: a stop, a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from hookbus.errors import (
    END_OF_INPUT,
    RunAfterStopError,
    SessionInterruptedError,
    SessionStoppedError,
    culprit_of,
    summary_of,
    text_of,
)

NOBODY = "caller"
"""The name of the current hook while no hook is called."""

OUTCOME_FILE = "outcome.json"
"""The file in a checkpoint directory that tells how the last training there ended."""

OutcomeKind: TypeAlias = Literal[
    "completed", "stopped", "end_of_input", "interrupted", "preempted", "failed"
]


@attrs.frozen
class Outcome:
    """How a session ended.

    Attributes:
        kind: ``completed`` (the caller left the loop), ``stopped`` (a hook asked for it),
            ``end_of_input``, ``interrupted``, ``preempted`` or ``failed``.
        who: the plugin that stopped or failed it, ``op 'NAME'``, ``input``, a signal like
            ``SIGTERM``, or ``caller``.
        why: the reason, in words.
        label: a word for programs that the plugin gave with the reason; None without one.
        step: the global step at the end.
        params: the hyperparameters that ``session.record`` got, in this session or in the
            one that it resumed.
        skipped: the number of updates that hooks had this session skip.
        rolled_back: how often hooks had it go back to a checkpoint.

    >>> outcome = Outcome("stopped", "early-stopping", "loss did not improve", step=40)
    >>> outcome.kind, outcome.who, outcome.step
    ('stopped', 'early-stopping', 40)
    """

    kind: OutcomeKind
    who: str
    why: str
    label: str | None = attrs.field(default=None, repr=False, kw_only=True)
    step: int
    params: Mapping[str, Any] = attrs.field(
        factory=dict, repr=False, hash=False, kw_only=True
    )
    skipped: int = attrs.field(default=0, repr=False, kw_only=True)
    rolled_back: int = attrs.field(default=0, repr=False, kw_only=True)


def resumes(ended: str | None) -> bool:
    """Return whether a session continues where the previous one was interrupted.

    A hook calls it in ``load_state_dict``: a period continues after a kill, a preemption or
    Ctrl-C, and restarts after a session that ended on its own.

    Args:
        ended: the argument ``ended`` of ``load_state_dict``: the kind of the outcome, or
            None if the session had not ended when it saved the checkpoint.

    >>> resumes(None), resumes("preempted"), resumes("stopped")
    (True, True, False)
    """
    return ended in (None, "interrupted", "preempted")


class StopSession(StopIteration):
    """Ends the session in good order when it leaves the session's block.

    Its text is the reason of the outcome, whose kind is ``stopped``. Raise it between two
    steps; a hook calls ``run_context.request_stop`` instead.

    >>> from hookbus import Config, MonitoredSession
    >>> with MonitoredSession(config=Config(autoload=False, header=False)) as session:
    ...     raise StopSession("the loss is small enough")
    >>> session.outcome.kind, session.outcome.why
    ('stopped', 'the loss is small enough')
    """


SWALLOWED = (*END_OF_INPUT, SessionInterruptedError, SessionStoppedError)
"""The exceptions that a session's block catches if they end it cleanly."""


@attrs.frozen
class StopReason:
    """A request of a plugin, the caller or a signal to end the session.

    Attributes:
        who: the plugin or signal that asked for it, or ``coordinator``.
        why: the reason, in words.
        kind: the kind of the :class:`Outcome` to come.
        label: its label.

    >>> StopReason("early-stopping", "loss did not improve").kind
    'stopped'
    """

    who: str
    why: str
    kind: OutcomeKind = "stopped"
    label: str | None = attrs.field(default=None, repr=False)


RollbackPlace: TypeAlias = Literal["checkpoint", "step"]
"""The places to which a session can go back."""


@attrs.frozen
class Rollback:
    """A request of a plugin to go back.

    Attributes:
        who: the plugin.
        why: the reason that it gave.
        skip_inputs: whether to leave out the input values of the run with the request.
        taken: the numbers of these values, by input; None if that run is the last one. With
            several ranks the session goes back some runs later.
        to: where to go back: to a ``checkpoint``, or to the beginning of the ``step``.
    """

    who: str
    why: str
    skip_inputs: bool
    taken: Mapping[str, Sequence[int]] | None = None
    to: RollbackPlace = "checkpoint"


@attrs.frozen
class SaveRequest:
    """A request for a checkpoint, of one hook or of several.

    Attributes:
        who: the plugin that asked first.
        why: the reason that it gave.
        kept: why the checkpoint is never pruned, by the plugin that asked for that.
    """

    who: str
    why: str
    kept: Mapping[str, str] = attrs.field(factory=dict)


def united(*asked: SaveRequest | None) -> SaveRequest | None:
    """Return one request for several, with the plugin and the reason of the first."""
    given = [request for request in asked if request is not None]
    if not given:
        return None
    kept = {who: why for request in reversed(given) for who, why in request.kept.items()}
    return attrs.evolve(given[0], kept=kept)


def united_rollbacks(asked: Sequence[Rollback]) -> Rollback | None:
    """Return one request for those of several ranks, which leaves out the inputs of all."""
    if not asked:
        return None
    taken: dict[str, list[int]] = {}
    for request in asked:
        for name, numbers in (request.taken or {}).items():
            taken.setdefault(name, []).extend(numbers)
    skips = any(request.skip_inputs for request in asked)
    return attrs.evolve(asked[0], skip_inputs=skips, taken=taken)


def is_clean_end(error: BaseException | None, stopping: bool) -> bool:
    """Return whether hooks get ``end`` and not ``on_exception``.

    They do for no error, end of input, a closed generator, an exit with success, and a run
    that a stop or a signal refused or cut short. *stopping* is whether there is one: if
    not, the error is a hook's own, or that of another session.
    """
    if isinstance(error, SystemExit):
        return error.code in (None, 0)
    if isinstance(error, RunAfterStopError | SessionInterruptedError | SessionStoppedError):
        return stopping
    return error is None or isinstance(error, (*END_OF_INPUT, GeneratorExit))


def is_swallowed(error: BaseException | None, outcome: Outcome | None) -> bool:
    """Return whether a session's block catches the error that leaves it."""
    clean = outcome is not None and outcome.kind != "failed"
    return clean and isinstance(error, SWALLOWED)


def clean_outcome(
    stop: StopReason | None, input_end: BaseException | None, step: int
) -> Outcome:
    """Return the outcome of a session that *stop*, or the end of its input, ended."""
    if stop is None and isinstance(input_end, StopSession):
        stop = StopReason(NOBODY, text_of(input_end))
    if stop is not None:
        return Outcome(stop.kind, stop.who, stop.why, step, label=stop.label)
    if input_end is not None:
        who = culprit_of(input_end) or "input"
        why = text_of(input_end) or type(input_end).__name__
        return Outcome("end_of_input", who, why, step)
    return Outcome("completed", NOBODY, "the caller left the loop", step)


def failed_outcome(error: BaseException | None, step: int, scope: object = None) -> Outcome:
    """Return the outcome of a session, identified by *scope*, that an error ended."""
    kind: OutcomeKind = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    who = (culprit_of(error, scope) if error is not None else None) or NOBODY
    return Outcome(kind, who, summary_of(error) if error is not None else "", step)
