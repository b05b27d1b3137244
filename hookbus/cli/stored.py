"""Lists what a directory of checkpoints holds, for people and for programs; reads only."""

from __future__ import annotations

import contextlib
import math
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import no_checkpoint
from hookbus.checkpoint.store import Store, StoredCheckpoint, cannot_read
from hookbus.cli.output import table
from hookbus.cli.target import what_is
from hookbus.errors import (
    CheckpointError,
    NoGoodCheckpointError,
    UsageError,
    did_you_mean,
    spelled,
)
from hookbus.hooks.checkpoints import FAILED

SCHEMA = 1
_COLUMNS = ("step", "age", "size", "saved by", "kept by", "values", "ended", "state")
_MOST_LOOKS = 100
"""A session that saves may replace a checkpoint so often while it is being examined."""
_KINDS = ("bad", "failed", "replaced", "checkpoint")
"""The order of checkpoints of one step."""
_MOST_DIGITS = 19
"""No step has more."""
_NEAREST = 2
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND = 1000


@attrs.frozen
class Row:
    """One checkpoint of the list.

    Attributes:
        name: its path inside the directory, like ``ckpt-120`` or ``failed/ckpt-7``.
        path: its directory.
        step: the step in its name.
        kind: ``checkpoint``; ``replaced`` if another one of its step was being written;
            ``failed`` for one of a session that failed; ``bad`` if it was set aside.
        status: ``good``; ``bad``; ``not verified`` if only the sizes of its files were
            compared; ``unknown`` if it cannot be read here, or now.
        reason: why it is bad or unknown; None otherwise.
        bytes: the size of all its files.
        manifest: its description; None if that cannot be read.
    """

    name: str
    path: Path
    step: int
    kind: str
    status: str
    reason: str | None
    bytes: int
    manifest: Manifest | None

    def document(self) -> dict[str, Any]:
        """Return the fields and those of the manifest, which are null without one."""
        own = attrs.asdict(self, filter=attrs.filters.exclude("manifest"))
        known = {} if self.manifest is None else attrs.asdict(self.manifest)
        described = {
            each.name: known.get(each.name)
            for each in attrs.fields(Manifest)
            if each.name not in ("global_step", "format")
        }
        ranks = None if self.manifest is None else self.manifest.ranks
        return {**own, "path": str(self.path), "ranks": ranks, **described}


def rows_of(directory: Path, verify: bool = False) -> list[Row]:
    """Describe each checkpoint of a directory, the oldest step first.

    Args:
        directory: the directory.
        verify: whether to hash all files; otherwise only their sizes are compared.

    Raises:
        UsageError: there is no such directory.
        CheckpointError: it has no checkpoints, or cannot be read.
    """
    what = what_is(directory)
    if what != "is a directory":
        what = "is a file" if what == "a file" else what
        raise UsageError(
            f"there are no checkpoints in {spelled(str(directory))}, which {what}: give "
            "the checkpoint_dir of a session"
        )
    for _ in range(_MOST_LOOKS):
        found = _found(directory)
        if not found:
            raise no_checkpoint(directory)
        examined = (_row(directory, kind, each, verify) for kind, each in found)
        rows = [row for row in examined if row is not None]
        if rows:  # a session may have replaced all that was found
            return sorted(rows, key=lambda row: (row.step, _KINDS.index(row.kind)))
    raise _too_fast(directory)


def _found(directory: Path) -> list[tuple[str, StoredCheckpoint]]:
    """Return everything named like a checkpoint, each with its kind.

    Raises:
        CheckpointError: the directory cannot be read.
    """
    store, failed = Store(directory), directory / FAILED
    try:
        found = [("bad", each) for each in store.bad()]
        found += [("replaced" if e.old else "checkpoint", e) for e in store.found()]
        # A link leads to the checkpoints of another training run.
        if not failed.is_symlink():
            found += [("failed", each) for each in Store(failed).found()]
    except OSError as error:
        raise cannot_read(directory, error) from error
    return found


def _too_fast(path: Path) -> CheckpointError:
    return CheckpointError(
        f"the checkpoints in {path} are replaced faster than they can be read: keep more "
        "of them with max_to_keep, or save less often"
    )


def _row(directory: Path, kind: str, found: StoredCheckpoint, verify: bool) -> Row | None:
    """Describe a checkpoint; None if it is gone by now.

    Raises:
        CheckpointError: it is replaced faster than it can be read.
    """
    for _ in range(_MOST_LOOKS):
        manifest, status, reason = None, "good" if verify else "not verified", None
        try:
            manifest = Manifest.read(found.path)
            found.manifest(contents=verify)
        except NoGoodCheckpointError as error:
            status, reason = "bad", str(error)
        except (UsageError, OSError) as error:
            status, reason = "unknown", str(error)
        if reason is None or not found.has_changed():
            name = found.path.relative_to(directory).as_posix()
            size, step = _size_of(found.path), found.step or 0
            return Row(name, found.path, step, kind, status, reason, size, manifest)
        found = attrs.evolve(StoredCheckpoint.at(found.path), step=found.step)
        if found.stamp is None:
            return None
    raise _too_fast(directory)


def _size_of(path: Path) -> int:
    """Return the size of the files below a path, without those that links lead to."""
    size = 0
    with contextlib.suppress(OSError):  # a session has removed it
        for each in path.rglob("*"):
            with contextlib.suppress(OSError):
                status = each.lstat()
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


def named(rows: Sequence[Row], words: Sequence[str], directory: Path) -> list[list[Row]]:
    """Return the rows that words name: those of a step, or one by its name in the list.

    A step has two if its checkpoint was being replaced, and the one in place comes first.

    Raises:
        UsageError: no row has such a name, or two words name one row.
    """
    chosen: list[list[Row]] = []
    for word in words:
        names = (word, f"ckpt-{word}", f"{word}.old", f"ckpt-{word}.old")
        of_word = [row for name in names for row in rows if row.name == name]
        if not of_word:
            raise _unknown(rows, word, directory)
        if any(row in of_word for before in chosen for row in before):
            raise UsageError(f"{of_word[0].name} is named twice: give each checkpoint once")
        chosen.append(of_word)
    return chosen


def _unknown(rows: Sequence[Row], word: str, directory: Path) -> UsageError:
    """Return the error for a checkpoint that does not exist; it names similar ones."""
    what, number = f"{spelled(str(directory))} has no checkpoint {spelled(word)}", word
    if not (word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS):
        names = [row.name for row in rows]
        hint = did_you_mean(word, names) or f"; the newest one is {names[-1]}"
        return UsageError(f"{what}{hint}")
    beside = [row.name for row in rows if row.step == int(number)]
    if beside:
        return UsageError(f"{what}; did you mean {' or '.join(map(repr, beside))}?")
    steps = {row.step for row in rows if row.kind in ("checkpoint", "replaced")}
    nearest = sorted(steps, key=lambda step: abs(step - int(number)))[:_NEAREST]
    listed = " and ".join(map(str, sorted(nearest))) or "none"
    return UsageError(f"{what}; the nearest steps are {listed}")


def list_of(rows: Sequence[Row]) -> str:
    """Lay out rows for people."""
    now = time.time()
    return table(_COLUMNS, [_cells(row, now) for row in rows])


def _cells(row: Row, now: float) -> Sequence[str]:
    manifest = row.manifest
    age, told = "?", ("?",) * 4
    if manifest is not None:
        age = age_of(manifest.saved_at, now)
        by = f"{manifest.saved_by} ({manifest.why})"
        kept, values = ", ".join(manifest.kept), numbers(manifest.values)
        told = (by, kept or "-", values or "-", manifest.ended or "-")
    return str(row.step), age, size_text(row.bytes), *told, _state(row)


def _state(row: Row) -> str:
    status = row.status if row.reason is None else f"{row.status}: {row.reason}"
    kinds = {
        "bad": f"{row.name}, set aside: ",
        "failed": f"{row.name}, of a failed session: ",
        "replaced": f"{row.name}, was being replaced: ",
    }
    return f"{kinds.get(row.kind, '')}{status}"


def numbers(values: Mapping[str, float]) -> str:
    """Return numbers by name as a short text.

    >>> numbers({"loss": 0.123456789, "val/loss": 2.0})
    'loss=0.123457, val/loss=2'
    """
    return ", ".join(f"{name}={value:.6g}" for name, value in values.items())


def age_of(saved_at: float, now: float) -> str:
    """Return the time since a save in its largest unit; a question mark if unknown.

    >>> age_of(40.0, 100.0), age_of(100.0, 7300.0), age_of(0.0, 7300.0)
    ('60s', '2h', '?')
    """
    if not 0 < saved_at < math.inf:  # an older hookbus has not recorded it
        return "?"
    seconds = max(now - saved_at, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def size_text(size: int) -> str:
    """Return a number of bytes in a unit that suits it.

    >>> size_text(512), size_text(1536), size_text(20_400_000_000)
    ('512 B', '1.5 kB', '20.4 GB')
    """
    amount = float(size)
    for unit in _UNITS:
        if amount < _THOUSAND or unit == _UNITS[-1]:
            break
        amount /= _THOUSAND
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def document_of(directory: Path, rows: Sequence[Row]) -> Mapping[str, Any]:
    """Return the rows as one document for programs."""
    listed = [row.document() for row in rows]
    return {"schema": SCHEMA, "directory": str(directory), "checkpoints": listed}


def sized(row: Row) -> str:
    """Return the name of a checkpoint with its size, and the names of those who keep it."""
    kept = ", ".join(row.manifest.kept) if row.manifest else ""
    note = f"; kept by {kept}" if kept else ""
    return f"{row.name} ({size_text(row.bytes)}{note})"
