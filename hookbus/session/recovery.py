"""Decides how often, and after which wait, a preempted session is opened again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from hookbus.errors import UsageError
from hookbus.hooks.timer import pause
from hookbus.logs import log

_LONGEST_WAIT = 60.0


@attrs.define(eq=False)
class Recovery:
    """Counts the preemptions in a row and waits longer after each.

    Attributes:
        most: the number of preemptions in a row to recover from; a run that succeeds
            starts the count again.
        first_wait: the seconds to wait after the first one; doubled after each further
            one. The longest wait is a minute.
        in_a_row: the number of preemptions since a run last succeeded.

    Raises:
        UsageError: *most* or *first_wait* is negative.
    """

    most: int = attrs.field(default=5)
    first_wait: float = attrs.field(default=1.0)
    in_a_row: int = attrs.field(default=0, init=False)

    @most.validator
    @first_wait.validator
    def _check(self, field: attrs.Attribute[Any], value: float) -> None:
        if value < 0:
            raise UsageError(f"Recovery({field.name}={value}): it is a number from 0 on")

    def wait(self, error: BaseException, hurry: Callable[[], bool]) -> None:
        """Wait until it makes sense to try again, or give up.

        Args:
            error: the preemption.
            hurry: returns whether to stop waiting, as after a signal.

        Raises:
            BaseException: *error* itself, after enough tries.
        """
        if self.in_a_row >= self.most:
            error.add_note(f"hookbus: gave up after {self.most} recoveries in a row")
            raise error
        seconds = min(_LONGEST_WAIT, self.first_wait * 2.0 ** min(self.in_a_row, 60))
        self.in_a_row += 1
        log.warning(
            "preempted; the session is opened again",
            why=f"{type(error).__name__}: {error}",
            recovery=self.in_a_row,
            wait_secs=seconds,
        )
        pause(seconds, hurry)
