"""Writes the table of docs/how-to/callbacks.md: where the tests train with each callback.

    python docs/callbacks_table.py

The rows are those that the tests run. Needs the packages of tests/requirements.txt, and
the plugins.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "callbacks.md"
BEGIN, END = "<!-- docs/callbacks_table.py writes this -->\n", "<!-- until here -->"
SITES = {
    "numpy-graph": "`Graph`",
    "torch-graph": "`TorchGraph`",
    "numpy-loop": "loop with NumPy",
    "torch-loop": "loop with PyTorch",
}


def table() -> str:
    """Return the table, and below it the reasons that its cells name."""
    sys.path.insert(0, str(ROOT))
    from tests.support.callbacks import ROWS

    reasons: list[str] = []

    def noted(word: str, reason: str) -> str:
        if not reason:
            return word
        if reason not in reasons:
            reasons.append(reason)
        return f"{word} ({reasons.index(reason) + 1})"

    lines = [["Callback", *SITES.values()], ["---"] * (1 + len(SITES))]
    for row in ROWS:
        cells = [f"[{row.title}]({row.link})"]
        for site in SITES:
            if site in row.void:
                cells.append(noted("no", row.void[site]))
            elif row.once:
                cells.append(noted("once", row.once))
            else:
                cells.append(noted("yes", row.notes.get(site, "")))
        lines.append(cells)
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    below = "".join(f"{number}. {why}.\n" for number, why in enumerate(reasons, start=1))
    return f"\n{text}\n{below}\n"


def page(text: str) -> str:
    """Return the text of the page with the table of today between the two marks."""
    marked = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    written = table()
    text, count = marked.subn(lambda _: written, text)
    if count != 1:
        raise SystemExit(f"{PAGE.name} lacks the lines {BEGIN!r} and {END!r}")
    return text


def main() -> None:
    """Write the table."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
