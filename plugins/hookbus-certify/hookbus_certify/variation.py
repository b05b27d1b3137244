"""Finds out by experiments why two uninterrupted runs of a script differ.

Each experiment fixes one thing for some runs, like the order of hashes or the clock. If
they are equal then, that is the likely cause.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus_certify.running import Ran
from hookbus_certify.states import Comparison, Unequal
from hookbus_certify.trials import Examiner, Reference

_RUNS = 3
"""How many runs must be equal, as two may be by chance."""
_MORE = 20
"""How many steps after the first one that differs are run; one may be equal by chance."""
_MOST_BYTES, _MOST_FILES = 200 * 2**20, 5000
"""The size of a working folder that is copied for an experiment."""
# Those with threads come first: what they decide may be equal by chance under the others.
_CAUSES: Mapping[str, str] = {
    "draws": "a thread draws from a global random generator while the training does (the "
    "runs are equal if threads have generators of their own)",
    "in-turn": "threads finish in another order from run to run, and the result depends "
    "on it, like a sum in the order of completion (the runs are equal if they run in turn)",
    "one-thread": "a library computes differently from run to run, in several threads (the "
    "runs are equal with OMP_NUM_THREADS=1)",
    "hash": "a set or a dict is used in hash order, which differs from start to start "
    "(the runs are equal with PYTHONHASHSEED=0); sort it",
    "clock": "the time is used as a seed or as a value (the runs are equal with a fixed "
    "clock)",
}


@attrs.define(eq=False)
class WorkingFolder:
    """The folder in which the script runs, as it was before its first run.

    Attributes:
        folder: the folder.
        copy: a copy of it; None if it is too large.
    """

    folder: Path
    copy: Path | None
    _before: Mapping[str, tuple[int, int]]

    @classmethod
    def kept(cls, folder: Path, copy: Path) -> WorkingFolder:
        """Keep a copy of a folder, unless it is large."""
        files = _files(folder)
        size = sum(size for size, _ in files.values())
        if size > _MOST_BYTES or len(files) > _MOST_FILES:
            return cls(folder, None, files)
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(folder, copy, symlinks=True)
            return cls(folder, copy, files)
        return cls(folder, None, files)

    def changed(self) -> list[str]:
        """Return the files that are new or have changed."""
        now = _files(self.folder)
        return sorted(
            name for name, about in now.items() if self._before.get(name) != about
        )


@attrs.define(eq=False)
class Inquiry:
    """Makes the experiments about runs that differ.

    Attributes:
        examiner: starts the script.
        reference: the whole runs.
        folder: the working folder.
    """

    examiner: Examiner
    reference: Reference
    folder: WorkingFolder

    def variation(self, found: Unequal) -> tuple[Unequal, str]:
        """Return the first difference, and its likely cause."""
        changed = self.folder.changed()
        again = self._run("uninterrupted, states kept")
        between = self._between([self.reference.whole, again])
        first = between or found
        fresh: list[Ran] = []
        if between is None and changed:
            fresh = self._in_fresh_folders(1)
            first = self._between([*fresh, again]) or first
        last = None if first.step is None else min(first.step + _MORE, self.reference.last)
        if last == self.reference.last:
            last = None
        known = fresh if last is None else []
        more = self._in_fresh_folders(_RUNS - len(known), last) if changed else []
        if changed and self._between([*known, *more]) is None:
            named = ", ".join(changed[:3])
            return first, (
                f"the script leaves files in its folder, and a later start uses them: "
                f"{named} (the runs are equal if each has a fresh copy of the folder)"
            )
        for condition, cause in _CAUSES.items():
            if self._are_equal_with(condition, last):
                return first, cause
        return first, (
            "not found: the runs differ also with a fixed hash order, a fixed clock and "
            "threads in turn, so a library may compute differently from run to run"
        )

    def _are_equal_with(self, condition: str, last: int | None) -> bool:
        """Return whether runs are equal if something is fixed."""
        runs: list[Ran] = []
        for _ in range(_RUNS):
            runs.append(self._run(f"with {condition} fixed", [condition], last))
            if runs[-1].code != 0 or (runs[1:] and self._between(runs) is not None):
                return False
        return True

    def _run(
        self, what: str, conditions: Sequence[str] = (), last: int | None = None
    ) -> Ran:
        orders: dict[str, Any] = {} if last is None else {"last": last}
        return self.examiner.runner.run(
            what, conditions=conditions, traced=self.reference.steps, **orders
        )

    def _in_fresh_folders(self, count: int, last: int | None = None) -> list[Ran]:
        """Return runs that find the working folder as it was before the first one."""
        runs, runner = [], self.examiner.runner
        if self.folder.copy is None:
            return []
        for _ in range(count):
            cwd = runner.copied(self.folder.copy)
            orders: dict[str, Any] = {} if last is None else {"last": last}
            what = "in a fresh copy of the folder"
            runs.append(runner.run(what, cwd=cwd, traced=self.reference.steps, **orders))
        return runs

    def _between(self, runs: Sequence[Ran]) -> Unequal | None:
        """Return the first difference of some runs from the first of them."""
        if len(runs) < 2:
            return Unequal(None, "no runs")
        comparison, (one, *others) = Comparison(), runs
        for other in others:
            comparison.ignore(one.folder, other.folder)
            found = comparison.states(one.folder, other.folder)
            if found is not None:
                return found
        return None


def variation_of(
    found: Unequal, examiner: Examiner, reference: Reference, folder: WorkingFolder
) -> tuple[Unequal, str]:
    """Return the first difference of two whole runs, and its likely cause."""
    return Inquiry(examiner, reference, folder).variation(found)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of each file below a folder, of so many at most."""
    found: dict[str, tuple[int, int]] = {}
    for path in folder.rglob("*"):
        if "__pycache__" in path.parts or len(found) > _MOST_FILES:
            continue
        with contextlib.suppress(OSError):
            about = path.lstat()
            if not path.is_dir():
                found[str(path.relative_to(folder))] = about.st_size, about.st_mtime_ns
    return found
