"""Draws the packages of hookbus and who imports whom, into CONTRIBUTING.md.

    python docs/house_picture.py

The picture comes from the imports themselves. An arrow is left out where a longer way leads
to the same place: what it would add is seen already. Needs the packages of
tests/requirements.txt.
"""

from __future__ import annotations

import re
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- docs/house_picture.py writes this -->\n", "<!-- until here -->"
PACKAGE = "hookbus"
DOORS = ("__main__", "commands", "evaluating", "evaluation", "learning", "metrics")
LEFT_OUT = {f"hookbus.{door}" for door in DOORS}  # not rooms

Graph = dict[str, set[str]]


def imports() -> Graph:
    """Return each package and each module at the top of hookbus, with what it imports."""
    graph = grimp.build_graph(PACKAGE)
    rooms = graph.find_children(PACKAGE) - LEFT_OUT
    found: Graph = {room: set() for room in rooms}
    for room in rooms:
        inside = {room, *graph.find_descendants(room)}
        reached = {
            m for one in inside for m in graph.find_modules_directly_imported_by(one)
        }
        tops = {".".join(module.split(".")[:2]) for module in reached}
        found[room] = tops & rooms - {room}
    return found


def reduced(graph: Graph) -> Graph:
    """Leave out each arrow whose end is reached by a longer way."""

    def reach(start: str) -> set[str]:
        return graph[start].union(*map(reach, graph[start]))

    return {
        room: below - {far for near in below for far in reach(near)}
        for room, below in graph.items()
    }


def mermaid(graph: Graph) -> str:
    """Return the picture in Mermaid's language, which forges draw."""
    names = {room: room.removeprefix(f"{PACKAGE}.") for room in graph}
    lines = ["flowchart TD"]
    for room in sorted(graph):
        is_package = (ROOT / PACKAGE / names[room]).is_dir()
        label = f"{names[room]}/" if is_package else f"{names[room]}.py"
        lines.append(f'    {names[room]}["{label}"]')
    for room in sorted(graph):
        lines += [f"    {names[room]} --> {names[below]}" for below in sorted(graph[room])]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def page(text: str) -> str:
    """Return the text of a page with the picture of today between the two marks."""
    marked = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    picture = mermaid(reduced(imports()))
    text, count = marked.subn(lambda _: picture, text)
    if count != 1:
        raise SystemExit(f"{PAGE.name} lacks the lines {BEGIN!r} and {END!r}")
    return text


def main() -> None:
    """Write the picture."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
