"""Adds up a sweep over learning rates: its losses, its end, the best rate, a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

import hookbus
from hookbus import Session, UsageError
from hookbus.validation import number_in
from hookbus_lr_finder.picture import write

NAME = "lr-finder"
_SMOOTHING = 0.8


@attrs.define
class Sweep:
    """Learning rates from *low* to *high*, evenly spaced by their logarithms.

    Attributes:
        losses: the loss at each rate that is tested.
    """

    low: float
    high: float
    steps: int
    losses: list[float] = attrs.field(factory=list)

    @property
    def rates(self) -> Sequence[float]:
        """All rates, tested or not."""
        growth, last = self.high / self.low, self.steps - 1
        return [self.low * growth ** (number / last) for number in range(self.steps)]

    @property
    def next_rate(self) -> float:
        """The rate to test next."""
        return self.rates[len(self.losses)]

    @property
    def smooth(self) -> Sequence[float]:
        """The running means of the losses, without a bias to 0."""
        mean, found = 0.0, []
        for number, loss in enumerate(self.losses, start=1):
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            found.append(mean / (1 - _SMOOTHING**number))
        return found

    @property
    def is_over(self) -> bool:
        """Whether all rates are tested, or the loss has diverged.

        The loss has diverged when its running mean is not finite, or more than 4 times the
        lowest mean, as in fastai. If the lowest mean is not above 0, the mean has to rise
        by more than 3 times the largest size that it had until then.
        """
        means = self.smooth
        if not means or len(means) == self.steps:
            return bool(means)
        lowest = min(means)
        size = lowest if lowest > 0 else max(map(abs, means[: means.index(lowest) + 1]))
        return not math.isfinite(means[-1]) or means[-1] > lowest + 3 * size

    @property
    def best(self) -> float | None:
        """The rate at which the loss falls fastest, or None if it never falls."""
        means, found = self.smooth, list[tuple[float, float]]()
        for number, rate in enumerate(self.rates[: max(0, len(means) - 1)]):
            fall = means[number + 1] - means[number]
            if fall < -1e-9 * abs(means[number]):  # more than rounding
                found.append((fall, rate))
        return min(found)[1] if found else None

    def test(self, fork: Session, variable: str, loss: str, train_op: str) -> None:
        """Test the rates on a fork, until the sweep is over or the input ends.

        Raises:
            UsageError: the loss is not a number, or a placeholder is not fed.
        """
        try:
            while not self.is_over:
                fork.write({variable: self.next_rate})
                self.take(fork.run([loss, train_op])[0], loss)
        except (hookbus.OutOfRangeError, StopIteration):
            pass  # the report says so
        except hookbus.errors.UnfedPlaceholderError as error:
            fed = error.node
            raise UsageError(
                f"{NAME} runs {loss!r} and {train_op!r} by itself, where nobody feeds "
                f"{fed!r}: have the graph read it with graph.input({fed!r}, ...)"
            ) from error

    def take(self, found: Any, name: str) -> None:
        """Take the loss at the next rate, which is the value of the node *name*.

        Raises:
            UsageError: it is not a number.
        """
        loss = number_in(found)
        if loss is None:
            kind = f"{name!r} is not a single number (type {type(found).__name__})"
            raise UsageError(f"{NAME}: {kind}. Name another with --{NAME}-loss")
        self.losses.append(loss)

    def report(self, folder: Path, why: str) -> Path | None:
        """Log the best rate, and write the files; *why* is the reason for an early end.

        Returns:
            The path of the picture; None if no rate was tested.
        """
        best, tested = self.best, len(self.losses)
        if not self.is_over:
            more = {"tested": tested, "steps": self.steps, "why": why}
            hookbus.log.warning("not all learning rates tested", **more)
        if not tested:
            return None
        path = write(folder, self.rates, self.losses, self.smooth, best)
        lr = None if best is None else float(f"{best:.2g}")
        found = {"tested": tested, "lr": lr, "picture": str(path)}
        hookbus.log.info("learning rates tested", **found)
        return path
