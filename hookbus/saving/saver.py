"""Writes and reads the checkpoints of one session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from hookbus.backend.protocol import Session
from hookbus.checkpoint.codec import Codec, load_codec
from hookbus.checkpoint.files import CheckpointFiles, create_directory, sync
from hookbus.checkpoint.lock import DirectoryLock
from hookbus.checkpoint.manifest import RANK_FOLDER, FileRecord, Manifest
from hookbus.checkpoint.reader import (
    NewestIn,
    Restored,
    for_rank,
    read_checkpoint,
    read_newest,
)
from hookbus.checkpoint.retention import Retention
from hookbus.checkpoint.store import Store, report_bad
from hookbus.errors import (
    CheckpointDirectoryError,
    CheckpointError,
    PeersDisagreeError,
    UsageError,
    text_of,
)
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.hooks.outcome import SaveRequest, was_cut_short
from hookbus.logs import log, shown
from hookbus.peers.agreement import Agreement
from hookbus.process.forks import ForkGuard
from hookbus.saving.contents import Contents
from hookbus.saving.leaves import Snapshot

_SECONDS_TO_APPEAR = 10.0
"""How long a file of another host may take to appear on a shared disk."""


@attrs.define(eq=False)
class Saver:
    """Writes and reads the checkpoints of one session.

    Attributes:
        checkpoints: the directory and the number of checkpoints to keep.
        retention: removes old checkpoints.
        contents: the parts of the session that the checkpoints contain.
        versions: the versions of everything that takes part, for the manifest.
        last_step: the step that was restored or saved last, or None.
        last_path: the directory of that checkpoint.
        ended: how the session ended, once that is recorded in the checkpoint.
        is_displaced: whether the directory was replaced by that of another training.
        agreement: what this process agrees on with the others of the training; None if it
            trains alone.
        fork_guard: tells whether the session belongs to the parent of this process.
    """

    checkpoints: Checkpoints
    retention: Retention
    contents: Contents
    versions: Mapping[str, str]
    last_step: int | None = None
    last_path: Path | None = None
    ended: str | None = None
    is_displaced: bool = False
    agreement: Agreement | None = None
    fork_guard: ForkGuard = attrs.field(factory=ForkGuard)
    _last_manifest: Manifest | None = None
    _codec: tuple[str, Codec] | None = None
    _lock: DirectoryLock | None = None
    _last_version: int | None = None
    _last_files: Mapping[str, FileRecord] | None = None
    _sealed: int | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what there is once."""
        return self.agreement is None or self.agreement.is_chief

    @property
    def store(self) -> Store:
        """The directory that holds the checkpoints."""
        if self.checkpoints.directory is None:
            raise CheckpointError("the session has no checkpoint_dir to save into")
        return Store(self.checkpoints.directory)

    def prepare(self) -> None:
        """Check, before the first step, that saving will work.

        Raises:
            CheckpointError: the directory cannot be written, or no codec is installed.
            ForkedSessionError: the parent of this process opened the session.
        """
        self.fork_guard.check()  # a hook may have forked in begin
        if self.checkpoints.enabled_by is not None and not self.is_chief:
            self._codec = load_codec()
        elif self.checkpoints.enabled_by is not None:
            self.store.prepare()
            self._lock = DirectoryLock(self.store.directory)
            self._lock.take()
            self.store.clear()
            self._codec = load_codec()
        if self.checkpoints.failed_directory is not None:
            Store(self.checkpoints.failed_directory).prepare()
            self._codec = load_codec()

    def check_shared(self) -> None:
        """Check that the ranks have one directory, and not several of the same name.

        Raises:
            PeersDisagreeError: some do not see what the chief has written there.
        """
        directory, agreement = self.checkpoints.directory, self.agreement
        if directory is None or agreement is None:
            return
        name = f".hookbus-{os.getpid()}-{time.time_ns()}"
        token = directory / agreement.broadcast(name)
        if self.is_chief:
            create_directory(directory)
            token.touch()
        agreement.gather()  # it is there
        end = time.monotonic() + _SECONDS_TO_APPEAR
        # The ranks look together, so that none waits for another longer than it has to.
        while not all(seen := agreement.gather(token.exists())):
            if agreement.broadcast(time.monotonic() > end):
                break
            time.sleep(0.1)
        if self.is_chief:
            token.unlink()
        if not all(seen):
            blind = ", ".join(str(rank) for rank, sees in enumerate(seen) if not sees)
            raise PeersDisagreeError(
                f"rank {blind} does not see the checkpoint directory of rank 0, "
                f"{directory}: give a checkpoint_dir on a disk that all hosts share"
            )

    def close(self) -> None:
        """Allow other sessions to save into the directory."""
        if self._lock is None or self.fork_guard.is_abandoned:
            return
        try:
            self.is_displaced |= self._lock.is_lost and self.store.directory.is_dir()
            if not self.is_displaced:
                self.retention.finish()
        finally:
            self._lock.release()

    def abandon_after_fork(self) -> None:
        """Leave the lock to the parent, in a forked child, where nothing is written."""
        if self._lock is not None:
            self._lock.abandon_after_fork()

    def restore(
        self,
        session: Session,
        training: bool = True,
        path: str | Path | NewestIn | None = None,
    ) -> Restored | None:
        """Load the newest good checkpoint: variables, step, input positions.

        Args:
            session: the session to load it into.
            training: whether the graph must have all variables of the checkpoint, and the
                session may continue in the input.
            path: load this checkpoint instead.

        Returns:
            The checkpoint, or None if there never was one.

        Raises:
            NoGoodCheckpointError: there are checkpoints, but none of them is good.
            CheckpointMismatchError: another graph wrote it.
        """
        self.last_step, self._last_files = None, None
        self.contents.release_position()
        if path is None:
            restored = self._newest() if training else self._read_newest()
        else:
            restored = self._named(path)
        if restored is None:
            return None
        self.contents.load(session, restored, training)
        log.info("restored", path=shown(restored.path), step=session.global_step)
        if path is None:
            self.last_step = restored.manifest.global_step
            self._last_version = session.version
            self.last_path, self._last_manifest = restored.path, restored.manifest
        return restored

    def newest(self, who: str) -> Restored:
        """Return the newest good checkpoint, to which a hook rolls back.

        Raises:
            UsageError: the session saves nothing, or there is no checkpoint.
            NoGoodCheckpointError: there are checkpoints, but none of them is good.
        """
        asked = f"hook {who!r} called run_context.request_rollback()"
        if self.checkpoints.enabled_by is None:
            raise UsageError(
                f"{asked}, but the session saves no checkpoint: give it a checkpoint_dir, "
                "and switch checkpoint-saver on"
            )
        restored = self._newest()
        if restored is None:
            raise UsageError(f"{asked}, but there is no checkpoint yet")
        return restored

    def put_back(
        self, session: Session, restored: Restored, seek: Callable[[], None] | None
    ) -> None:
        """Give a custom loop the state of a checkpoint.

        *seek* moves its input back; None leaves it where it is.
        """
        self.contents.put_back(session, restored, seek)
        self.last_step, self._last_version = session.global_step, session.version
        self.last_path, self._last_manifest = restored.path, restored.manifest
        # The input goes on elsewhere, so this state is not saved yet.
        self.contents.release_position()
        self._last_files = {}

    def write(self, session: Session, snapshot: Snapshot, request: SaveRequest) -> Path:
        """Write a checkpoint of the current step; return its directory.

        Variables that were written since the snapshot are saved with their new values,
        also those inside tracked objects.

        Raises:
            CheckpointError: it cannot be written.
            UsageError: another session saves into the directory, which was replaced.
            ForkedSessionError: the parent of this process opened the session.
        """
        self.fork_guard.check()
        if session.version != snapshot.version:
            snapshot = self.contents.snapshot(session)
        self._renew_lock()
        step, contents = session.global_step, self._gather(session, snapshot)
        replaced = self._last_manifest if step == self.last_step else None
        ended, kept, values = None, dict(request.kept), self.retention.take_values(step)
        if replaced is not None:
            kept = {**replaced.kept, **kept}
            if session.version == self._last_version:
                # As long as nothing is trained, the session before ended here, and the
                # model has the same values.
                ended, values = replaced.ended, {**replaced.values, **values}
        manifest = self._manifest(session, request, ended)
        manifest = attrs.evolve(manifest, kept=kept, values=values)
        path = self.store.directory / f"ckpt-{step}"
        files: Mapping[str, FileRecord]
        if self.is_chief:
            path, manifest = self.store.write(manifest, partial(self._fill, contents))
            files = {n: record for n, record in manifest.files.items() if "/" not in n}
        else:
            files = self._write_part(contents)
        if self.agreement is not None:
            self.agreement.gather()  # it stands
        self.last_step, self.last_path, self._last_manifest = step, path, manifest
        self._last_version, self._last_files = session.version, files
        by, why = request.who, request.why
        log.info("checkpoint saved", path=shown(path), step=step, by=by, why=why)
        self.retention.log_kept(path, kept)
        if self.is_chief:
            self.retention.prune(path)
        return path

    def _fill(self, contents: Mapping[str, Any], files: CheckpointFiles) -> None:
        """Write the files of a checkpoint, and have other ranks write theirs."""
        agreement, codec = self.agreement, self._loaded_codec()[1]
        if agreement is None:
            codec.write(contents, files)
            return
        agreement.broadcast(str(files.directory))
        codec.write(contents, files)
        for rank, records in enumerate(agreement.gather({})):
            folder = RANK_FOLDER.format(rank)
            for name, (size, digest) in records.items():
                files.records[f"{folder}/{name}"] = FileRecord(size, digest)

    def _write_part(self, contents: Mapping[str, Any]) -> Mapping[str, FileRecord]:
        """Write what this rank saves into the chief's checkpoint; return its files."""
        agreement = self.agreement
        assert agreement is not None
        whole = Path(agreement.broadcast())
        part = whole / RANK_FOLDER.format(agreement.peers.rank)
        files = CheckpointFiles(part)
        try:
            part.mkdir()
            self._loaded_codec()[1].write(contents, files)
            sync(part)
        except OSError as error:
            raise CheckpointError(f"cannot write {part}: {text_of(error)}") from error
        records = files.records
        agreement.gather({n: [each.bytes, each.sha256] for n, each in records.items()})
        return records

    def write_failed(self, session: Session, snapshot: Snapshot, why: str) -> Path:
        """Write the checkpoint of a session that failed; return its directory.

        No session restores it by itself: it is apart from the others.

        Raises:
            CheckpointError: it cannot be written.
            UsageError: another session is writing one into the directory.
        """
        directory, who = self.checkpoints.failed_directory, self.checkpoints.failed_by
        assert directory is not None
        assert who is not None
        lock, store = DirectoryLock(directory), Store(directory)
        create_directory(directory)
        lock.take()
        try:
            manifest = self._manifest(session, SaveRequest(who, why), ended="failed")
            contents = self._gather(session, snapshot)
            codec = self._loaded_codec()[1]
            path, _ = store.write(manifest, partial(codec.write, contents))
            if self.checkpoints.max_to_keep is not None:
                store.prune(self.checkpoints.max_to_keep, path)
        finally:
            lock.release()
        log.info(
            "checkpoint of the failed session saved",
            path=shown(path),
            step=manifest.global_step,
            by=who,
        )
        return path

    def _manifest(
        self, session: Session, request: SaveRequest, ended: str | None
    ) -> Manifest:
        """Describe a checkpoint that is about to be written."""
        return Manifest(
            session.global_step,
            self._loaded_codec()[0],
            request.who,
            request.why,
            files={},
            versions=dict(self.versions),
            ended=ended,
            wraps=self.contents.graph.wraps,
            saved_at=time.time(),
        )

    def keep_last(self, request: SaveRequest) -> None:
        """Keep the last checkpoint for good, which already has what a request asks for."""
        manifest, path = self._last_manifest, self.last_path
        if (
            manifest is None
            or path is None
            or manifest.kept.items() >= request.kept.items()
        ):
            return
        self._last_manifest = attrs.evolve(manifest, kept={**manifest.kept, **request.kept})
        if not self.is_chief:
            return
        self.retention.rewrite(path, self._last_manifest, "that it is kept")
        self.retention.log_kept(path, request.kept)

    def record_values(self, current: int) -> None:
        """Record the numbers that :attr:`retention` has taken; *current* is the step."""
        if not self.is_chief:  # whose values are recorded
            self.retention.values.clear()
            return
        if self._lock is not None and self._lock.is_lost:
            return  # the directory may be that of another training
        last, path = self.last_step, self.last_path
        changed = self.retention.record_values(-1 if last is None else last, current)
        if changed and path is not None:
            self._last_manifest = changed.get(path, self._last_manifest)
            self.retention.prune(path)

    @property
    def is_marked(self) -> bool:
        """Whether the last checkpoint is that of a session that ended by itself."""
        manifest = self._last_manifest
        return manifest is not None and not was_cut_short(manifest.ended)

    def mark_ended(self, step: int, kind: str) -> None:
        """Record in the checkpoint of *step* that the session ended there, and how."""
        self.fork_guard.check()
        if self.last_path is None or self._last_manifest is None or self.last_step != step:
            return
        manifest = attrs.evolve(self._last_manifest, ended=kind)
        if self.is_chief:
            self.retention.rewrite(self.last_path, manifest, "how the session ended")
        self.ended = kind

    def mark_ended_late(self, step: int, kind: str) -> None:
        """Do the same after :meth:`close`, unless another session saves there by then."""
        if self._lock is None:
            return
        try:
            self._lock.take()
        except UsageError:
            return
        try:
            self.mark_ended(step, kind)
        finally:
            self._lock.release()

    def _renew_lock(self) -> None:
        """Lock the directory again if it was removed or renamed since the last save.

        Raises:
            UsageError: another training saves, or has saved, into the new directory.
        """
        if self._lock is None:
            return
        try:
            renewed = self._lock.renew()
            if renewed and self.store.found() and not self._is_last_in_place():
                self._lock.release()
                raise UsageError(
                    f"{self.store.directory} was removed or renamed during the training, "
                    "and another training has saved checkpoints there since: give another "
                    "checkpoint_dir"
                )
        except UsageError as error:
            self.is_displaced = not isinstance(error, CheckpointDirectoryError)
            raise

    def _is_last_in_place(self) -> bool:
        """Return whether the last checkpoint of this session is still in the directory."""
        if self.last_path is None:
            return False
        try:
            return Manifest.read(self.last_path) == self._last_manifest
        except (CheckpointError, UsageError):
            return False

    def is_saved(self, session: Session) -> bool:
        """Return whether the last checkpoint has the current step and variables."""
        if (session.global_step, session.version) != (self.last_step, self._last_version):
            return False
        if self._lock is not None and self._lock.is_lost:
            return False
        return self.last_path is not None and self.last_path.is_dir()

    def is_safe(self, session: Session, snapshot: Snapshot) -> bool:
        """Return whether the last checkpoint contains the current state."""
        if not self.is_saved(session):
            return False
        if self._sealed == session.global_step:
            return True
        if self._last_files is None:  # it was restored, and nothing has begun since
            return True
        files = self._files_of(session, snapshot)
        return bool(files) and files == self._last_files

    def seal(self, session: Session) -> None:
        """Write no further checkpoint of this step if there is one.

        A signal cuts a custom loop short, but the program goes on behind the loop. A
        resumed one does that, too, so it must not find it done.
        """
        if self.is_saved(session):
            self._sealed = session.global_step

    def note_restored(self, session: Session) -> None:
        """Note the state that hooks and tracked objects have taken over from a checkpoint.

        Called before anything runs, so that a later state is told apart from it. The files
        of the checkpoint do not tell: a hook may be new, and an input begin anew.
        """
        if self.last_step is not None and self.checkpoints.enabled_by is not None:
            self._last_files = self._files_of(session, self.contents.snapshot(session))

    def _files_of(self, session: Session, snapshot: Snapshot) -> Mapping[str, FileRecord]:
        """Return the files that a save would write; none if it would fail.

        They are hashed piece by piece, and not written.
        """
        files, contents = CheckpointFiles(), self._gather(session, snapshot)
        try:
            self._loaded_codec()[1].write(contents, files)
        except CheckpointError:  # the save itself raises it, and tells what to do
            return {}
        return files.records

    def _gather(self, session: Session, snapshot: Snapshot) -> dict[str, Any]:
        """Return what this rank saves."""
        return self.contents.gather(session, snapshot, is_chief=self.is_chief)

    def _loaded_codec(self) -> tuple[str, Codec]:
        if self._codec is None:
            self._codec = load_codec()
        return self._codec

    def _newest(self) -> Restored | None:
        """Read the newest good checkpoint, as this rank restores it."""
        if self.agreement is None:
            restored = self._read_newest()
            return restored and for_rank(restored)
        restored = self._read_newest() if self.is_chief else None
        chosen = self.agreement.broadcast(restored and restored.path.name)
        if chosen is None:
            return None
        if restored is None:
            restored = read_checkpoint(self.store.directory / chosen)
        peers = self.agreement.peers
        return for_rank(restored, peers.rank, peers.size)

    def _named(self, path: str | Path | NewestIn) -> Restored:
        """Read a checkpoint that the program names; all ranks read the same one.

        Raises:
            NoGoodCheckpointError, CheckpointError: it is not there, or not good.
        """
        if not isinstance(path, NewestIn):
            return read_checkpoint(path)
        if self.agreement is None:
            return path.read()
        restored = path.read() if self.is_chief else None
        chosen = self.agreement.broadcast(restored and str(restored.path))
        return read_checkpoint(chosen) if restored is None else restored

    def _read_newest(self) -> Restored | None:
        """Read the newest good checkpoint; rename bad ones only with the lock."""
        if self.checkpoints.directory is None:
            return None
        store = self.store
        return read_newest(
            store.directory, store.set_aside if self._lock is not None else report_bad
        )
