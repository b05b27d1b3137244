"""Writes the tables of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs


@attrs.frozen
class Marked:
    """The part of a page that a script writes: it stands between two marks.

    Attributes:
        path: the page.
        script: the script, as the first mark names it.
    """

    path: Path
    script: str

    def text(self, written: str) -> str:
        """Return the text of the page with this between the marks."""
        begin, end = f"<!-- {self.script} writes this -->\n", "<!-- until here -->"
        before, begun, rest = self.path.read_text("utf-8").partition(begin)
        _, ended, after = rest.partition(end)
        if not ended:
            raise SystemExit(f"{self.path} lacks the lines {begin!r} and {end!r}")
        return before + begun + written + ended + after

    def write(self, written: str) -> None:
        """Write this between the marks."""
        self.path.write_text(self.text(written), "utf-8")


def table(headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table in Markdown; the first column has the names of the rows."""
    lines = [["", *headings], ["---", *["---:"] * len(headings)]]
    lines += [[name, *cells] for name, cells in rows.items()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def number(value: float) -> str:
    """Return a number with two digits after the point, or fewer if it is large."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
