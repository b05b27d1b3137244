"""Draws the plots of the documentation: lines over the number of hooks.

Needs benchmarks/requirements.txt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

COLORS = 10

mpl.rcParams.update(
    {
        "font.family": "sans-serif",
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "hookbus",  # the same lines give the same file
    }
)


@attrs.frozen
class Line:
    """A line of a plot.

    Attributes:
        name: what it shows.
        x, y: its points.
        stands_out: whether it is drawn bold.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    stands_out: bool = False


@attrs.frozen
class Panel:
    """One of several plots side by side."""

    title: str
    lines: Sequence[Line]


def save(path: Path, panels: Sequence[Panel], x: str, y: str, powers: bool = True) -> None:
    """Draw the panels into an SVG file.

    Args:
        path: the file.
        panels: what to draw; their y axes are the same.
        x: the name of the x axis.
        y: the name of the y axis.
        powers: whether both axes show powers; if not, the y axis begins at 0.
    """
    figure = Figure(figsize=(5.4 * len(panels), 5.4), layout="constrained")
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    plots = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(plots, panels, strict=True):
        for line in panel.lines:
            place, width = names.index(line.name), 2.8 if line.stands_out else 1.2
            axes.plot(
                line.x,
                line.y,
                "o-" if place < COLORS else "o--",
                color=f"C{place % COLORS}",
                linewidth=width,
                markersize=width + 1.5,
                label=line.name,
            )
        if powers:
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_xscale("symlog", linthresh=1)
            axes.set_ylim(bottom=0)
        axes.set(title=panel.title, xlabel=x, xticks=panel.lines[0].x)
        axes.grid(alpha=0.3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_locator(NullLocator())
    plots[0].set_ylabel(y)
    figure.legend(
        *plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    figure.savefig(path, metadata={"Date": None, "Creator": None})
