"""When something periodic is due: every so many seconds or every so many steps."""

from __future__ import annotations

import time

import attrs

from hookbus.errors import UsageError


@attrs.define(eq=False)
class SecondOrStepTimer:
    """Tells whether a step is due, and remembers when one last was.

    Exactly one of the two periods is given; the values are not checked, as in
    TensorFlow (0 seconds means at every new step). The clock is one that nobody sets:
    TensorFlow's saved nothing for an hour where the wall clock was set back by one.

    Args:
        every_secs: the period in seconds.
        every_steps: the period in global steps.

    Raises:
        UsageError: neither or both periods are given.

    >>> timer = SecondOrStepTimer(every_steps=10)
    >>> timer.should_trigger_for_step(3), timer.update_last_triggered_step(3)
    (True, (None, None))
    >>> timer.should_trigger_for_step(12), timer.should_trigger_for_step(13)
    (False, True)
    """

    every_secs: float | None = None
    every_steps: int | None = None
    _last_step: int | None = attrs.field(default=None, init=False)
    _last_time: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        if self.every_secs is None and self.every_steps is None:
            raise UsageError("Either every_secs or every_steps should be provided.")
        if self.every_secs is not None and self.every_steps is not None:
            raise UsageError("Can not provide both every_secs and every_steps.")

    def should_trigger_for_step(self, step: int) -> bool:
        """Say whether *step* is due, without recording anything."""
        last = self._last_step
        if last is None:
            return True
        if step == last:
            return False
        if self.every_steps is not None:
            return step >= last + self.every_steps
        return time.monotonic() >= self._last_time + (self.every_secs or 0.0)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record *step* as triggered now.

        Returns:
            Seconds and steps since the trigger before, ``(None, None)`` at the first.
        """
        now = time.monotonic()
        last, then = self._last_step, self._last_time
        self._last_step, self._last_time = step, now
        if last is None:
            return None, None
        return now - then, step - last

    def last_triggered_step(self) -> int | None:
        """Return the step that last triggered, or None."""
        return self._last_step

    def reset(self) -> None:
        """Forget when it last triggered."""
        self._last_step, self._last_time = None, 0.0
