"""Decides whether a session may begin again from a checkpoint, and how long it waits.

A session begins again after a preemption, and when a hook asks to roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from hookbus.backend.protocol import Session
from hookbus.errors import TrainingError, add_note, blame, summary_of
from hookbus.hooks.outcome import Rollback
from hookbus.hooks.timer import pause
from hookbus.logs import log
from hookbus.validation import numeric

_LONGEST_WAIT = 60.0
_NOT_NEGATIVE = numeric(least=0)

Progress: TypeAlias = tuple[int, int]
"""The global step, and the number of values that were pulled from inputs."""


@attrs.frozen
class Recovery:
    """Sets how often a preempted session is opened again. One object may serve several.

    Args:
        most: the maximum number of recoveries in a row. A session that gets further than
            ever before starts to count anew; a step that is only repeated does not count
            as progress.
        first_wait: the seconds to wait after the first preemption; doubled after each
            further one, up to a minute.
        rollbacks: the maximum number of roll-backs in a row that hooks may ask for, counted
            in the same way. A session that resumes after a kill continues that count.

    Raises:
        UsageError: a number is negative.

    >>> from hookbus import AbortedError
    >>> from hookbus.testing import run_steps
    >>> patient = Recovery(most=3, first_wait=0.0)
    >>> errors = {2: AbortedError("preempted")}
    >>> run_steps(steps=2, errors=errors, recovery=patient).global_step
    2
    """

    most: int = attrs.field(default=5, validator=_NOT_NEGATIVE)
    first_wait: float = attrs.field(default=1.0, validator=_NOT_NEGATIVE)
    rollbacks: int = attrs.field(default=10, validator=_NOT_NEGATIVE)


@attrs.define(eq=False)
class Rollbacks:
    """Counts the roll-backs of one session.

    Attributes:
        most: the maximum number of roll-backs in a row.
        count: the number of all roll-backs.
        left_out: the numbers of the values that the session leaves out, by input. The
            numbers from earlier roll-backs stay: the checkpoint does not have them either.
    """

    most: int = 10
    count: int = 0
    left_out: dict[str, set[int]] = attrs.field(factory=dict)
    _in_a_row: int = 0
    _furthest: int = 0

    def add(self, asked: Rollback, step: int) -> None:
        """Count a roll-back from a global step.

        Raises:
            TrainingError: there were too many without any progress.
        """
        if step > self._furthest:
            self._furthest, self._in_a_row = step, 0
        if self._in_a_row >= self.most:
            error = TrainingError(
                f"hook {asked.who!r} asked to roll back at step {step} ({asked.why}), "
                f"after {self.most} roll-backs in a row without a step beyond "
                f"{self._furthest}: the training does not get past it. The checkpoints are "
                "good; to allow more, give the session recovery=Recovery(rollbacks=...)"
            )
            blame(error, asked.who, f"plugin {asked.who!r} asked for it")
            raise error
        self._in_a_row += 1
        self.count += 1

    def state_dict(self) -> dict[str, int]:
        """Return the used part of the limit; an empty dict if no part is used."""
        if not self._in_a_row:
            return {}
        return {"in_a_row": self._in_a_row, "furthest": self._furthest}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue the count of a session that was cut short."""
        self._in_a_row = state.get("in_a_row", 0)
        self._furthest = state.get("furthest", 0)

    def leave_out(self, numbers: Mapping[str, Iterable[int]]) -> None:
        """Leave out further values; *numbers* has their numbers by input."""
        for name, more in numbers.items():
            self.left_out.setdefault(name, set()).update(more)


@attrs.define(eq=False)
class Preemptions:
    """Counts the preemptions of one session in a row, and waits longer after each.

    Attributes:
        recovery: the limits.
        in_a_row: the number of preemptions since the session got further than before.
        furthest: the furthest point that the session has reached at a preemption.
        is_recovering: whether the session made no progress since the last preemption.
    """

    recovery: Recovery
    in_a_row: int = 0
    furthest: Progress = (0, 0)
    is_recovering: bool = False
    _lost_progress: bool = False

    def wait(self, error: BaseException, hurry: Callable[[], bool]) -> None:
        """Wait before a recovery, or give up.

        Args:
            error: the preemption.
            hurry: returns whether to stop waiting, for example after a signal.

        Raises:
            BaseException: *error* itself, after the maximum number of recoveries.
        """
        most, first_wait = self.recovery.most, self.recovery.first_wait
        if self.in_a_row >= most:
            add_note(error, f"gave up after {most} recoveries in a row")
            raise error
        seconds = min(_LONGEST_WAIT, first_wait * 2.0 ** min(self.in_a_row, 60))
        self.in_a_row += 1
        log.warning(
            "preempted; reopening the session",
            why=summary_of(error),
            recovery=self.in_a_row,
            wait_secs=seconds,
        )
        pause(seconds, hurry)
        self.is_recovering = True

    def closed(self, session: Session) -> None:
        """Record the progress of a session that was preempted."""
        self.furthest = max(self.furthest, _progress(session))

    def opened(self, session: Session) -> None:
        """Record whether a new session has to repeat work of the preempted one."""
        self._lost_progress = _progress(session) < self.furthest

    def note_progress(self, session: Session) -> None:
        """Note a successful run. If it led further than before, count anew.

        If no work was lost, one successful run is enough: the preemption made it fail
        before.
        """
        if not self._lost_progress or _progress(session) > self.furthest:
            self.in_a_row, self.is_recovering = 0, False


def _progress(session: Session) -> Progress:
    return session.global_step, session.pulled()


@attrs.define(eq=False)
class Recoveries:
    """The roll-backs and preemptions of one session.

    Attributes:
        rollbacks: counts the roll-backs that hooks asked for.
        preemptions: counts the preemptions; None if the session does not recover from any.
        pristine: the states of hooks and generators before the first backend session.
    """

    rollbacks: Rollbacks
    preemptions: Preemptions | None = None
    pristine: tuple[Any, Any] | None = None
