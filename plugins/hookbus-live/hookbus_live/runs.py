"""Finds the runs below a folder, and shows each as its files tell it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from hookbus import list_checkpoints, log, verify_checkpoint
from hookbus.errors import HookbusError, text_of
from hookbus_live.series import Numbers, Series
from hookbus_live.sources import EVENTS, JOURNALS, METRICS, Source, sources_of

OUTCOME = "outcome.json"
MOST_RUNS = 500
"""How many runs are shown; more are left out, and the page says so."""
_DEEPEST = 6
_NAME = re.compile(r"ckpt-(\d+)(\.old|\.bad)?")
_MANIFEST = "manifest.json"
_FAILED = "failed"
_SILENT_SECS = 60.0
"""After so long without a change of its files a run is shown as silent."""
_LATE_SECS = 5.0
"""How much later than its outcome a finished run may still write its files."""
_SKIPPED = (_FAILED, JOURNALS, "__pycache__", "node_modules")
_REST_SECS = 1.0
_UNWATCHED_SECS = 15.0
_RATE_POINTS = 20


class Run(Protocol):
    """A run, as the page shows it."""

    @property
    def name(self) -> str:
        """Its name, which no other one has."""

    @property
    def version(self) -> int:
        """How often its values have changed."""

    @property
    def directory(self) -> Path | None:
        """The directory of its checkpoints."""

    def names(self) -> Iterable[str]:
        """Return the names of its values."""

    def curve(self, name: str, axis: str) -> tuple[Numbers, Numbers] | None:
        """Return positions and values by name; None without any."""

    def about(self) -> dict[str, Any]:
        """Return its entry for the list of all runs."""

    def details(self, parts: Collection[str]) -> dict[str, Any]:
        """Return the details that are shown of the training alone.

        Args:
            parts: which parts are looked at that cost something: ``checkpoints``,
                ``hooks``, ``log``.
        """


@attrs.define(eq=False)
class RunDirectory:
    """A run that is known from its directory.

    Attributes:
        directory: the directory.
        name: its name.
        is_read: whether all its files were read once.
    """

    directory: Path
    name: str
    is_read: bool = False
    _sources: list[Source] = attrs.field(init=False)
    _outcome: dict[str, Any] | None = None
    _changed_at: float = 0.0
    _changes: int = 0

    def __attrs_post_init__(self) -> None:
        self._sources = [*sources_of(self.directory)]

    @property
    def series(self) -> dict[str, Series]:
        """The points of each value; those that were read so far."""
        merged: dict[str, Series] = {}
        for source in reversed(self._sources):
            merged.update(source.values.series)
        return merged

    @property
    def version(self) -> int:
        """A number that changes with the values."""
        return self._changes + sum(source.values.count for source in self._sources)

    def refresh(self) -> None:
        """Read new lines and records of the files."""
        for source in self._sources:
            self._changes += source.refresh()
        changed_at, outcome = _newest_change(self.directory), self._read_outcome()
        if outcome is not None:
            ended_at = _changed_at(self.directory / OUTCOME)
            if changed_at > ended_at + _LATE_SECS:
                outcome = None  # that of an earlier start
        self._outcome, self._changed_at, self.is_read = outcome, changed_at, True

    def _read_outcome(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.directory / OUTCOME).read_text("utf-8"))
            return found if isinstance(found, dict) else None
        return None

    def names(self) -> Iterable[str]:
        """Return the names of its values."""
        return [*self.series]

    def curve(self, name: str, axis: str) -> tuple[Numbers, Numbers] | None:
        """Return positions and values by name; None without any."""
        series = self.series.get(name)
        return None if series is None else series.points(axis)

    def about(self) -> dict[str, Any]:
        """Return its entry for the list of all runs."""
        outcome, secs = self._outcome, time.time() - self._changed_at
        state = "silent" if secs > _SILENT_SECS else "running"
        if not self.is_read:
            state = "reading"
        elif outcome is not None:
            state = str(outcome.get("kind"))
        series = self.series
        newest = [last for each in series.values() if (last := each.last)]
        steps = [step for step, _, _ in newest]
        if outcome is not None and isinstance(outcome.get("step"), int):
            steps.append(outcome["step"])
        return {
            "name": self.name,
            "version": self.version,
            "state": state,
            "silent_secs": None if outcome is not None else round(max(secs, 0)),
            "step": max(steps, default=None),
            "last_step": None,
            "rate": self._rate() if state == "running" else None,
            "secs_left": None,
            "values": {n: s.last[2] for n, s in [*series.items()][:3] if s.last},
            "is_live": False,
        }

    def _rate(self) -> float | None:
        """Return steps per second, from the value with the most points."""
        longest = max(self.series.values(), key=len, default=None)
        if longest is None or len(longest) < 2:
            return None
        steps = longest.points()[0][-_RATE_POINTS:]
        times = longest.points("time")[0][-_RATE_POINTS:]
        secs = float(times[-1] - times[0])
        return float(steps[-1] - steps[0]) / secs if secs > 0 else None

    def details(self, parts: Collection[str]) -> dict[str, Any]:
        """Return the details that are shown of the training alone."""
        params: dict[str, Any] = {}
        problems: list[str] = []
        outcome: Mapping[str, Any] | None = self._outcome
        for source in reversed(self._sources):
            params.update(source.values.params)
            problems += source.values.problems
            outcome = outcome or source.values.outcome
        if outcome is not None:
            params = {**params, **(outcome.get("params") or {})}
        found: dict[str, Any] = {
            "name": self.name,
            "directory": str(self.directory),
            "params": params,
            "outcome": outcome,
            "problems": problems,
        }
        if "checkpoints" in parts:
            found["checkpoints"], problem = checkpoints_of(self.directory)
            problems += [problem] if problem else []
        return found


class Library:
    """The runs below a folder, which a thread reads while somebody looks.

    Args:
        root: the folder.

    Attributes:
        runs: the runs, by name.
        left_out: how many there are beyond the most that are shown.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: dict[str, RunDirectory] = {}
        self.left_out = 0
        self._asked_at = time.monotonic()
        self._wake = threading.Event()
        self._is_over = False

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name="view reader", daemon=True).start()

    def stop(self) -> None:
        """End reading."""
        self._is_over = True
        self._wake.set()

    def watched(self) -> None:
        """Note that somebody looks."""
        self._asked_at = time.monotonic()
        self._wake.set()

    def refresh(self) -> None:
        """Look for runs, and read what is new of each."""
        found = list(directories_below(self.root))
        self.left_out = max(0, len(found) - MOST_RUNS)
        runs = {}
        for directory in found[:MOST_RUNS]:
            name = directory.relative_to(self.root).as_posix()
            name = self.root.name if name == "." else name
            runs[name] = self.runs.get(name) or RunDirectory(directory, name)
        self.runs = runs
        for run in [*runs.values()]:
            run.refresh()

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.refresh()
            except Exception as error:  # a disk that is away for a while
                log.warning("the runs could not be read", why=str(error))
            time.sleep(_REST_SECS)
            if time.monotonic() - self._asked_at > _UNWATCHED_SECS:
                self._wake.clear()
                self._wake.wait()


def directories_below(root: Path) -> Iterator[Path]:
    """Yield the directories of runs: with values, an outcome, or checkpoints."""
    for here, folders, files in os.walk(root, followlinks=False):
        path = Path(here)
        checkpoints = [name for name in folders if is_checkpoint(name)]
        depth = len(path.relative_to(root).parts)
        has_journals = JOURNALS in folders and any((path / JOURNALS).glob("*.jsonl"))
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED
            and not name.startswith(".")
            and name not in checkpoints
            and depth < _DEEPEST
        )
        named = any(name in (METRICS, OUTCOME) or "tfevents" in name for name in files)
        if named or checkpoints or has_journals:
            yield path


def _newest_change(directory: Path) -> float:
    """Return when a run has last written something, in seconds since 1970."""
    paths = [directory / METRICS, *directory.glob(EVENTS), *directory.glob("ckpt-*")]
    paths += directory.glob(f"{JOURNALS}/*.jsonl")
    return max(map(_changed_at, paths), default=_changed_at(directory / OUTCOME))


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_checkpoint(name: str) -> bool:
    """Return whether a folder is named as a checkpoint is."""
    return _NAME.fullmatch(name) is not None


def checkpoints_of(directory: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Return the facts about each checkpoint, the oldest step first.

    The files have the sizes that the manifest has, unless a checkpoint is bad. The second
    result is the fault of the whole directory, or None.
    """
    try:
        good = {
            info.path
            for folder in (directory, directory / _FAILED)
            for info in list_checkpoints(folder)
        }
    except HookbusError as error:
        return [], text_of(error)
    found = [
        path
        for folder in (directory, directory / _FAILED)
        for path in folder.glob("ckpt-*")
        if is_checkpoint(path.name)
    ]
    rows = [_row(directory, path, path in good) for path in found]
    return sorted(rows, key=lambda row: (row["step"], row["name"])), None


def _row(directory: Path, path: Path, is_good: bool) -> dict[str, Any]:
    matched = _NAME.fullmatch(path.name)
    step = int(matched[1]) if matched else 0
    try:
        manifest = json.loads((path / _MANIFEST).read_text("utf-8"))
        size = sum(file["bytes"] for file in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest, size = {}, None
    return {
        "name": path.relative_to(directory).as_posix(),
        "step": step,
        "state": "not verified" if is_good else "bad",
        "bytes": size,
        **{
            key: manifest.get(key)
            for key in ("saved_by", "why", "saved_at", "kept", "values", "ended")
        },
    }


def verified(directory: Path, name: str) -> str:
    """Hash the files of a checkpoint; return ``good``, or what is wrong.

    Args:
        directory: the directory of the checkpoints.
        name: the name of the checkpoint in it, as :func:`checkpoints_of` gives it.
    """
    if name not in {row["name"] for row in checkpoints_of(directory)[0]}:
        return f"there is no checkpoint {name}"
    try:
        verify_checkpoint(directory / name)
    except HookbusError as error:
        return text_of(error)
    return "good"
