"""Judges whether the values seen so far are a reason to stop."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus import UsageError
from hookbus.validation import number_in


@attrs.frozen
class Mode:
    """One way to judge values.

    Attributes:
        better: returns whether a value is strictly better than another one.
        limit: the setting that the mode needs.
        word: the word for it in messages.
    """

    better: Callable[[float, float], bool]
    limit: str
    word: str


MODES = {
    "no_decrease": Mode(operator.lt, "patience", "decrease"),
    "no_increase": Mode(operator.gt, "patience", "increase"),
    "higher": Mode(operator.gt, "threshold", "higher"),
    "lower": Mode(operator.lt, "threshold", "lower"),
}


@attrs.define(eq=False)
class Rule:
    """Judges the values of one metric.

    It keeps the best value, its step, and the longest time without a better one. Each
    verdict follows from these alone, so that a resumed session with another limit follows
    that limit.

    Args:
        metric: the name of the metric.
        mode: one of MODES.
        patience: the number of steps without a better value after which to stop.
        threshold: the value beyond which to stop.
        min_steps: the step before which values are ignored.

    Raises:
        UsageError: the mode does not exist, or its limit is missing or invalid.
    """

    metric: str
    mode: str
    patience: int | None = None
    threshold: float | None = None
    min_steps: int = 0
    _best: float | None = attrs.field(default=None, init=False)
    _best_step: int = attrs.field(default=0, init=False)
    _longest: int = attrs.field(default=-1, init=False)

    def __attrs_post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"invalid mode={self.mode!r}; expected {' or '.join(MODES)}.")
        for limit in ("patience", "threshold"):
            given = getattr(self, limit) is not None
            if given != (limit == MODES[self.mode].limit):
                verb = "does not take" if given else "needs"
                raise UsageError(f"mode={self.mode} {verb} {limit}.")
        if self.patience is not None and not self.patience >= 0:
            raise UsageError(f"invalid patience={self.patience}.")
        if self.threshold is not None and self.threshold != self.threshold:
            raise UsageError(f"invalid threshold={self.threshold}.")

    def take(self, value: float, step: int) -> None:
        """Add a value. A first NaN counts as the best value; a later one is never better.

        No value is better than NaN either, as in TensorFlow. NaN is beyond no threshold.
        """
        mode = MODES[self.mode]
        if step < self.min_steps or (self.threshold is not None and value != value):
            return
        if self._best is None or mode.better(value, self._best):
            self._best, self._best_step = value, step
        self._longest = max(self._longest, step - self._best_step)

    @property
    def reason(self) -> str | None:
        """The reason to stop, or None."""
        mode = MODES[self.mode]
        if self._best is None:
            return None
        if self.patience is not None and self._longest >= self.patience:
            steps = f"{self._longest} steps, and the patience is {self.patience}"
            return f"no {mode.word} in {self.metric} for {steps}"
        if self.threshold is not None and mode.better(self._best, self.threshold):
            where = f"{self.metric} was {self._best:g} at step {self._best_step}"
            return f"{where}, {mode.word} than the threshold {self.threshold:g}"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the history."""
        return {
            "best": self._best,
            "best_step": self._best_step,
            "longest": self._longest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a history of the same metric and mode."""
        self._best, self._best_step = state["best"], state["best_step"]
        self._longest = state["longest"]


def number(value: Any, metric: str) -> float:
    """Turn a number, or an array of any library that holds one, into a float.

    Raises:
        UsageError: the value is neither.
    """
    found = number_in(value)
    if found is not None:
        return found
    shape = tuple(getattr(value, "shape", ()))
    raise UsageError(
        f"early-stopping: {metric!r}, named by the setting metric, is not a number (type "
        f"{type(value).__name__}, shape {shape})"
    )
