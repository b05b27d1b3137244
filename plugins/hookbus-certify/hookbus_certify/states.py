"""Compares the states that two runs have saved, and finds the first that differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus import Difference, compare_checkpoints, list_checkpoints
from hookbus_certify.sharing import PREFIX

_ORDER = ("tracked", "variables", "random", "inputs", "hooks")
"""The parts of a checkpoint, those first whose difference tells most."""
_OF_THE_PLACE = ("passes", "start")
"""The parts that lead a resumed program to its place. A wrong place shows in values."""
_OWN = "certify-probe"


@attrs.frozen
class Unequal:
    """The first place where two runs differ.

    Attributes:
        step: the step of the first state that differs.
        leaf: the value in it, like ``tracked/model.w``, or what else differs.
        detail: how it differs, in words.
        count: how many values differ in that state.
    """

    step: int | None
    leaf: str
    detail: str = ""
    count: int = 1

    def __str__(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.leaf}{at}{detail}"


@attrs.define(eq=False)
class Comparison:
    """Compares runs with one uninterrupted run.

    Attributes:
        ignored: names of values of hooks that differ between two uninterrupted runs, like
            the seconds that have passed.
        compared: the number of states that were compared.
        left_out: the names of hooks whose states do not count.
    """

    ignored: set[str] = attrs.field(factory=set)
    compared: int = 0
    left_out: tuple[str, ...] = ()

    def states(
        self, one: Path, other: Path, hooks: bool = True, most: int | None = None
    ) -> Unequal | None:
        """Return the first difference of all states that two runs have saved.

        Args:
            one: the directory of checkpoints of the uninterrupted run.
            other: that of the other run.
            hooks: whether the states of hooks count.
            most: the last step to compare, of runs that may end at different ones.
        """
        here, there = steps_of(one), steps_of(other)
        for step in sorted({*here} & {*there}):
            if most is None or step <= most:
                found = self.pair(step, here[step], there[step], hooks)
                if found is not None:
                    return found
        if most is not None:
            return None
        last = max(here, default=None), max(there, default=None)
        if last[0] != last[1]:
            return Unequal(
                None, "global step", f"the last is {last[1]} instead of {last[0]}"
            )
        return None

    def pair(self, step: int, one: Path, other: Path, hooks: bool = True) -> Unequal | None:
        """Return how two checkpoints differ; None if they are equal."""
        self.compared += 1
        if _hashes(one) == _hashes(other):
            return None
        found = [d for d in compare_checkpoints(one, other, inside_hooks=True) if counts(d)]
        found = [d for d in found if self._is_compared(d) and (hooks or not _of_hook(d))]
        if not found:
            return None
        found.sort(key=lambda d: _rank(d.part))
        return Unequal(step, name_of(found[0]), detail_of(found[0]), len(found))

    def _is_compared(self, difference: Difference) -> bool:
        if self.left_out and difference.part in ("hooks", "settings"):
            hook = (difference.name or "").partition(".")[0]
            return difference.part == "hooks" and hook not in self.left_out
        return name_of(difference) not in self.ignored

    def ignore(self, one: Path, other: Path) -> None:
        """Ignore from now on what differs in hooks between two uninterrupted runs."""
        here, there = steps_of(one), steps_of(other)
        for step in {*here} & {*there}:
            if _hashes(here[step]) == _hashes(there[step]):
                continue
            for each in compare_checkpoints(here[step], there[step], inside_hooks=True):
                if each.part == "hooks" and counts(each):
                    self.ignored.add(name_of(each))


def steps_of(directory: Path) -> dict[int, Path]:
    """Return the checkpoints of a directory by step."""
    return {c.global_step: Path(c.path) for c in list_checkpoints(directory)}


def counts(difference: Difference) -> bool:
    """Return whether a difference is one of the script's values, and not of the probe."""
    if difference.part.rpartition("/")[2] in _OF_THE_PLACE:
        return False
    name = difference.name or ""
    is_probe = difference.part in ("hooks", "settings") and name.startswith(_OWN)
    return not is_probe and not name.startswith(PREFIX)


def name_of(difference: Difference) -> str:
    """Return the name of a difference, like ``tracked/model.w``."""
    named = difference.name is not None
    return f"{difference.part}/{difference.name}" if named else difference.part


def detail_of(difference: Difference) -> str:
    """Tell how large a difference is."""
    if difference.kind in ("only in a", "only in b"):
        where = "uninterrupted" if difference.kind == "only in a" else "other"
        return f"only in the {where} run"
    if difference.one is not None and difference.other is not None:
        return f"{difference.one} and {difference.other}"
    if difference.largest:
        return f"by up to {difference.largest:.3g}"
    return ""


def _of_hook(difference: Difference) -> bool:
    return difference.part.rpartition("/")[2] in ("hooks", "settings")


def _rank(part: str) -> int:
    part = part.rpartition("/")[2]
    return _ORDER.index(part) if part in _ORDER else len(_ORDER)


def _hashes(path: Path) -> Any:
    return json.loads((path / "manifest.json").read_text("utf-8"))["files"]


def contents_of(directory: Path) -> Mapping[str, bytes]:
    """Return the files of all checkpoints of a directory."""
    files = [p for p in directory.glob("ckpt-*/**/*") if p.is_file()]
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(files)}
