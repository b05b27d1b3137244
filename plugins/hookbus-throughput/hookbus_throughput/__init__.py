"""Measures steps and examples per second, waiting for input, and device memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

import hookbus
from hookbus import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookbus.backend import device_memory
from hookbus.validation import number_in, numeric

_ABOVE_0, _LEAST_0 = (
    numeric(above=0),
    numeric(least=0),
)


@attrs.define(eq=False)
class ThroughputHook(SessionRunHook):
    """Logs the speed of training, and emits it as ``measured`` for other hooks.

    A measurement takes two runs: the time between them, and in the inputs of the second
    one, is the time waited for input. No other run is noticed. The clock stands still
    during evaluations, saves and runs of another kind.

    Args:
        every_n_steps: steps between two measurements.
        every_n_secs: seconds between two measurements. In code, also give
            ``every_n_steps=None``.
        batch_size: the examples in a step: a number, or the name of a node or reported
            value that is this number, or whose first axis is the batch.

    Raises:
        UsageError: neither or both periods are given, or a number is not above 0.

    >>> from hookbus import hookimpl
    >>> from hookbus.testing import run_steps
    >>> class PrintHook:
    ...     @hookimpl
    ...     def measured(self, values, global_step):
    ...         print(global_step, *sorted(values), sep=", ")
    >>> _ = run_steps(ThroughputHook(every_n_steps=2, batch_size=32), PrintHook(), steps=3)
    3, throughput/examples_per_sec, throughput/input_wait, throughput/steps_per_sec
    """

    options = hookbus.HookOptions(
        exclusive_settings=(("every_n_steps", "every_n_secs"),),
        only_observes=True,
        ranks="chief",
    )
    every_n_steps: int | None = attrs.field(default=100, validator=_ABOVE_0)
    every_n_secs: float | None = attrs.field(default=None, validator=_LEAST_0)
    batch_size: int | str | None = None
    _request: SessionRunArgs = attrs.field(init=False)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, init=False)
    _last: tuple[float, int] | None = attrs.field(default=None, init=False)
    _next: float = attrs.field(default=0.0, init=False)
    _is_next: bool = attrs.field(default=False, init=False)
    _increment: int = attrs.field(default=1, init=False)
    _left: float | None = attrs.field(default=None, init=False)
    _entered: float = attrs.field(default=0.0, init=False)
    _is_measured: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if (self.every_n_steps is None) == (self.every_n_secs is None):
            raise hookbus.UsageError(
                "exactly one of every_n_steps and every_n_secs should be provided."
            )
        named = self.batch_size if isinstance(self.batch_size, str) else None
        if named is None:
            _ABOVE_0(self, attrs.fields(type(self)).batch_size, self.batch_size)
        self._request = SessionRunArgs(named, options=hookbus.RunOptions(trace_level=1))

    def begin(self, clock: Callable[[], float]) -> None:
        """Take the clock of the session."""
        self._clock = clock

    def after_create_session(self) -> None:
        """Start the clock with the next run."""
        self._last, self._left, self._is_next = None, None, False

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the run before the next measurement, or for the measurement."""
        if self._last is None or self._is_next:
            return hookbus.Due(runs=1)
        if self.every_n_steps is None:
            return hookbus.Due(time=self._next)
        return hookbus.Due(self._last[1] + self.every_n_steps - self._increment)

    def before_run(self) -> SessionRunArgs | None:
        """Ask for the record of a measured run, which tells how long its inputs took."""
        self._entered = self._clock()
        return self._request if self._is_next else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Start the clock, or note when the next run begins to wait, or measure."""
        now, step = self._clock(), run_values.global_step
        if step == run_context.global_step:
            return  # it has not trained
        self._increment = step - run_context.global_step
        if self._last is None:
            self._start(step)
        elif self._is_next:
            values = self._measured(now, run_values)
            shown = {name: float(f"{value:.4g}") for name, value in values.items()}
            self._is_measured = True
            hookbus.log.info("throughput", step=step, **shown)
            named = {f"throughput/{name}": value for name, value in values.items()}
            run_context.emit("measured", values=named, global_step=step)
            self._start(step)
        self._left, self._is_next = self._clock(), False
        due = self.next_due()
        self._is_next = step >= due.step or time.monotonic() >= due.time

    def _start(self, step: int) -> None:
        """Begin the next measurement."""
        self._last = self._clock(), step
        self._next = time.monotonic() + (self.every_n_secs or 0.0)

    @hookbus.hookimpl
    def finished(self, outcome: hookbus.Outcome) -> None:
        """Warn if the session was over before the first measurement."""
        if self._last is None or self._is_measured or hookbus.resumes(outcome.kind):
            return
        periods = {"every_n_steps": self.every_n_steps, "every_n_secs": self.every_n_secs}
        given = {name: period for name, period in periods.items() if period is not None}
        hookbus.log.warning("nothing was measured", by="throughput", **given)

    def _measured(self, now: float, run_values: SessionRunValues) -> dict[str, float]:
        assert self._last is not None
        seconds, steps = now - self._last[0], run_values.global_step - self._last[1]
        values = {"steps_per_sec": steps / seconds} if seconds else {}
        given, is_named = self.batch_size, isinstance(self.batch_size, str)
        size: Any = _size_of(run_values.results) if is_named else given
        if size is not None and values:
            values["examples_per_sec"] = values["steps_per_sec"] * size
        if self._left is not None:
            inputs = [op for op in run_values.run_metadata.ops if op.kind == "input"]
            waited = self._entered - self._left + sum(op.seconds for op in inputs)
            values["input_wait"] = min(waited / max(now - self._left, 1e-9), 1.0)
        memory = sum(device_memory().values())
        return {**values, "device_memory": float(memory)} if memory else values


def _size_of(value: Any) -> float:
    """Return the length of the first axis; of a number, the number."""
    number = number_in(value) if getattr(value, "shape", ()) == () else None
    return len(value) if number is None else number
