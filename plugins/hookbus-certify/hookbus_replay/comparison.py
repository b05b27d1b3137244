"""Compares a checkpoint of a replay with that of the training, and words what differs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus import Difference, HookOptions, compare_checkpoints

_BESIDE = ("settings", "owners", "rollbacks", "params")
"""Parts from which nothing is computed."""
_MOST_FILES = 5
WRITER = "summary-saver"
"""The plugin that may write where the program says, so a replay has it off."""


@attrs.frozen
class Comparison:
    """The result of a comparison of two checkpoints of one step.

    Attributes:
        differences: those that a replay should not have, the first one first.
        has_other_params: whether the program has recorded other hyperparameters.
        missing: the hooks with a state that only the training had.
        added: the hooks with a state that only the replay has.
    """

    differences: Sequence[Difference]
    has_other_params: bool = False
    missing: Sequence[str] = ()
    added: Sequence[str] = ()


def compared(
    stored: str | Path, replayed: str | Path, watching: Collection[str]
) -> Comparison:
    """Compare a checkpoint of the training with that of its replay.

    A replay may have other plugins on, so the states that only one of the two has do not
    count, nor do those of hooks that only watch: they may hold the time since a report.

    Args:
        stored: the checkpoint of the training.
        replayed: that of the replay.
        watching: the names of the hooks that only watch.

    Raises:
        NoGoodCheckpointError: one of them is damaged.
        CheckpointError: one of them does not exist, or cannot be read.
    """
    found = compare_checkpoints(stored, replayed)
    hooks = [each for each in found if _part(each) == "hooks"]
    return Comparison(
        [each for each in found if _counts(each, watching)],
        any(_part(each) == "params" for each in found),
        [
            each.name or ""
            for each in hooks
            if each.kind == "only in a" and each.name != WRITER
        ],
        [each.name or "" for each in hooks if each.kind == "only in b"],
    )


def only_watch(members: Mapping[str, Any]) -> set[str]:
    """Return the names of those hooks of a session that change nothing in it."""
    found = set()
    for name, member in members.items():
        options = getattr(member.plugin, "options", None)
        if isinstance(options, HookOptions) and (options.only_observes or options.can_wait):
            found.add(name)
    return found


def _part(difference: Difference) -> str:
    """Return the part of a checkpoint, without the rank."""
    return difference.part.rpartition("/")[2]


def _counts(difference: Difference, watching: Collection[str]) -> bool:
    part = _part(difference)
    if part == "hooks":
        return difference.kind == "state" and difference.name not in watching
    if part == "random":  # of a library that the replay alone has imported
        return difference.kind != "only in b"
    return part not in _BESIDE


def worded(difference: Difference) -> str:
    """Return a difference in words."""
    place = f"{difference.part}/{difference.name}" if difference.name else difference.part
    if difference.kind == "only in a":
        return f"{place} is in the training only"
    if difference.kind == "only in b":
        return f"{place} is in the replay only"
    if difference.kind == "form":
        return f"{place} was {difference.one}, and is {difference.other}"
    if difference.kind == "state":
        return f"{place} has another state"
    if difference.elements == 1 and difference.one is not None:
        return f"{place} was {difference.one}, and is {difference.other}"
    of = f"{difference.different} of {difference.elements} elements"
    if difference.largest is None:
        return f"{place} differs in {of}"
    return f"{place} differs by up to {difference.largest:g} in {of}"


def changed_since(time: float) -> list[str]:
    """Return the files of the program that were changed since a time.

    These are the script and the modules in its folder, without installed ones.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None:
        return []
    folder, found = Path(script).absolute().parent, list[str]()
    for module in [*sys.modules.values()]:
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or "site-packages" in name:
            continue
        path = Path(name).absolute()
        if folder not in path.parents or not path.is_file():
            continue
        if path.stat().st_mtime > time:
            found.append(str(path.relative_to(folder)))
    return sorted(set(found))[:_MOST_FILES]
