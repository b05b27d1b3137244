"""Adds up a sweep over learning rates: its losses, the best rate, a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import attrs

_SMOOTHING, _DIVERGED = 0.8, 4.0
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 360, 70, 50


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
    def smooth(self) -> Sequence[float]:
        """The running means of the losses, without a bias to 0."""
        mean, found = 0.0, []
        for number, loss in enumerate(self.losses, start=1):
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            found.append(mean / (1 - _SMOOTHING**number))
        return found

    @property
    def is_over(self) -> bool:
        """Whether all rates are tested, or the loss has grown beyond 4 times its lowest."""
        means = self.smooth
        diverged = bool(means) and not means[-1] <= _DIVERGED * min(means)  # NaN, too
        return diverged or len(means) == self.steps

    @property
    def best(self) -> float | None:
        """The rate at which the loss falls fastest, or None if it never falls."""
        means, found = self.smooth, list[tuple[float, float]]()
        for number, rate in enumerate(self.rates[: max(0, len(means) - 1)]):
            fall = means[number + 1] - means[number]
            if fall < -1e-9 * abs(means[number]):  # more than rounding
                found.append((fall, rate))
        return min(found)[1] if found else None

    def write(self, folder: Path) -> Path:
        """Write a table and a picture into a folder; return the path of the picture."""
        folder.mkdir(parents=True, exist_ok=True)
        rates = self.rates
        rows = [f"{rates[n]!r},{loss!r}\n" for n, loss in enumerate(self.losses)]
        (folder / "lr-finder.csv").write_text("lr,loss\n" + "".join(rows), "utf-8")
        path = folder / "lr-finder.svg"
        path.write_text(self.picture(), "utf-8")
        return path

    def picture(self) -> str:
        """Return the curve of the losses over the rates as SVG, with a line at the best.

        What lies above twice the first loss is cut off.
        """
        rates, means = self.rates, [m for m in self.smooth if math.isfinite(m)] or [0.0]
        low, high = min(means), min(max(means), max(2 * means[0], means[0]))
        bottom = _HEIGHT - _BOTTOM

        def across(rate: float) -> float:
            share = math.log(rate / self.low) / math.log(self.high / self.low)
            return _LEFT + share * (_WIDTH - _LEFT - 20)

        def down(mean: float) -> float:
            share = min(1.0, (mean - low) / (high - low or 1.0))
            return bottom - share * (bottom - 15)

        def text(x: float, y: float, words: str, more: str = "") -> str:
            return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'

        points = [(across(rates[n]), down(mean)) for n, mean in enumerate(means)]
        curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12" text-anchor="middle">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<polyline points="{curve}" fill="none" stroke="#1f77b4" stroke-width="2"/>',
            text((_LEFT + _WIDTH) / 2, _HEIGHT - 12, "learning rate"),
            *(text(_LEFT / 2, down(mean), f"{mean:.3g}") for mean in (low, high)),
        ]
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        powers = range(first, last + 1)
        lines += [text(across(10.0**n), bottom + 18, f"1e{n}") for n in powers]
        if self.best is not None:
            x, red = across(self.best), "#d62728"
            ends = f'x1="{x:.1f}" y1="26" x2="{x:.1f}" y2="{bottom}"'
            lines.append(f'<line {ends} stroke="{red}"/>')
            lines.append(text(x, 20, f"{self.best:.2g}", f'fill="{red}"'))
        return "\n".join([*lines, "</svg>", ""])
