"""Keeps and removes checkpoints of a directory, while no session saves there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from hookbus.checkpoint.lock import DirectoryLock
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus.cli.stored import Row, named, rows_of, sized
from hookbus.errors import (
    CheckpointDirectoryError,
    CheckpointError,
    NoGoodCheckpointError,
    UsageError,
)
from hookbus.logs import shown

KEEPER = "hookbus checkpoints"
"""The name under which a manifest has the reason of this command."""
_WHY = "asked for on the command line"
_PROCESSES = Path("/proc")


def keep(directory: Path, words: Sequence[str], undo: bool) -> Iterator[str]:
    """Have checkpoints never pruned, or no longer; yield a line for each.

    Raises:
        UsageError: a checkpoint does not exist.
        CheckpointError: a session saves into the directory, or a checkpoint is bad, behind
            a link, or cannot be written.
    """
    with _locked(directory, words) as chosen:
        # All are looked at before the first one is changed.
        manifests = [(row, _keepable(row)) for row, *_ in chosen]
        for row, manifest in manifests:
            others = {who: why for who, why in manifest.kept.items() if who != KEEPER}
            kept = others if undo else {**others, KEEPER: _WHY}
            changes = kept.keys() != manifest.kept.keys()
            if changes:
                Store(row.path.parent).rewrite_manifest(
                    row.path, attrs.evolve(manifest, kept=kept), "that it is kept"
                )
            yield f"{shown(row.path)} {_kept_text(kept, changes, undo)}"


def _kept_text(kept: dict[str, str], changes: bool, undo: bool) -> str:
    if not undo:
        return "is kept" if changes else "is kept already"
    by = f"; {' and '.join(kept)} keeps it" if kept else ""
    state = "is no longer kept" if changes else "was not kept"
    return f"{state} by this command{by}"


def _keepable(row: Row) -> Manifest:
    """Return the manifest of a checkpoint that a session could prune.

    Raises:
        CheckpointError: it is bad, or behind a link.
    """
    if row.kind == "bad":
        raise CheckpointError(
            f"{shown(row.path)} was set aside as bad, and no session removes it"
        )
    if row.path.is_symlink():
        raise CheckpointError(
            f"{shown(row.path)} is a link, and the checkpoint where it leads may be that "
            "of another training run: name the directory of that checkpoint"
        )
    if row.reason is not None or row.manifest is None:
        raise NoGoodCheckpointError(f"cannot keep {shown(row.path)}: {row.reason}")
    return row.manifest


def remove(directory: Path, words: Sequence[str], force: bool) -> Iterator[str]:
    """Remove checkpoints; yield a line for each.

    Raises:
        UsageError: a checkpoint does not exist.
        CheckpointError: a session saves into the directory, no good checkpoint would be
            left, another process reads one, or it cannot be removed.
    """
    with _locked(directory, words) as chosen:
        going = [row for of_word in chosen for row in of_word]
        if not force:
            _check_one_stays(directory, going)
        for row in going:
            _check_not_read(row)
        for of_word in chosen:
            # A session would put one that was being replaced back, so it goes first.
            for row in reversed(of_word):
                try:
                    Store(row.path.parent).take_away(row.path)
                except OSError as error:
                    raise CheckpointError(
                        f"cannot remove {shown(row.path)}: {error.strerror}; it is as it "
                        "was"
                    ) from error
                yield f"removed {sized(row)}"


def _check_one_stays(directory: Path, going: Sequence[Row]) -> None:
    """Refuse to remove the last good checkpoint of a directory.

    Raises:
        CheckpointError: no other one is good, by the hashes of its files.
    """
    restorable = [row for row in going if row.kind in ("checkpoint", "replaced")]
    if all(row.status == "bad" for row in restorable):
        return
    paths = {row.path for row in going}
    for found in Store(directory).found():
        if found.path not in paths:
            with contextlib.suppress(NoGoodCheckpointError, UsageError, OSError):
                found.manifest()
                return
    raise CheckpointError(
        f"{shown(directory)} would have no good checkpoint left from which a run "
        "goes on: nothing was removed; --force removes the last one anyway"
    )


def _check_not_read(row: Row) -> None:
    """Refuse to remove a checkpoint that another process has open, if that is known.

    Raises:
        CheckpointError: there is such a process.
    """
    for process in _readers(row.path.resolve()):
        raise CheckpointError(
            f"process {process} reads {shown(row.path)}: nothing was removed; wait for it "
            "to end"
        )


def _readers(path: Path) -> Iterator[str]:
    """Yield the ids of the other processes that have a file below a path open.

    Only Linux tells, and only of processes that this user may look at.
    """
    inside = f"{path}{os.sep}"
    for process in _PROCESSES.glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()).startswith(inside):
                    yield process.name
                    break
            else:
                # A file may stay mapped into the memory when it is closed.
                if inside in (process / "maps").read_text("utf-8", "replace"):
                    yield process.name


@contextlib.contextmanager
def _locked(directory: Path, words: Sequence[str]) -> Iterator[list[list[Row]]]:
    """Yield the checkpoints that words name, while no session saves into their folders.

    Raises:
        UsageError: a checkpoint does not exist.
        CheckpointError: a session saves there.
    """
    # Looks before it locks, because a lock leaves a file.
    first = named(rows_of(directory), words, directory)
    folders = sorted({directory, *(row.path.parent for rows in first for row in rows)})
    with contextlib.ExitStack() as stack:
        for folder in folders:
            lock = DirectoryLock(folder)
            try:
                lock.take()
            except CheckpointDirectoryError:
                raise
            except UsageError as error:
                raise CheckpointError(f"nothing was changed: {error}") from error
            stack.callback(lock.release)
        yield named(rows_of(directory), words, directory)
