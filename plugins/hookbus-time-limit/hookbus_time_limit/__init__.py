"""Ends the session before a time limit, in time to save."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal

import attrs

import hookbus
from hookbus import SessionRunContext, SessionRunHook, SessionRunValues, UsageError

_NUMBER = r"(\d+(?:\.\d+)?)"
_PLAIN = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_ISO = re.compile(rf"p(?:{_NUMBER}d)?(?:t(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?)?")
_SECONDS = (86400.0, 3600.0, 60.0, 1.0)


def seconds_in(value: str | float) -> float:
    """Return the seconds in a number of seconds, or in text like ``11h30m``.

    Raises:
        UsageError: it is not a time above 0.

    >>> seconds_in("11h30m"), seconds_in("90s"), seconds_in("P1DT2H"), seconds_in("2.5")
    (41400.0, 90.0, 93600.0, 2.5)
    """
    match = _PLAIN.fullmatch(text := str(value).strip().lower()) or _ISO.fullmatch(text)
    parts = zip(match.groups(), _SECONDS, strict=True) if match else ()
    total = sum(float(number) * unit for number, unit in parts if number)
    if re.fullmatch(_NUMBER, text):
        total = float(text)
    if not total or isinstance(value, bool):
        raise UsageError(
            f"invalid time {value!r}. TimeLimitHook expects a time above 0: seconds, or "
            "text like 11h30m, 90s or PT11H30M"
        )
    return total


@attrs.define(eq=False)
class TimeLimitHook(SessionRunHook):
    """Asks to stop so early before a time limit that a step and a checkpoint fit in.

    Args:
        limit: how long the session may take: seconds, or text like ``11h30m``, ``90s``.
        kind: ``preempted`` ends the session like SIGTERM: saved, with exit code 75, so that
            a scheduler starts the program again. ``stopped`` ends the training.
        margin: the time to keep free before the limit, written like it; by default twice
            the longest save so far, and the mean time of a step.

    Raises:
        UsageError: a time cannot be read, the margin is not below the limit, or there is no
            such kind.

    >>> from hookbus.testing import run_steps
    >>> steps = run_steps(TimeLimitHook("1h30m", kind="stopped"), steps=3)
    >>> steps.outcome.kind  # long before the limit
    'completed'
    """

    options = hookbus.HookOptions(main_setting="limit")

    limit: str | float = attrs.field(validator=lambda *given: seconds_in(given[2]))
    kind: Literal["preempted", "stopped"] = "preempted"
    margin: str | float | None = None
    _seconds: float = attrs.field(init=False)
    _kept_free: float | None = attrs.field(init=False)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, init=False)
    _began: float = attrs.field(default=0.0, init=False)
    _trained: tuple[float, int] | None = attrs.field(default=None, init=False)
    _step_time: float = attrs.field(default=0.0, init=False)
    _save_time: float = attrs.field(default=0.0, init=False)
    _save_began: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._seconds = seconds_in(self.limit)
        self._kept_free = None if self.margin is None else seconds_in(self.margin)
        if self.kind not in ("preempted", "stopped"):
            raise UsageError(
                f"invalid kind={self.kind!r}. TimeLimitHook expects preempted or stopped."
            )
        if self._kept_free is not None and self._kept_free >= self._seconds:
            raise UsageError(
                f"invalid margin={self.margin!r}. TimeLimitHook expects less than limit."
            )

    @hookbus.hookimpl(tryfirst=True)
    def begin(self, clock: Callable[[], float]) -> None:
        """Start the time, and take the clock that measures steps."""
        self._clock, self._began = clock, time.monotonic()

    def after_create_session(self, session: hookbus.Session) -> None:
        """Measure steps from here, at the start and after a recovery."""
        self._trained = self._clock(), session.global_step

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the moment to stop; it is asked again after each save."""
        return hookbus.Due(time=self._end())

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop if the next step and a checkpoint would not fit in."""
        if self._trained is not None and run_values.global_step > self._trained[1]:
            since, step = self._trained
            self._step_time = (self._clock() - since) / (run_values.global_step - step)
        if time.monotonic() >= self._end():
            run_context.request_stop(f"the time limit of {self.limit} is near", self.kind)

    @hookbus.hookimpl(tryfirst=True)
    def before_save(self) -> None:
        """Note when a save begins."""
        self._save_began = time.monotonic()

    @hookbus.hookimpl(trylast=True)
    def after_save(self) -> None:
        """Note how long the save took."""
        self._save_time = max(self._save_time, time.monotonic() - self._save_began)

    def _end(self) -> float:
        learned = 2 * self._save_time + self._step_time
        return self._began + self._seconds - (self._kept_free or learned)
