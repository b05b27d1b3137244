"""Decides which checkpoints stay, and removes the others.

These stay: the newest ``max_to_keep``, the last one of the session, each one that a hook
asked to keep for good, and each one for which a hook has a reason in the event ``pruning``.
All that the rules know stands in the manifests. So a session that was killed, also between
two removals, and one that resumes it, keep the same checkpoints as one that was not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import attrs

from hookbus.bus.bus import Bus
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import describe
from hookbus.checkpoint.store import Store, StoredCheckpoint
from hookbus.errors import NoGoodCheckpointError, UsageError
from hookbus.hooks.checkpoints import CheckpointInfo, Checkpoints
from hookbus.logs import log, shown

_KEPT_WHILE_OPEN = 2
"""A session that saves keeps at least so many: others may be reading the one before."""


@attrs.define(eq=False)
class Retention:
    """Removes the checkpoints of one session that no rule keeps.

    Attributes:
        checkpoints: the directory and the number of checkpoints to keep.
        values: numbers that no checkpoint has yet, by step and name.
    """

    checkpoints: Checkpoints
    _bus: Bus
    values: dict[int, dict[str, float]] = attrs.field(factory=dict)
    _deferred: list[Path] = attrs.field(factory=list)
    _logged: set[tuple[Path, str, str]] = attrs.field(factory=set)

    def prune(self, newest: Path) -> None:
        """Remove what no rule keeps, but never *newest*."""
        keep, directory = self.checkpoints.max_to_keep, self.checkpoints.directory
        self._deferred = []
        if keep is None or directory is None:
            return
        store, recent = Store(directory), set[int | None]()
        stored: list[CheckpointInfo] = []

        def stays(candidate: StoredCheckpoint) -> bool:
            if not recent:
                steps = sorted({found.step or 0 for found in store.found()})
                recent.update(steps[-_KEPT_WHILE_OPEN:])
            if self._is_kept(candidate, store, stored):
                return True
            if candidate.step in recent and not candidate.old:
                self._deferred.append(candidate.path)
                return True
            return False

        store.prune(keep, newest, stays)

    def finish(self) -> None:
        """Remove what stayed for others who read only as long as the session was open."""
        if self.checkpoints.directory is not None:
            for path in self._deferred:
                Store(self.checkpoints.directory).remove(path)

    def add_values(self, values: Mapping[int, Mapping[str, float]]) -> None:
        """Take numbers for the checkpoints of some steps, by step and name."""
        if self.checkpoints.enabled_by is not None:
            for step, numbers in values.items():
                self.values[step] = {**self.values.get(step, {}), **numbers}

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
            store = Store(self.checkpoints.directory)
            path = store.directory / f"ckpt-{step}"
            try:
                manifest = Manifest.read(path)
            except (NoGoodCheckpointError, UsageError, OSError):
                continue
            manifest = attrs.evolve(manifest, values={**manifest.values, **numbers})
            store.rewrite_manifest(path, manifest, "the values of its step")
            changed[path] = manifest
        return changed

    def log_kept(self, path: Path, reasons: Mapping[str, str]) -> None:
        """Log once that a checkpoint is kept, and why, by the hooks that asked for it."""
        for who, why in reasons.items():
            if (path, who, why) not in self._logged:
                self._logged.add((path, who, why))
                log.info("checkpoint kept", path=shown(path), by=who, why=why)

    def _is_kept(
        self, found: StoredCheckpoint, store: Store, stored: list[CheckpointInfo]
    ) -> bool:
        """Return whether a checkpoint stays; *stored* is filled if a hook needs it."""
        if found.old and found.path.with_suffix("").is_dir():
            return False  # it was replaced
        try:
            info = describe(found)
        except NoGoodCheckpointError:
            return False
        except (UsageError, OSError):  # it may be kept for good
            return True
        if info.kept:
            return True
        caller = self._bus.caller("pruning")
        if caller.reaches_nobody:
            return False
        stored[:] = stored or _described(store)
        answers = caller.collect(info.path, info.global_step, tuple(stored))
        self.log_kept(info.path, {who: str(why) for who, why in answers})
        return bool(answers)


def _described(store: Store) -> list[CheckpointInfo]:
    """Describe the good checkpoints, the oldest step first."""
    good: dict[int, CheckpointInfo] = {}
    for found in store.found():
        with contextlib.suppress(NoGoodCheckpointError, UsageError, OSError):
            good.setdefault(found.step or 0, describe(found))
    return [good[step] for step in sorted(good)]
