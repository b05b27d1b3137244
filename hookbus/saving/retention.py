"""Decides which checkpoints stay, and removes the others.

These stay: the newest ``max_to_keep``, the last one of the session, each one that a hook
asked to keep for good, and each one for which a hook has a reason in the event ``pruning``.
The rules read nothing but the manifests. So a session that is killed, even between two
removals, and the session that resumes it keep the checkpoints that an uninterrupted session
would keep.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs

from hookbus.bus.bus import Bus
from hookbus.checkpoint.files import discard
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import CheckpointInfo, describe
from hookbus.checkpoint.store import Store, StoredCheckpoint
from hookbus.errors import NoGoodCheckpointError, UsageError
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.logs import log, shown

Stored: TypeAlias = Sequence[StoredCheckpoint]

_KEPT_WHILE_OPEN = 2
"""The fewest checkpoints to keep: another process may be reading the last but one."""


def is_kept_for_good(candidate: StoredCheckpoint, _: Stored) -> bool:
    """Return whether the manifest of a checkpoint keeps it, or cannot tell now."""
    try:
        return bool(describe(candidate).kept)
    except NoGoodCheckpointError:
        return False
    except (UsageError, OSError):
        return True


@attrs.define(eq=False)
class Retention:
    """Removes the checkpoints of one session that no rule keeps.

    Attributes:
        checkpoints: the directory and the number of checkpoints to keep.
        values: numbers that no checkpoint has yet, by step and name.
        has_pruned: whether the session has looked for checkpoints to remove.
    """

    checkpoints: Checkpoints
    _bus: Bus
    values: dict[int, dict[str, float]] = attrs.field(factory=dict)
    has_pruned: bool = False
    _known: dict[StoredCheckpoint, CheckpointInfo] = attrs.field(factory=dict)
    _deferred: list[Path] = attrs.field(factory=list)
    _logged: set[tuple[Path, str, str]] = attrs.field(factory=set)
    _removing: list[threading.Thread] = attrs.field(factory=list)

    def prune(self, newest: Path, in_background: bool = False) -> None:
        """Remove the checkpoints that no rule keeps, but never *newest*.

        With *in_background* a thread frees their space, which takes long for large ones.
        """
        keep, directory = self.checkpoints.max_to_keep, self.checkpoints.directory
        self._deferred, self.has_pruned = [], True
        if keep is None or directory is None:
            return

        def stays(candidate: StoredCheckpoint, found: Stored) -> bool:
            if self._is_kept(candidate, found):
                return True
            recent = sorted({each.step or 0 for each in found})[-_KEPT_WHILE_OPEN:]
            if candidate.step in recent and not candidate.old:
                self._deferred.append(candidate.path)
                return True
            self._known.pop(candidate, None)
            return False

        self._await_removal()
        store = Store(directory, self._discard_aside) if in_background else Store(directory)
        store.prune(keep, newest, stays)

    def _discard_aside(self, path: Path) -> None:
        """Remove a checkpoint that is renamed, while the session goes on."""
        removing = threading.Thread(
            target=discard, args=(path,), name="hookbus-removing", daemon=True
        )
        removing.start()
        self._removing.append(removing)

    def _await_removal(self) -> None:
        """Wait for the threads that remove checkpoints."""
        while self._removing:
            self._removing.pop().join()

    def finish(self) -> None:
        """Remove the checkpoints that stayed for readers while the session was open."""
        self._await_removal()
        if self.checkpoints.directory is not None:
            for path in self._deferred:
                Store(self.checkpoints.directory).remove(path)

    def add_values(self, values: Mapping[int, Mapping[str, float]]) -> None:
        """Take numbers for the checkpoints of some steps, by step and name."""
        if self.checkpoints.enabled_by is not None:
            for step, numbers in values.items():
                self.values[step] = {**self.values.get(step, {}), **numbers}

    def forget_values_after(self, step: int) -> None:
        """Forget the numbers of later steps, which are undone."""
        self.values = {s: numbers for s, numbers in self.values.items() if s <= step}

    def take_values(self, step: int) -> dict[str, float]:
        """Return the numbers for the checkpoint of a step, which is being written."""
        return self.values.pop(step, {})

    def record_values(self, last: int, current: int) -> dict[Path, Manifest]:
        """Record the numbers of steps that were saved; forget those that never will be.

        Args:
            last: the step that was saved last; -1 for none.
            current: the global step, which may still be saved.

        Returns:
            The new manifests, by checkpoint. A step without a checkpoint has none.
        """
        saved = {step: v for step, v in self.values.items() if step <= last}
        later = self.values.keys() - saved.keys()
        self.values = {step: self.values[step] for step in later if step >= current}
        changed: dict[Path, Manifest] = {}
        for step, numbers in saved.items():
            assert self.checkpoints.directory is not None
            path = Store(self.checkpoints.directory).path_of(step)
            try:
                manifest = Manifest.read(path)
            except (NoGoodCheckpointError, UsageError, OSError):
                continue
            manifest = attrs.evolve(manifest, values={**manifest.values, **numbers})
            self.rewrite(path, manifest, "the values of its step")
            changed[path] = manifest
        return changed

    def rewrite(self, path: Path, manifest: Manifest, what: str) -> None:
        """Replace the manifest of a checkpoint; *what* describes the change, for the error.

        Raises:
            CheckpointError: it cannot be written; the old manifest is intact.
        """
        assert self.checkpoints.directory is not None
        self._known = {s: info for s, info in self._known.items() if s.path != path}
        Store(self.checkpoints.directory).rewrite_manifest(path, manifest, what)

    def log_kept(self, path: Path, reasons: Mapping[str, str]) -> None:
        """Log once that a checkpoint is kept, and why, by the hooks that asked for it."""
        for who, why in reasons.items():
            if (path, who, why) not in self._logged:
                self._logged.add((path, who, why))
                log.info("checkpoint kept", path=shown(path), by=who, why=why)

    def _is_kept(self, candidate: StoredCheckpoint, found: Stored) -> bool:
        """Return whether a checkpoint stays, of those that were found."""
        if candidate.old and candidate.proper_path.is_dir():
            return False  # it was replaced
        try:
            info = self._described(candidate)
        except NoGoodCheckpointError:
            return False
        except (UsageError, OSError):  # it may be kept for good
            return True
        if info.kept:
            return True
        caller = self._bus.caller("pruning")
        if caller.reaches_nobody:
            return False
        stored = tuple(self._good(found))
        answers = caller.collect(info.path, info.global_step, stored)
        self.log_kept(info.path, {who: str(why) for who, why in answers})
        return bool(answers)

    def _good(self, found: Stored) -> list[CheckpointInfo]:
        """Describe the good checkpoints among those found, the oldest step first."""
        good: dict[int, CheckpointInfo] = {}
        for each in found:
            with contextlib.suppress(NoGoodCheckpointError, UsageError, OSError):
                good.setdefault(each.step or 0, self._described(each))
        return [good[step] for step in sorted(good)]

    def _described(self, found: StoredCheckpoint) -> CheckpointInfo:
        """Describe a checkpoint; read it once, because nobody else changes it.

        Raises:
            NoGoodCheckpointError: it is not good.
            UsageError: another version of hookbus wrote it.
            OSError: it cannot be read now.
        """
        info = self._known.get(found)
        if info is None:
            info = self._known[found] = describe(found)
        return info
