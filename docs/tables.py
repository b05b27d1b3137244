"""Writes the tables in pages whose rows are what the tests run.

    python docs/tables.py

Needs the packages of tests/requirements.txt, and the plugins.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- docs/tables.py writes this -->\n", "<!-- until here -->"
SITES = {
    "numpy-graph": "`Graph`",
    "torch-graph": "`TorchGraph`",
    "numpy-loop": "loop with NumPy",
    "torch-loop": "loop with PyTorch",
}
TRAINERS = {
    "lightning": "Lightning",
    "transformers": "HF Trainer",
    "keras": "Keras",
    "ignite": "Ignite",
}


class Reasons:
    """Numbers the reasons that the cells of a table name."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def noted(self, word: str, reason: str) -> str:
        """Return a cell: a word, with the number of its reason if it has one."""
        if not reason:
            return word
        if reason not in self._known:
            self._known.append(reason)
        return f"{word} ({self._known.index(reason) + 1})"

    def __str__(self) -> str:
        each = [f"{why[:1].upper()}{why[1:]}" for why in self._known]
        return "".join(f"{number}. {why}.\n" for number, why in enumerate(each, start=1))


def of_callbacks(reasons: Reasons) -> list[list[str]]:
    """Return where the tests train with each callback, as the rows of a table."""
    from tests.support.callbacks import ROWS

    def cell(row: Any, site: str) -> str:
        if site in row.void:
            return reasons.noted("no", row.void[site])
        if row.once:
            return reasons.noted("once", row.once)
        return reasons.noted("yes", row.notes.get(site, ""))

    cells = [[f"[{row.title}]({row.link})", *(cell(row, s) for s in SITES)] for row in ROWS]
    return [["Callback", *SITES.values()], *cells]


def of_trainers(reasons: Reasons) -> list[list[str]]:
    """Return the plugins that work in each trainer, as the rows of a table."""
    from tests.support.trainers import ROWS

    def cell(row: Any, trainer: str) -> str:
        refusal = row.refusal(trainer)
        return "yes" if refusal is None else reasons.noted("no", refusal[1])

    link = "[{0}](plugins/{0}.md)".format
    cells = [[link(row.plugin), *(cell(row, t) for t in TRAINERS)] for row in ROWS]
    return [["Plugin", *TRAINERS.values()], *cells]


PAGES = {
    ROOT / "docs" / "how-to" / "callbacks.md": of_callbacks,
    ROOT / "docs" / "reference" / "trainers.md": of_trainers,
}


def written(page: Path) -> str:
    """Return the text of a page with the table of today between the two marks."""
    sys.path.insert(0, str(ROOT))
    reasons = Reasons()
    first, *rest = PAGES[page](reasons)
    rows = [first, ["---"] * len(first), *rest]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    marked = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    table = f"\n{lines}\n{reasons}\n"
    text, count = marked.subn(lambda _: table, page.read_text("utf-8"))
    if count != 1:
        raise SystemExit(f"{page.name} lacks the lines {BEGIN!r} and {END!r}")
    return text


def main() -> None:
    """Write the tables."""
    for page in PAGES:
        page.write_text(written(page), "utf-8")
        print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
