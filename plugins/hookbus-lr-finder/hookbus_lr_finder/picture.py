"""Writes the losses of a sweep over learning rates as a table, and draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 360, 70, 50


def write(
    folder: Path,
    rates: Sequence[float],
    losses: Sequence[float],
    means: Sequence[float],
    best: float | None,
) -> Path:
    """Write a table and a picture into a folder, which is created if needed.

    Returns:
        The path of the picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{rates[n]!r},{loss!r}\n" for n, loss in enumerate(losses)]
    path = folder / "lr-finder.svg"
    for file, text in (
        (folder / "lr-finder.csv", "lr,loss\n" + "".join(rows)),
        (path, picture(rates, means, best)),
    ):
        # A link in its place would lead the writer elsewhere.
        file.unlink(missing_ok=True)
        file.write_text(text, "utf-8")
    return path


def picture(rates: Sequence[float], means: Sequence[float], best: float | None) -> str:
    """Return the curve of the mean losses over the rates as SVG, with a line at the best.

    Losses above the first one by more than its size are cut off.

    Args:
        rates: all learning rates, tested or not.
        means: the mean loss at each rate that was tested.
        best: the suggested rate, if there is one.
    """
    means = [mean for mean in means if math.isfinite(mean)] or [0.0]
    low, high = min(means), min(max(means), means[0] + abs(means[0]))
    bottom = _HEIGHT - _BOTTOM

    def across(rate: float) -> float:
        share = math.log(rate / rates[0]) / math.log(rates[-1] / rates[0])
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
    first, last = math.ceil(math.log10(rates[0])), math.floor(math.log10(rates[-1]) + 1e-9)
    powers = range(first, last + 1)
    lines += [text(across(10.0**n), bottom + 18, f"1e{n}") for n in powers]
    if best is not None:
        x, red = across(best), "#d62728"
        ends = f'x1="{x:.1f}" y1="26" x2="{x:.1f}" y2="{bottom}"'
        lines.append(f'<line {ends} stroke="{red}"/>')
        lines.append(text(x, 20, f"{best:.2g}", f'fill="{red}"'))
    return "\n".join([*lines, "</svg>", ""])
