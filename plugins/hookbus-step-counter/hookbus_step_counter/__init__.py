"""Measures and logs the speed of training, in steps per second."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

import hookbus
from hookbus import (
    SecondOrStepTimer,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.validation import numeric

_MOST_WARNINGS = 5


@attrs.define(eq=False)
class StepCounterHook(SessionRunHook):
    """Logs the steps per second, and emits them as ``measured`` for other hooks.

    The first run only starts the clock, which stands still during evaluations, saves and
    runs of another kind.

    Args:
        every_n_steps: steps between two measurements.
        every_n_secs: seconds between two measurements. In code, also give
            ``every_n_steps=None``.

    Raises:
        UsageError: neither or both periods are given.

    >>> from hookbus import hookimpl
    >>> from hookbus.testing import run_steps
    >>> class PrintHook:
    ...     @hookimpl
    ...     def measured(self, values, global_step):
    ...         print(global_step, sorted(values))
    >>> _ = run_steps(StepCounterHook(every_n_steps=2), PrintHook(), steps=5)
    3 ['global_step/sec']
    5 ['global_step/sec']
    """

    options = hookbus.HookOptions(
        exclusive_settings=(("every_n_steps", "every_n_secs"),),
        only_observes=True,
        ranks="chief",
        can_wait=True,
    )

    every_n_steps: int | None = attrs.field(default=100, validator=numeric(above=0))
    every_n_secs: float | None = attrs.field(default=None, validator=numeric(least=0))
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, init=False)
    _measured: float = attrs.field(default=0.0, init=False)
    _ran: bool = attrs.field(default=False, init=False)
    _stands: bool = attrs.field(default=False, init=False)
    _warnings: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        if (self.every_n_steps is None) == (self.every_n_secs is None):
            raise UsageError(
                "exactly one of every_n_steps and every_n_secs should be provided."
            )
        self._timer = SecondOrStepTimer(self.every_n_secs, self.every_n_steps)

    def begin(self, clock: Callable[[], float]) -> None:
        """Begin to measure this session only."""
        self._clock = clock
        self._timer.reset()

    def after_create_session(self) -> None:
        """Accept that the first run of a new backend session repeats a step."""
        self._ran = False

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due | None:
        """Wait for the next measurement, unless the last run trained nothing."""
        return None if self._stands else self._timer.next_due()

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Measure the speed if a measurement is due."""
        step = run_values.global_step
        # The first run of a backend session may be one that repeats a step.
        self._stands = step == run_context.global_step
        if self._ran and self._stands:
            self._warn(step)
        self._ran = True
        if not self._timer.should_trigger_for_step(step):
            return
        now = self._clock()
        _, steps = self._timer.update_last_triggered_step(step)
        seconds, self._measured = now - self._measured, now
        if steps is None or not seconds:
            return
        rate = steps / seconds
        hookbus.log.info("speed", step=step, steps_per_sec=float(f"{rate:.4g}"))
        run_context.emit("measured", values={"global_step/sec": rate}, global_step=step)

    def _warn(self, step: int) -> None:
        """Warn about a run that trained nothing, a few times at most."""
        if self._warnings < _MOST_WARNINGS:
            self._warnings += 1
            hookbus.log.warning(
                "the global step has not been increased by a run: is a train op fetched?",
                step=step,
            )
