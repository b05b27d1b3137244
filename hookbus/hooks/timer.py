"""Decides when a periodic action is due, and waits so that a signal is noticed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs

from hookbus.errors import UsageError
from hookbus.hooks.outcome import resumes

_CHECK_EVERY_SECS = 0.05


def pause(seconds: float, hurry: Callable[[], bool]) -> bool:
    """Wait; return whether the whole time passed.

    *hurry* returns whether to stop waiting, for example after a signal.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if hurry():
            return False
        time.sleep(min(left, _CHECK_EVERY_SECS))
    return True


@attrs.frozen
class Due:
    """When a hook wants its next run: as soon as one of these is reached.

    A run calls the hook if it ends at *step* or later, if it is the coming one of number
    *runs*, or if it begins or ends at *time* or later. ``Due()`` is never.

    Args:
        step: a global step.
        runs: a number of runs; 1 is the next one.
        time: a time of ``time.monotonic()``, in seconds.

    >>> Due(step=100, time=time.monotonic() + 60).step
    100
    """

    step: float = math.inf
    runs: float = attrs.field(default=math.inf, kw_only=True)
    time: float = attrs.field(default=math.inf, kw_only=True)


@attrs.define(eq=False)
class SecondOrStepTimer:
    """Decides whether a step is due, and records the last time.

    Exactly one of the two periods is given; the values are not checked, as in TensorFlow
    (0 seconds means at every new step). The clock is monotonic. TensorFlow's timer used
    the wall clock, and saved nothing for an hour when that was set back by one.

    Args:
        every_secs: the period in seconds.
        every_steps: the period in global steps.
        named: the names of the two settings of a hook, for the message.

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
    named: str = attrs.field(default="", kw_only=True)
    _last_step: int | None = attrs.field(default=None, init=False)
    _last_time: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        hint = f" Give one of {self.named}." if self.named else ""
        if self.every_secs is None and self.every_steps is None:
            raise UsageError(f"Either every_secs or every_steps should be provided.{hint}")
        if self.every_secs is not None and self.every_steps is not None:
            raise UsageError(f"Can not provide both every_secs and every_steps.{hint}")

    def should_trigger_for_step(self, step: int) -> bool:
        """Return whether *step* is due, without recording anything."""
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
            Seconds and steps since the previous trigger, ``(None, None)`` at the first.
        """
        now = time.monotonic()
        last, then = self._last_step, self._last_time
        self._last_step, self._last_time = step, now
        if last is None:
            return None, None
        return now - then, step - last

    def next_due(self) -> Due:
        """Return when it triggers next, for a hook whose steps are global steps."""
        if self._last_step is None:
            return Due(runs=1)
        if self.every_steps is not None:
            return Due(self._last_step + self.every_steps)
        return Due(time=self._last_time + (self.every_secs or 0.0))

    def last_triggered_step(self) -> int | None:
        """Return the step that last triggered, or None."""
        return self._last_step

    def reset(self) -> None:
        """Forget when it last triggered."""
        self._last_step, self._last_time = None, 0.0

    state_form: ClassVar[Any] = {"step": (int, None), "secs": (float, ...)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a hook keeps in checkpoints, so its period continues.

        With a period in steps the state does not depend on the clock, so equal runs have
        equal states.
        """
        if self._last_step is None or self.every_secs is None:
            return {"step": self._last_step}
        return {"step": self._last_step, "secs": time.monotonic() - self._last_time}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None = None) -> None:
        """Continue the period of an interrupted session.

        After a session that ended on its own, the period restarts. A timer that has already
        triggered keeps its own state: in a recovery the session goes back, but what was
        done stays done (TensorFlow's timers also survive a recovery).

        Args:
            state: the result of :meth:`state_dict`. A period in seconds counts the time
                of sessions, evaluations included, without the pause between two of them.
            ended: the argument ``ended`` of the hook's ``load_state_dict``.
        """
        if self._last_step is None and state["step"] is not None and resumes(ended):
            self._last_step = state["step"]
            self._last_time = time.monotonic() - state.get("secs", 0.0)
