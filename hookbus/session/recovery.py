"""Decides whether a preempted session is opened again, and how long to wait before."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hookbus.hooks.timer import pause
from hookbus.logs import log
from hookbus.validation import numeric

_LONGEST_WAIT = 60.0
_NOT_NEGATIVE = numeric(least=0)


@attrs.define(eq=False)
class Recovery:
    """Counts the preemptions in a row and waits longer after each.

    Attributes:
        most: the maximum number of recoveries in a row; a successful run resets the count.
        first_wait: the seconds to wait after the first preemption; doubled after each
            further one, up to a minute.
        in_a_row: the number of preemptions since the last successful run.

    Raises:
        UsageError: *most* or *first_wait* is negative.
    """

    most: int = attrs.field(default=5, validator=_NOT_NEGATIVE)
    first_wait: float = attrs.field(default=1.0, validator=_NOT_NEGATIVE)
    in_a_row: int = attrs.field(default=0, init=False)

    def wait(self, error: BaseException, hurry: Callable[[], bool]) -> None:
        """Wait before a recovery, or give up.

        Args:
            error: the preemption.
            hurry: returns whether to stop waiting, for example after a signal.

        Raises:
            BaseException: *error* itself, after the maximum number of recoveries.
        """
        if self.in_a_row >= self.most:
            error.add_note(f"hookbus: gave up after {self.most} recoveries in a row")
            raise error
        seconds = min(_LONGEST_WAIT, self.first_wait * 2.0 ** min(self.in_a_row, 60))
        self.in_a_row += 1
        log.warning(
            "preempted; reopening the session",
            why=f"{type(error).__name__}: {error}",
            recovery=self.in_a_row,
            wait_secs=seconds,
        )
        pause(seconds, hurry)
