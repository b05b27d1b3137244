"""Writes, replaces and prunes checkpoints on disk, so that a crash loses none.

A checkpoint is a directory ``ckpt-STEP``. It is written under a temporary name in the same
directory, synced, completed with a manifest and renamed; the parent is synced; only then
are old checkpoints removed. So the newest complete checkpoint survives a crash at any time.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from hookbus.checkpoint.files import cannot_write
from hookbus.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest
from hookbus.errors import CheckpointError
from hookbus.logs import log, shown

_COMPLETE = re.compile(r"ckpt-(\d+)(\.old)?")
_ABANDONED = re.compile(r"ckpt-\d+\.(tmp|gone)-\d+")
_UNFINISHED = re.compile(r"\.hookbus-\d+-\d+")
_BAD = re.compile(r"ckpt-\d+(\.old)?\.bad(-\d+)?")


@attrs.frozen
class StoredCheckpoint:
    """A directory that has the name of a checkpoint; its contents may be bad."""

    step: int
    path: Path
    old: bool

    def manifest(self, contents: bool = True) -> Manifest:
        """Return its manifest, after a check of the files' sizes and, if asked, hashes.

        Raises:
            CheckpointError: the checkpoint is not good.
            UsageError: another version of hookbus wrote it.
        """
        manifest = Manifest.read(self.path)
        manifest.verify(self.path, contents)
        if manifest.global_step != self.step:
            raise CheckpointError(f"its manifest says step {manifest.global_step}")
        return manifest


@attrs.frozen
class Store:
    """The checkpoints in one directory, which is created at the first write."""

    directory: Path = attrs.field(converter=Path)

    def prepare(self) -> None:
        """Create the directory and check that it can be written.

        Raises:
            CheckpointDirectoryError: it cannot be created or written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f"ckpt-0.tmp-{threading.get_native_id()}"
            probe.mkdir(exist_ok=True)
            shutil.rmtree(probe, ignore_errors=True)  # another session may have cleared it
        except OSError as error:
            raise cannot_write(self.directory, error) from error

    def found(self) -> list[StoredCheckpoint]:
        """Return all directories named like complete checkpoints, the newest first."""
        if not self.directory.is_dir():
            return []
        found = [
            StoredCheckpoint(int(match[1]), path, bool(match[2]))
            for path in self.directory.iterdir()
            if (match := _COMPLETE.fullmatch(path.name))
        ]
        return sorted(found, key=lambda f: (f.step, not f.old), reverse=True)

    def had_any(self) -> bool:
        """Return whether a checkpoint was ever set aside here as bad."""
        return self.directory.is_dir() and any(
            _BAD.fullmatch(path.name) for path in self.directory.iterdir()
        )

    def good(self) -> Iterator[tuple[Path, Manifest]]:
        """Yield each checkpoint that verifies, the newest first; report the others."""
        for candidate in self.found():
            try:
                manifest = candidate.manifest()
            except CheckpointError as error:
                self.set_aside(candidate.path, str(error))
            else:
                yield candidate.path, manifest

    def set_aside(self, path: Path, reason: str) -> None:
        """Report a bad checkpoint and rename it, so that no session restores it."""
        target = path.with_name(f"{path.name}.bad")
        number = 1
        while target.exists():
            number += 1
            target = path.with_name(f"{path.name}.bad-{number}")
        try:
            path.rename(target)
            kept = shown(target)
        except OSError:
            kept = shown(path)
        log.warning("bad checkpoint", path=shown(path), reason=reason, kept_as=kept)

    def write(
        self, manifest: Manifest, fill: Callable[[Path], None]
    ) -> tuple[Path, Manifest]:
        """Write a checkpoint.

        Args:
            manifest: its description; the store fills in the sizes and hashes of files.
            fill: writes the files into the directory that it gets.

        Returns:
            The checkpoint's directory, and its complete manifest.

        Raises:
            CheckpointError: it cannot be written; earlier checkpoints are intact.
        """
        step = manifest.global_step
        path = self.directory / f"ckpt-{step}"
        temporary = self.directory / f"ckpt-{step}.tmp-{os.getpid()}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            fill(temporary)
            files = {}
            for file in sorted(temporary.iterdir()):
                _sync(file)
                files[file.name] = FileRecord.of(file)
            manifest = attrs.evolve(manifest, files=files)
            (temporary / MANIFEST_NAME).write_text(manifest.text(), "utf-8")
            _sync(temporary / MANIFEST_NAME)
            _sync(temporary)
            self._move_in(temporary, path)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError | CheckpointError):
                raise
            why = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(
                f"cannot write the checkpoint of step {step} into {self.directory}: "
                f"{why}; earlier checkpoints are still there"
            ) from error
        return path, manifest

    def rewrite_manifest(self, path: Path, manifest: Manifest) -> None:
        """Replace a checkpoint's manifest in one rename and leave its files untouched.

        Raises:
            CheckpointError: it cannot be written; the old manifest is intact.
        """
        temporary = path / f"{MANIFEST_NAME}.tmp"
        try:
            temporary.write_text(manifest.text(), "utf-8")
            _sync(temporary)
            temporary.rename(path / MANIFEST_NAME)
            _sync(path)
        except OSError as error:
            raise CheckpointError(
                f"cannot record in {path} how the session ended: {error.strerror}"
            ) from error

    def prune(self, keep: int, newest: Path) -> None:
        """Remove all but the newest *keep* checkpoints, never *newest* itself."""
        kept: set[int] = set()
        for candidate in self.found():
            if candidate.step not in kept and len(kept) < keep:
                kept.add(candidate.step)
                continue
            if candidate.path == newest:
                continue
            gone = candidate.path.with_name(f"ckpt-{candidate.step}.gone-{os.getpid()}")
            try:
                # Renamed first: half a directory must not look like a checkpoint.
                candidate.path.rename(gone)
            except OSError as error:
                log.warning("cannot prune", path=str(candidate.path), why=str(error))
                continue
            shutil.rmtree(gone, ignore_errors=True)

    def clear(self) -> None:
        """Remove the remains of interrupted saves; the caller must hold the lock."""
        for path in self.directory.iterdir():
            if _ABANDONED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _move_in(self, temporary: Path, path: Path) -> None:
        old = path.with_name(f"{path.name}.old")
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        temporary.rename(path)
        _sync(self.directory)
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
