"""Writes, replaces and prunes checkpoints on disk, so that a crash loses none.

A checkpoint is a directory ``ckpt-STEP``. It is written under a temporary name in the same
directory, synced, completed with a manifest and renamed; the parent is synced; only then
are old checkpoints removed. So the newest complete checkpoint survives a crash at any time.

Only the session that holds the directory's lock calls the methods that rename or remove. A
directory that goes is renamed first, so that no reader finds half of it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from hookbus.checkpoint.files import cannot_write, create_directory, discard, sync
from hookbus.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest
from hookbus.discovery import unique_name
from hookbus.errors import CheckpointError, NoGoodCheckpointError, UsageError
from hookbus.logs import log, shown
from hookbus.validation import expanded

_STEP = "ckpt-(0|[1-9][0-9]*)"
_COMPLETE = re.compile(rf"{_STEP}(\.old)?")
_ABANDONED = re.compile(r"ckpt-\d+\.(tmp|gone)-\d+")
_UNFINISHED = re.compile(r"\.hookbus-\d+-\d+")
_BAD = re.compile(rf"{_STEP}(\.old)?\.bad(-\d+)?")
_Stamp = tuple[int, int, int] | None


@attrs.frozen
class StoredCheckpoint:
    """A path at which a checkpoint may be; its contents may be bad.

    Attributes:
        path: its directory.
        step: the step in its name; None if its name has no meaning.
        old: whether it is being replaced by one of the same step.
        stamp: identifies the file that was found at the path; None without one.
    """

    path: Path
    step: int | None
    old: bool
    stamp: _Stamp

    @classmethod
    def at(cls, path: Path, named: bool = False) -> StoredCheckpoint:
        """Describe a path; if *named*, the manifest must have the step in its name."""
        match = _COMPLETE.fullmatch(path.name) if named else None
        step, old = (int(match[1]), bool(match[2])) if match else (None, False)
        return cls(path, step, old, _stamp(path))

    @property
    def proper_path(self) -> Path:
        """The path that the checkpoint has when it is not being replaced."""
        return _replacing(self.path) if self.old else self.path

    def has_changed(self) -> bool:
        """Return whether it was removed, replaced or renamed since it was found."""
        return self.stamp is None or _stamp(self.path) != self.stamp

    def manifest(self, contents: bool = True) -> Manifest:
        """Return its manifest, after a check of the files' sizes and, if asked, hashes.

        Raises:
            NoGoodCheckpointError: the checkpoint is not good.
            UsageError: another version of hookbus wrote it.
            OSError: it cannot be read now.
        """
        manifest = Manifest.read(self.path)
        manifest.verify(self.path, contents)
        if self.step not in (None, manifest.global_step):
            raise NoGoodCheckpointError(f"its manifest says step {manifest.global_step}")
        return manifest


@attrs.frozen
class Store:
    """The checkpoints in one directory, which is created at the first write.

    Attributes:
        directory: the directory.
        discard: removes a checkpoint that was renamed, and so counts no more.
    """

    directory: Path = attrs.field(converter=expanded)
    discard: Callable[[Path], None] = discard

    def prepare(self) -> None:
        """Create the directory and check that it can be written.

        Raises:
            CheckpointDirectoryError: it cannot be created or written.
        """
        try:
            create_directory(self.directory)
            probe = self.directory / f"ckpt-0.tmp-{threading.get_native_id()}"
            probe.mkdir(exist_ok=True)
            discard(probe)  # another session may have cleared it
        except OSError as error:
            raise cannot_write(self.directory, error) from error

    def found(self) -> list[StoredCheckpoint]:
        """Return everything named like a complete checkpoint, the newest first.

        Raises:
            OSError: the directory cannot be read.
        """
        found = [
            StoredCheckpoint.at(path, named=True)
            for path in self._paths()
            if _COMPLETE.fullmatch(path.name)
        ]
        return sorted(found, key=lambda f: (f.step, not f.old), reverse=True)

    def bad(self) -> list[StoredCheckpoint]:
        """Return the checkpoints that were set aside as bad, the oldest step first.

        Raises:
            OSError: the directory cannot be read.
        """
        named = [(_BAD.fullmatch(path.name), path) for path in self._paths()]
        bad = [
            attrs.evolve(StoredCheckpoint.at(path), step=int(match[1]))
            for match, path in named
            if match
        ]
        return sorted(bad, key=lambda each: (each.step or 0, each.path.name))

    def had_any(self) -> bool:
        """Return whether there is a checkpoint here, or one that was set aside as bad."""
        return bool(self.found() or self.bad())

    def set_aside(self, path: Path, reason: str) -> None:
        """Report a bad checkpoint and rename it, so that no session restores it."""
        try:
            taken = {each.name for each in self._paths()}
            target = path.rename(path.with_name(unique_name(f"{path.name}.bad", taken)))
        except OSError:
            target = path
        report_bad(path, reason, kept_as=shown(target))

    def begin(self, step: int) -> Path:
        """Make the temporary folder in which a checkpoint is written; return it.

        Raises:
            CheckpointError: it cannot be made.
        """
        temporary = self.directory / f"ckpt-{step}.tmp-{os.getpid()}"
        try:
            discard(temporary)
            create_directory(self.directory)
            temporary.mkdir()
        except OSError as error:
            raise self.refusal(step, error) from error
        return temporary

    def complete(
        self, temporary: Path, manifest: Manifest, files: Mapping[str, FileRecord]
    ) -> tuple[Path, Manifest]:
        """Give a folder with all files its manifest and its name; return what it has then.

        Raises:
            OSError: it is not complete; earlier checkpoints are intact.
        """
        manifest = attrs.evolve(manifest, files=dict(sorted(files.items())))
        path = self.path_of(manifest.global_step)
        (temporary / MANIFEST_NAME).write_text(manifest.text(), "utf-8")
        sync(temporary / MANIFEST_NAME)
        sync(temporary)
        self._move_in(temporary, path)
        return path, manifest

    def path_of(self, step: int) -> Path:
        """Return the directory of the checkpoint of a step."""
        return self.directory / f"ckpt-{step}"

    def refusal(self, step: int, error: BaseException) -> BaseException:
        """Return the error for a checkpoint that cannot be written because of another.

        It is a CheckpointError for one of the disk or of a codec, and otherwise the same.
        """
        if not isinstance(error, OSError | CheckpointError):
            return error
        why = error.strerror if isinstance(error, OSError) else error
        refusal = CheckpointError(
            f"cannot write the checkpoint of step {step} into {self.directory}: "
            f"{why}; earlier checkpoints are still there"
        )
        refusal.__cause__ = error
        return refusal

    def rewrite_manifest(
        self, path: Path, manifest: Manifest, what: str = "how the session ended"
    ) -> None:
        """Replace a checkpoint's manifest in one rename and leave its files untouched.

        A checkpoint behind a link stays as it is: it may belong to another training run.
        *what* describes the change, for messages.

        Raises:
            CheckpointError: it cannot be written; the old manifest is intact.
        """
        if path.is_symlink():
            log.warning("a linked checkpoint is not changed", path=shown(path), what=what)
            return
        temporary = _unfinished_manifest(path)
        discard(temporary)  # a link in its place would lead the writer elsewhere
        try:
            temporary.write_text(manifest.text(), "utf-8")
            sync(temporary)
            temporary.rename(path / MANIFEST_NAME)
            sync(path)
        except OSError as error:
            raise CheckpointError(
                f"cannot record in {path} {what}: {error.strerror}"
            ) from error

    def prune(
        self,
        keep: int,
        newest: Path,
        stays: Callable[[StoredCheckpoint, Sequence[StoredCheckpoint]], bool] | None = None,
    ) -> None:
        """Remove all but the newest *keep* checkpoints, never *newest* itself.

        Another checkpoint stays if *stays* returns true for it. *stays* gets the oldest
        first, each with all checkpoints that were found before the first removal.
        """
        kept: set[int | None] = set()
        try:
            surplus, found = [], self.found()
            for candidate in found:
                if candidate.step not in kept and len(kept) < keep:
                    kept.add(candidate.step)
                elif candidate.path != newest:
                    surplus.append(candidate)
            for candidate in reversed(surplus):
                if stays is None or not stays(candidate, found):
                    self.remove(candidate.path)
        except OSError as error:
            log.warning("cannot prune", path=str(self.directory), why=str(error))

    def clear(self) -> None:
        """Remove the remains of interrupted saves, and complete interrupted replacements.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        try:
            for path in self._paths():
                if _ABANDONED.fullmatch(path.name) or _UNFINISHED.fullmatch(path.name):
                    discard(path)
            for candidate in self.found():
                if candidate.old:
                    self._recover_replaced(candidate)
                elif not candidate.path.is_symlink():
                    discard(_unfinished_manifest(candidate.path))
        except OSError as error:
            raise cannot_read(self.directory, error) from error

    def _recover_replaced(self, old: StoredCheckpoint) -> None:
        """Remove the checkpoint that was being replaced, or put it back."""
        path = old.proper_path
        try:
            StoredCheckpoint.at(path, named=True).manifest()
        except NoGoodCheckpointError as error:
            if os.path.lexists(path):
                self.set_aside(path, str(error))
            old.path.rename(path)
            sync(self.directory)
        except UsageError:  # a later version wrote it, and can tell which one is good
            pass
        else:
            self.remove(old.path)

    def _move_in(self, temporary: Path, path: Path) -> None:
        old = _replaced(path)
        if os.path.lexists(path):
            self.remove(old)
            path.rename(old)
        temporary.rename(path)
        sync(self.directory)
        self.remove(old)

    def remove(self, path: Path) -> None:
        """Remove a checkpoint, if it exists and the system allows it."""
        try:
            self.take_away(path)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("cannot prune", path=str(path), why=str(error))

    def take_away(self, path: Path) -> None:
        """Remove a checkpoint: in one rename, so that a crash leaves all of it or none.

        Raises:
            OSError: it cannot be renamed, and is as it was.
        """
        gone = self.directory / f"{path.name.partition('.')[0]}.gone-{os.getpid()}"
        path.rename(gone)
        self.discard(gone)

    def _paths(self) -> list[Path]:
        """Return everything in the directory; nothing if there is no directory."""
        try:
            return list(self.directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def places_of(path: Path) -> list[Path]:
    """Return the paths at which a checkpoint may be while another one takes its place.

    The path of the replaced one leads to the new one, once the old one is removed.
    """
    match = _COMPLETE.fullmatch(path.name)
    if match and match[2]:
        return [path, _replacing(path)]
    return [path, _replaced(path)] if path.name else [path]


def report_bad(path: Path, reason: str, **extra: str) -> None:
    """Report a bad checkpoint, and leave it where it is."""
    log.warning("bad checkpoint", path=shown(path), reason=reason, **extra)


def cannot_read(directory: Path, error: OSError) -> CheckpointError:
    """Return the error for a directory of checkpoints that the system refuses to read."""
    return CheckpointError(
        f"cannot read the checkpoints in {directory}: {error}; they were not changed"
    )


def _replaced(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _replacing(old: Path) -> Path:
    return old.with_suffix("")


def _unfinished_manifest(path: Path) -> Path:
    return path / f"{MANIFEST_NAME}.tmp"


def _stamp(path: Path) -> _Stamp:
    """Return an identity of the file at a path, which changes if it is replaced."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
