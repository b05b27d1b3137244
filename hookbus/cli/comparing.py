"""Shows how the contents of two checkpoints differ, to people and to programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookbus.checkpoint.reader import Restored
from hookbus.cli.output import table
from hookbus.logs import shown
from hookbus.saving.comparing import Difference

SCHEMA = 1
_COLUMNS = ("part", "name", "difference")


def lines_of(one: Restored, other: Restored, found: Sequence[Difference]) -> Iterator[str]:
    """Yield the lines that tell people what differs."""
    names = [_name_of(each) for each in (one, other)]
    if not found:
        yield f"{' and '.join(names)} are equal"
        return
    yield f"a is {names[0]}, b is {names[1]}"
    cells = [(each.part, each.name or "-", _text(each)) for each in found]
    yield from table(_COLUMNS, cells).splitlines()


def _name_of(restored: Restored) -> str:
    return f"{shown(restored.path)} (step {restored.manifest.global_step})"


def _text(found: Difference) -> str:
    if found.kind in ("only in a", "only in b"):
        form = found.one or found.other
        return f"{found.kind}: {form}" if form else found.kind
    if found.kind == "state":
        return "differs"
    if found.one is not None:
        far = "" if found.largest is None else f", apart by {found.largest:.6g}"
        return f"{found.one} and {found.other}{far}"
    if not found.different:
        return "equal numbers of other bits, like 0.0 and -0.0"
    count = f"{found.different} of {found.elements} elements"
    return count if found.largest is None else f"{count}, by up to {found.largest:.6g}"


def document(
    one: Restored, other: Restored, found: Sequence[Difference]
) -> Mapping[str, Any]:
    """Return the differences as one document for programs."""
    return {
        "schema": SCHEMA,
        **{
            key: {"path": str(each.path), "step": each.manifest.global_step}
            for key, each in (("a", one), ("b", other))
        },
        "equal": not found,
        "differences": [each.document() for each in found],
    }
