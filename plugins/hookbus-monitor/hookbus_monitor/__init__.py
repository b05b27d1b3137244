"""Records norms of parameters, gradients and other values that match patterns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import numpy as np

import hookbus
from hookbus import SecondOrStepTimer, SessionRunArgs, SessionRunContext, SessionRunValues
from hookbus.validation import numeric


@attrs.define(eq=False)
class MonitorHook(hookbus.SessionRunHook):
    """Logs norms of values, and emits them as ``measured`` for other hooks.

    It measures in the first run and then periodically, and fetches nothing in the other
    runs. Values that a run does not have are left out.

    Args:
        names: the names of the values, or patterns that match such names.
        every_n_steps: global steps between two measurements.
        mean: whether to also record the mean of each value.
        max: whether to also record the largest absolute number of each value.

    Raises:
        UsageError: no name is given.

    >>> from hookbus import hookimpl
    >>> from hookbus.testing import run_steps
    >>> class PrintHook:
    ...     @hookimpl
    ...     def measured(self, values, global_step):
    ...         print(global_step, values)
    >>> _ = run_steps(MonitorHook("w", every_n_steps=2), PrintHook(), steps=3)
    1 {'monitor/norm/w': 0.0}
    3 {'monitor/norm/w': 3.0}
    """

    options = hookbus.HookOptions(only_observes=True, ranks="all")

    names: Sequence[str] | str
    every_n_steps: int = attrs.field(default=100, validator=numeric(above=0))
    mean: bool = False
    max: bool = False
    _request: SessionRunArgs = attrs.field(init=False)
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _increment: int = attrs.field(default=1, init=False)
    _is_chief: bool = attrs.field(default=True, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        names = [self.names] if isinstance(self.names, str) else [*self.names]
        if not names:
            raise hookbus.UsageError("monitor has nothing to measure: name values.")
        self._request = SessionRunArgs({name: name for name in names}, missing="skip")
        self._timer = SecondOrStepTimer(every_steps=self.every_n_steps)

    def begin(self, rank: int) -> None:
        """Emit in one process; the others help to read values of which each has a part."""
        self._is_chief = rank == 0
        self._timer.reset()

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the next measurement."""
        return self._timer.next_due()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the values when they are due."""
        step = run_context.global_step + self._increment
        return self._request if self._timer.should_trigger_for_step(step) else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Measure the values if they are due."""
        step, given = run_values.global_step, run_values.results
        self._increment = step - run_context.global_step or self._increment
        if given is None:
            return
        self._timer.update_last_triggered_step(step)
        values = {}
        for name, array in _arrays_in(given) if self._is_chief else ():
            values[f"monitor/norm/{name}"] = float(np.linalg.norm(array))
            if self.mean:
                values[f"monitor/mean/{name}"] = float(array.mean())
            if self.max:
                values[f"monitor/max/{name}"] = float(abs(array).max())
        if values:
            shown = {n.removeprefix("monitor/"): _short(v) for n, v in values.items()}
            hookbus.log.info("monitored", step=step, values=shown)
            run_context.emit("measured", values=values, global_step=step)
        elif self._is_chief and not self._has_warned:
            self._has_warned = True
            why = f"no number of the run matches {', '.join(self._request.fetches)}"
            hint = "see hookbus run --names"
            hookbus.log.warning("nothing to measure", why=why, hint=hint, by="monitor")

    state_form: ClassVar[Any] = SecondOrStepTimer.state_form

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last measurement."""
        return self._timer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Continue the period of a session that was cut short."""
        self._timer.load_state_dict(state, ended)


def _arrays_in(given: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield flat arrays by name, of nested values, and of what a pattern matches."""
    for key, value in given.items():
        is_pattern = not prefix and any(special in key for special in "*?[")
        name = f"{prefix}{key}"
        if isinstance(value, list | tuple | dict):
            inside = value if isinstance(value, dict) else dict(enumerate(value))
            yield from _arrays_in(inside, "" if is_pattern else f"{name}/")
        elif np.asarray(value).dtype.kind in "iufc" and np.size(value):
            array = np.abs(value) if np.iscomplexobj(value) else value
            yield name, np.asarray(array, np.float64).ravel()


def _short(number: float) -> float:
    return float(f"{number:.4g}")
