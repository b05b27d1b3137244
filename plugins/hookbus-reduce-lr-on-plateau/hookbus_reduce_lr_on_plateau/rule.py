"""Finds the value of a check, and decides when it does not improve for too long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

import hookbus
from hookbus.validation import number_in

NAME = "reduce-lr-on-plateau"


def metric_in(metrics: Mapping[str, Any], metric: str) -> float:
    """Return the number that a check is about.

    Raises:
        UsageError: there is no such metric, or it is not a number.
    """
    if metric not in metrics:
        found = ", ".join(map(repr, metrics)) or "none"
        mistake = f"the evaluation has no metric {metric!r}; it has {found}"
    else:
        value = number_in(metrics[metric])
        if value is not None:
            return value
        kind = type(metrics[metric]).__name__
        mistake = f"{metric!r} is not a single number (type {kind})"
    raise hookbus.UsageError(f"{NAME}: {mistake}. Name another with --{NAME}-metric")


@attrs.define
class Plateau:
    """Counts checks without a better value, like PyTorch's ``ReduceLROnPlateau``.

    NaN is never better than another value, and neither is the worst infinity, with which
    the best value begins.

    >>> plateau = Plateau(False, 1, 0.0, 0)
    >>> [plateau.take(value) for value in (3.0, 2.0, 2.0, float("nan"), 1.0)]
    [False, False, False, True, False]
    """

    higher_is_better: bool
    patience: int
    threshold: float
    cooldown: int
    best: float = attrs.field()
    bad: int = 0
    cooling: int = 0

    @best.default
    def _worst(self) -> float:
        return -math.inf if self.higher_is_better else math.inf

    def take(self, value: float) -> bool:
        """Take the value of a check; return whether the plateau has lasted too long."""
        if self._is_better(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad <= self.patience:
            return False
        self.cooling, self.bad = self.cooldown, 0
        return True

    def _is_better(self, value: float) -> bool:
        if self.higher_is_better:
            return value > self.best * (1.0 + self.threshold)
        return value < self.best * (1.0 - self.threshold)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the counts."""
        return {"best": self.best, "bad": self.bad, "cooling": self.cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.best, self.bad, self.cooling = state["best"], state["bad"], state["cooling"]
