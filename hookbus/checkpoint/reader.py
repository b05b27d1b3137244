"""Finds and reads checkpoints, and changes nothing on disk.

A reader holds no lock, so the session that saves may replace or remove a checkpoint while
the reader is reading it. If reading fails, and the checkpoint is no longer the one that was
found, it is not bad: the reader looks again. The session that saves keeps at least its two
newest checkpoints until it closes. So a reader has the time between two saves to finish.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from hookbus.checkpoint.codec import load_codec
from hookbus.checkpoint.manifest import MANIFEST_NAME, RANK_FOLDER, Manifest
from hookbus.checkpoint.parts import check_parts
from hookbus.checkpoint.store import (
    Store,
    StoredCheckpoint,
    cannot_read,
    places_of,
    report_bad,
)
from hookbus.errors import (
    CheckpointError,
    NoGoodCheckpointError,
    UsageError,
    did_you_mean,
    spelled,
)
from hookbus.logs import log, shown
from hookbus.peers.protocol import CHIEF
from hookbus.validation import expanded

T = TypeVar("T")
OnBad = Callable[[Path, str], None]
Check = Callable[[Mapping[str, Any]], None]
"""Raises NoGoodCheckpointError if hookbus, or a hook, never writes such a state."""
_MOST_LOOKS = 100
_MOST_NAMES = 5
"""The most checkpoints that a message lists."""


@attrs.frozen
class CheckpointInfo:
    """A checkpoint on disk.

    Attributes:
        path: its directory, like ``runs/digits/ckpt-120``.
        global_step: the step of the checkpoint.
        ended: how the session that saved it ended, like ``completed``; None if it had not
            ended when it saved, or was killed.
        saved_at: when it was saved, in seconds since the epoch.
        kept: why it is never pruned, by the name of the hook that asked for that.
        values: the numbers that hooks have recorded for its step, by name.

    >>> info = CheckpointInfo(Path("runs/digits/ckpt-120"), 120, values={"val/loss": 0.25})
    >>> info.global_step, info.values["val/loss"], info.ended
    (120, 0.25, None)
    """

    path: Path
    global_step: int
    ended: str | None = None
    saved_at: float = attrs.field(default=0.0, eq=False)
    kept: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    values: Mapping[str, float] = attrs.field(factory=dict, hash=False)


def latest_checkpoint(directory: str | Path) -> CheckpointInfo | None:
    """Return the newest good checkpoint in *directory*, or None without one.

    The call only reads, and another process may save meanwhile. A good checkpoint has an
    unaltered manifest, and its files have the sizes in it. The contents are verified only
    when a session restores it.

    Raises:
        CheckpointError: the directory cannot be read.
        UsageError: another version of hookbus wrote the newest one.

    >>> latest_checkpoint("no/such/directory") is None
    True
    """
    return _first_good(expanded(directory), describe)


def newest_manifest(directory: str | Path) -> tuple[Path, Manifest] | None:
    """Return the path and the manifest of the checkpoint of :func:`latest_checkpoint`.

    Raises:
        CheckpointError: the directory cannot be read.
        UsageError: another version of hookbus wrote the newest one.
    """
    return _first_good(
        expanded(directory), lambda found: (found.path, found.manifest(contents=False))
    )


def list_checkpoints(directory: str | Path) -> list[CheckpointInfo]:
    """Return the good checkpoints in *directory*, the oldest step first.

    :func:`latest_checkpoint` says which checkpoints are good. The call only reads, and
    another process may save meanwhile.

    Raises:
        CheckpointError: the directory, or a file in it, cannot be read.
        UsageError: another version of hookbus wrote one of them.

    >>> list_checkpoints("no/such/directory")
    []
    """
    store, good = Store(directory), dict[int, CheckpointInfo]()
    try:
        for found in store.found():
            try:
                info = describe(found)
            except (NoGoodCheckpointError, OSError) as error:
                if isinstance(error, OSError) and not found.has_changed():
                    raise
                continue
            good.setdefault(info.global_step, info)
    except OSError as error:
        raise cannot_read(store.directory, error) from error
    return [good[step] for step in sorted(good)]


def verify_checkpoint(path: str | Path) -> None:
    """Check that all files of a checkpoint are as they were written, by their hashes.

    The call only reads, and imports no plugin.

    Args:
        path: the directory of the checkpoint, like ``runs/digits/ckpt-120``.

    Raises:
        NoGoodCheckpointError: the checkpoint is missing or damaged.
        UsageError: another version of hookbus wrote it.
        CheckpointError: it cannot be read now.

    >>> verify_checkpoint("no/such/ckpt-1")
    Traceback (most recent call last):
    hookbus.errors.NoGoodCheckpointError: no/such/ckpt-1: its manifest.json is missing
    """
    path = expanded(path)
    try:
        StoredCheckpoint.at(path).manifest()
    except NoGoodCheckpointError as error:
        raise NoGoodCheckpointError(f"{path}: {error}") from error
    except OSError as error:
        raise cannot_read(path, error) from error


def best_checkpoint(
    directory: str | Path, name: str, mode: Literal["min", "max"] = "min"
) -> Path:
    """Return the path of the checkpoint in *directory* with the best value.

    Hooks record values for checkpoints: ``keep_best`` of checkpoint-saver does, and every
    hook can, with ``checkpoints.record_values``. Only checkpoints that are still there
    count; of equal values the first step counts. The call only reads, and another process
    may save meanwhile.

    Args:
        directory: the directory of the checkpoints.
        name: the name of the value: that of a node or report, like ``loss``, or
            ``val/loss`` for the metric ``loss`` of the evaluation ``val``.
        mode: whether the lowest value, ``min``, or the highest, ``max``, is the best.

    Raises:
        UsageError: no checkpoint has a value of this name, with a list of the others; or
            there is no such mode.
        CheckpointError: there is no checkpoint, or the directory cannot be read.

    >>> best_checkpoint("no/such/directory", "val/loss")
    Traceback (most recent call last):
    hookbus.errors.CheckpointError: there is no checkpoint in 'no/such/directory'
    """
    if mode not in ("min", "max"):
        raise UsageError(f"the mode of best_checkpoint() is min or max, given: {mode!r}")
    stored = list_checkpoints(directory)
    if not stored:
        raise no_checkpoint(directory)
    rated = [info for info in stored if name in info.values]
    if not rated:
        raise _no_value(directory, name, {n for info in stored for n in info.values})
    best = min if mode == "min" else max
    return best(rated, key=lambda info: info.values[name]).path


def describe(found: StoredCheckpoint) -> CheckpointInfo:
    """Describe a checkpoint; the contents of its files are not verified.

    Raises:
        NoGoodCheckpointError: it is not good.
        UsageError: another version of hookbus wrote it.
        OSError: it cannot be read now.
    """
    manifest = found.manifest(contents=False)
    return CheckpointInfo(
        found.path,
        manifest.global_step,
        manifest.ended,
        manifest.saved_at,
        manifest.kept,
        manifest.values,
    )


@attrs.frozen(eq=False)
class Restored:
    """The contents of a checkpoint.

    Attributes:
        path: its directory.
        state: its parts by name.
        manifest: how it was written.
        is_own: whether the rank that restores it has saved a part of it. A new rank draws
            random numbers of its own, and not the chief's.
    """

    path: Path
    state: Mapping[str, Any]
    manifest: Manifest
    is_own: bool = True


def for_rank(restored: Restored, rank: int = CHIEF, ranks: int = 1) -> Restored:
    """Return a checkpoint as one rank of so many restores it.

    Raises:
        NoGoodCheckpointError: the part of this rank cannot be read.
    """
    manifest, state = restored.manifest, restored.state
    anew: Mapping[str, Any] = {}
    if manifest.ranks != ranks:
        if rank == CHIEF:
            log.warning(
                "another number of processes saved this checkpoint",
                path=shown(restored.path),
                saved_by=manifest.ranks,
                now=ranks,
                not_carried_over="the position inside a pass over the input, and the "
                "generators and hooks of single processes",
            )
        # Each rank gets another part of the data, so the pass begins anew.
        passes = _at_pass(state.get("passes", {}))
        anew = {"inputs": {}, "passes": passes, "pending": {}}
        state = {**state, **anew}
    is_own = rank < manifest.ranks
    if not is_own:
        state = {**state, "random": {}}
    elif rank != CHIEF:
        own = {"pending": {}, **part_of(restored, rank)}
        tracked = {**state.get("tracked", {}), **own.get("tracked", {})}
        shared = {"variables": state["variables"], "owners": state.get("owners", {})}
        state = {**state, **own, **shared, **anew, "tracked": tracked}
    return attrs.evolve(restored, state=state, is_own=is_own)


def part_of(restored: Restored, rank: int) -> Mapping[str, Any]:
    """Read the part of a checkpoint that a rank has saved, other than the chief.

    Raises:
        NoGoodCheckpointError: it cannot be read.
    """
    codec = load_codec(restored.manifest.codec)
    try:
        part = codec.read(restored.path / RANK_FOLDER.format(rank))
        check_parts(part)
    except CheckpointError as error:
        raise NoGoodCheckpointError(f"{restored.path}: {error}") from error
    return part


def _at_pass(place: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the beginning of the pass in which a place is; of an epoch, if it has some."""
    within = place.get("within", {})
    within = {"pulled": within["pulled"]} if "body" in within else {}
    return {"over": place.get("over", 0), "within": within, "marks": 0}


@attrs.frozen
class NewestIn:
    """Names the newest good checkpoint of a directory, which is chosen at each read.

    Give it to a :class:`ChiefSessionCreator` in place of a path. So a session restores the
    checkpoint that is the newest when it opens, and not one that was removed meanwhile.

    Args:
        directory: the directory of the checkpoints.

    >>> NewestIn("runs/digits").directory.name
    'digits'
    """

    directory: Path = attrs.field(converter=expanded)

    def read(self) -> Restored:
        """Read it.

        Raises:
            NoGoodCheckpointError: there are checkpoints, but none of them is good.
            CheckpointError: there is no checkpoint.
        """
        restored = read_newest(self.directory)
        if restored is None:
            raise no_checkpoint(self.directory)
        return restored


def read_newest(
    directory: str | Path, on_bad: OnBad = report_bad, check: Check = check_parts
) -> Restored | None:
    """Read the newest good checkpoint in *directory*.

    Args:
        directory: where to look.
        on_bad: is called with each newer checkpoint that is bad, and the reason.
        check: checks the state in it.

    Returns:
        The checkpoint, or None if there never was one.

    Raises:
        NoGoodCheckpointError: there are checkpoints, but none of them is good.
        CheckpointError: the directory or a file in it cannot be read.
    """
    restored = _first_good(expanded(directory), partial(_read, check=check), on_bad)
    if restored is None and Store(directory).had_any():
        raise NoGoodCheckpointError(
            f"{directory} contains checkpoints, but none of them is good (see "
            "the warnings above). They were kept: to start from the beginning, remove "
            "the directory, or give another checkpoint_dir"
        )
    return restored


def read_checkpoint(path: str | Path) -> Restored:
    """Read the checkpoint at *path*, also while another one takes its place.

    Raises:
        NoGoodCheckpointError: it is missing or damaged.
        CheckpointError: it cannot be read.
    """
    path, reasons = expanded(path), dict[Path, str]()

    def found() -> list[StoredCheckpoint]:
        candidates = [StoredCheckpoint.at(each) for each in places_of(path)]
        return [each for each in candidates if each.stamp is not None]

    restored = _first_good(path, _read, reasons.__setitem__, found)
    if restored is None:
        reason = reasons.get(path, f"its {MANIFEST_NAME} is missing")
        raise NoGoodCheckpointError(f"cannot restore {path}: {reason}")
    for bad, reason in reasons.items():  # the one that is being replaced stood in
        report_bad(bad, reason)
    return restored


def read_source(source: str | Path) -> Restored:
    """Read a checkpoint, or the newest good one in a directory.

    Raises:
        NoGoodCheckpointError: the checkpoint, or each one in the directory, is damaged.
        CheckpointError: there is no checkpoint, or it cannot be read.
    """
    path = expanded(source)
    restored = read_newest(path)
    if restored is None:
        if not any((place / MANIFEST_NAME).is_file() for place in places_of(path)):
            raise no_checkpoint(source)
        restored = read_checkpoint(path)
    return restored


def load_variables(source: str | Path) -> Mapping[str, Any]:
    """Return the variables of a checkpoint, or of the newest one in a directory.

    Args:
        source: the checkpoint, or the directory of several.

    Returns:
        Name to value, with ``global_step`` among them.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    restored = read_source(source)
    variables: Mapping[str, Any] = restored.state["variables"]
    return {**variables, "global_step": restored.manifest.global_step}


def tracked_by_ranks(restored: Restored, name: str) -> list[Any]:
    """Return the states of a tracked object in a checkpoint, that of the chief first.

    There are several if each rank has saved its own.

    Raises:
        NoGoodCheckpointError: the part of a rank cannot be read.
    """
    states = [restored.state["tracked"][name]]
    for rank in range(1, restored.manifest.ranks):
        own = part_of(restored, rank).get("tracked", {})
        states += [own[name]] if name in own else []
    return states


def _first_good(
    where: Path,
    look: Callable[[StoredCheckpoint], T],
    on_bad: OnBad = lambda *_: None,
    find: Callable[[], list[StoredCheckpoint]] | None = None,
) -> T | None:
    """Return the result of *look* for the first good candidate, or None without one.

    *find* finds the candidates; by default they are those in the directory *where*.

    Raises:
        CheckpointError: they cannot be read, or change faster than they can be read.
    """
    bad: set[StoredCheckpoint] = set()
    find = find or Store(where).found
    try:
        for _ in range(_MOST_LOOKS):
            found = find()
            for candidate in found:
                if candidate in bad:
                    continue
                try:
                    return look(candidate)
                except (NoGoodCheckpointError, OSError) as error:
                    if candidate.has_changed():
                        break
                    if isinstance(error, OSError):
                        raise
                    bad.add(candidate)
                    on_bad(candidate.path, str(error))
            else:
                if find() == found:
                    return None
    except OSError as error:
        raise cannot_read(where, error) from error
    raise CheckpointError(
        f"the checkpoints in {where} are replaced faster than they can be read: keep more "
        "of them with max_to_keep, or save less often"
    )


def _read(found: StoredCheckpoint, check: Check = check_parts) -> Restored:
    manifest = found.manifest()
    codec = load_codec(manifest.codec)
    try:
        state = codec.read(found.path)
    except CheckpointError as error:
        raise NoGoodCheckpointError(str(error)) from error
    check(state)
    return Restored(found.path, state, manifest)


def no_checkpoint(source: str | Path) -> CheckpointError:
    """Return the error for a path without a checkpoint; it lists some beside the path."""
    parent, others = Path(source).parent, ""
    with contextlib.suppress(OSError):
        beside = [found.path.name for found in Store(parent).found()]
        if beside:
            listed = ", ".join(beside[:_MOST_NAMES])
            others = f"; the newest in {str(parent)!r} are {listed}"
    return CheckpointError(f"there is no checkpoint in {str(source)!r}{others}")


def _no_value(directory: str | Path, name: str, known: set[str]) -> UsageError:
    what = f"no checkpoint in {str(directory)!r} has a value {spelled(name)}"
    if not known:
        return UsageError(
            f"{what}, nor any other: hooks record them, like checkpoint-saver with "
            "keep_best (--checkpoint-saver-keep-best 3)"
        )
    listed = ", ".join(map(repr, sorted(known)))
    hint = did_you_mean(str(name), known)
    return UsageError(f"{what}; the values there are {listed}{hint}")
