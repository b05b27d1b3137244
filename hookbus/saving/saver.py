"""Writes and reads the checkpoints of one session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.backend.protocol import Session
from hookbus.checkpoint.codec import DEFAULT
from hookbus.checkpoint.files import CheckpointFiles, check_no_link, create_directory
from hookbus.checkpoint.lock import DirectoryLock
from hookbus.checkpoint.manifest import FileRecord, Manifest, short_params
from hookbus.checkpoint.reader import (
    NewestIn,
    Restored,
    for_rank,
    read_checkpoint,
    read_newest,
)
from hookbus.checkpoint.store import Store, report_bad
from hookbus.errors import (
    CheckpointDirectoryError,
    CheckpointError,
    PeersDisagreeError,
    UsageError,
)
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.hooks.outcome import SaveRequest
from hookbus.logs import log, shown
from hookbus.peers.agreement import Agreement
from hookbus.process.forks import ForkGuard
from hookbus.saving.contents import Contents, Snapshot
from hookbus.saving.last_save import LastSave
from hookbus.saving.retention import Retention, is_kept_for_good
from hookbus.saving.writing import Draft, Writer, Written

_SECONDS_TO_APPEAR = 10.0
"""How long a file of another host may take to appear on a shared disk."""


@attrs.define(eq=False)
class Saver:
    """Writes and reads the checkpoints of one session.

    Attributes:
        retention: removes old checkpoints.
        contents: the parts of the session that the checkpoints contain.
        versions: the versions of hookbus and of all plugins that take part.
        agreement: the link to the other ranks; None if this process trains alone.
        fork_guard: detects a forked child of the process that opened the session.
        last: the checkpoint that was restored or saved last; None before the first.
        is_displaced: whether the directory was replaced by that of another session.
        writer: writes the files.
    """

    retention: Retention
    contents: Contents
    versions: Mapping[str, str]
    agreement: Agreement | None = None
    fork_guard: ForkGuard = attrs.field(factory=ForkGuard)
    last: LastSave | None = None
    is_displaced: bool = False
    writer: Writer = attrs.field(factory=Writer)
    _lock: DirectoryLock | None = None

    @property
    def checkpoints(self) -> Checkpoints:
        """The directory and the number of checkpoints to keep."""
        return self.retention.checkpoints

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the parts that all ranks share."""
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
        if self.checkpoints.enabled_by is not None:
            if self.is_chief:
                self.store.prepare()
                self._lock = DirectoryLock(self.store.directory)
                self._lock.take()
                self.store.clear()
            self.writer.prepare()
        failed = self._failed_directory()
        if failed is not None:
            Store(failed).prepare()
            self.writer.prepare()

    def check_shared(self) -> None:
        """Check that all ranks see one directory, and not several of one name.

        Raises:
            PeersDisagreeError: a rank does not see a file that the chief has written there.
        """
        directory, agreement = self.checkpoints.directory, self.agreement
        if directory is None or agreement is None:
            return
        name = f".hookbus-{os.getpid()}-{time.time_ns()}"
        token = directory / agreement.broadcast(name)
        if self.is_chief:
            create_directory(directory)
            token.touch(exist_ok=False)
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
        self.writer.abandon_after_fork()
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
        self.last = None
        self.contents.unfreeze_position()
        if path is None:
            restored = self._newest() if training else self._read_newest()
        else:
            restored = self._named(path)
        if restored is None:
            return None
        self.contents.load(session, restored, training)
        log.info("restored", path=shown(restored.path), step=session.global_step)
        if path is None:
            manifest = restored.manifest
            step, version = manifest.global_step, session.version
            self.last = LastSave(
                step, restored.path, manifest, version, restored_end=manifest.ended
            )
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
        # The input goes on elsewhere, so this state is not saved yet.
        self.contents.unfreeze_position()
        self._note(
            session.global_step, session.version, restored.path, restored.manifest, {}
        )

    def draft(self, session: Session, snapshot: Snapshot, request: SaveRequest) -> Draft:
        """Return the checkpoint of the current step, which is to be written.

        Variables that were written since the snapshot are saved with their new values,
        also those inside tracked objects.

        Raises:
            CheckpointError: a value cannot be saved.
            UsageError: another session saves into the directory, which was replaced.
            ForkedSessionError: the parent of this process opened the session.
        """
        self.fork_guard.check()
        since = snapshot.since
        if session.version != snapshot.version:
            snapshot = self.contents.snapshot(session)
        self._renew_lock()
        step, contents = session.global_step, self._gather(session, snapshot)
        last = self.last
        ended, kept, values = None, dict(request.kept), self.retention.take_values(step)
        if last is not None and last.step == step:  # this one replaces it
            before = last.manifest
            kept = {**before.kept, **kept}
            if session.version == last.version:
                # As long as nothing is trained, the session before ended here, and the
                # model has the same values.
                ended, values = before.ended, {**before.values, **values}
        manifest = self._manifest(session, request, ended)
        manifest = attrs.evolve(manifest, kept=kept, values=values)
        return Draft(contents, manifest, session.version, since)

    def write(self, draft: Draft) -> Path:
        """Write a checkpoint; return its directory.

        Raises:
            CheckpointError: it cannot be written.
        """
        return self._conclude(draft, self.writer.write(draft, self.store, self.agreement))

    def write_in_background(self, draft: Draft) -> None:
        """Begin to write a copy of a checkpoint; :meth:`settle` takes it over later.

        Raises:
            CheckpointError: its folder cannot be made.
        """
        self.writer.write_in_background(draft, self.store, self.agreement)

    def settle(self, most_secs: float) -> Path:
        """Take over the checkpoint that is under way; return its directory.

        Args:
            most_secs: how long to wait for it.

        Raises:
            CheckpointError: it cannot be written, or is not written by then.
        """
        return self._conclude(*self.writer.settle(most_secs), in_background=True)

    def _conclude(
        self, draft: Draft, written: Written, in_background: bool = False
    ) -> Path:
        """Note a checkpoint that stands, and remove those that are too many."""
        step, path, manifest = draft.step, written.path, written.manifest
        self._note(step, draft.version, path, manifest, written.files)
        by, why = manifest.saved_by, manifest.why
        log.info("checkpoint saved", path=shown(path), step=step, by=by, why=why)
        self.retention.log_kept(path, manifest.kept)
        if self.is_chief:
            self.retention.prune(path, in_background)
        return path

    def _note(
        self,
        step: int,
        version: int,
        path: Path,
        manifest: Manifest,
        files: Mapping[str, FileRecord],
    ) -> None:
        """Note the checkpoint of a step, which has the variables of a version."""
        last = self.last
        is_final = last is not None and last.is_final and last.step == step
        self.last = LastSave(step, path, manifest, version, files, is_final=is_final)

    def write_failed(self, session: Session, snapshot: Snapshot, why: str) -> Path:
        """Write the checkpoint of a session that failed; return its directory.

        No session restores this checkpoint automatically: it has its own directory.

        Raises:
            CheckpointError: the checkpoint cannot be written.
            UsageError: another session is writing one into the directory.
        """
        directory, who = self._failed_directory(), self.checkpoints.failed_by
        assert directory is not None
        assert who is not None
        lock, store = DirectoryLock(directory), Store(directory)
        create_directory(directory)
        lock.take()
        try:
            manifest = self._manifest(session, SaveRequest(who, why), ended="failed")
            contents = self._gather(session, snapshot)
            draft = Draft(contents, manifest, session.version, snapshot.since)
            path = self.writer.write(draft, store, None).path
            if self.checkpoints.max_to_keep is not None:
                store.prune(self.checkpoints.max_to_keep, path, is_kept_for_good)
        finally:
            lock.release()
        log.info(
            "checkpoint of the failed session saved",
            path=shown(path),
            step=manifest.global_step,
            by=who,
        )
        return path

    def _failed_directory(self) -> Path | None:
        """Return the directory for the checkpoint of a failed session.

        Raises:
            CheckpointDirectoryError: it is a link, unless a hook has named it.
        """
        failed, above = self.checkpoints.failed_directory, self.checkpoints.directory
        if failed is not None and failed.parent == above:
            check_no_link(failed)
        return failed

    def _manifest(
        self, session: Session, request: SaveRequest, ended: str | None
    ) -> Manifest:
        """Describe a checkpoint that is about to be written."""
        versions = {
            "hookbus": self.versions["hookbus"],
            "backend": session.label,
            **self.versions,
        }
        return Manifest(
            session.global_step,
            DEFAULT,
            request.who,
            request.why,
            files={},
            versions=versions,
            ended=ended,
            wraps=self.contents.graph.wraps,
            saved_at=time.time(),
            params=short_params(self.contents.params),
        )

    def keep_last(self, request: SaveRequest) -> None:
        """Serve a request by keeping the last checkpoint, which is up to date, for good."""
        last = self.last
        if last is not None and self.is_chief and not self.retention.has_pruned:
            # A session that was killed after its last save has removed no older one.
            self.retention.prune(last.path)
        if last is None or last.manifest.kept.items() >= request.kept.items():
            return
        kept = {**last.manifest.kept, **request.kept}
        manifest = attrs.evolve(last.manifest, kept=kept)
        self.last = attrs.evolve(last, manifest=manifest)
        if not self.is_chief:
            return
        self.retention.rewrite(last.path, manifest, "that it is kept")
        self.retention.log_kept(last.path, request.kept)

    def record_values(self, current: int) -> None:
        """Record the numbers that :attr:`retention` has taken; *current* is the step."""
        if not self.is_chief:  # only the chief's values are recorded
            self.retention.values.clear()
            return
        if self._lock is not None and self._lock.is_lost:
            return  # the directory may belong to another training run
        last = self.last
        under_way = self.writer.under_way
        if under_way is not None:  # a checkpoint that does not stand yet
            current = min(current, under_way.writing.draft.step)
        changed = self.retention.record_values(-1 if last is None else last.step, current)
        if changed and last is not None:
            manifest = changed.get(last.path, last.manifest)
            self.last = attrs.evolve(last, manifest=manifest)
            self.retention.prune(last.path)

    def mark_ended(self, step: int, kind: str) -> None:
        """Record in the checkpoint of *step* how the session ended at this step.

        No checkpoint is changed if the last one is of another step.
        """
        self.fork_guard.check()
        last = self.last
        if last is None or last.step != step:
            return
        manifest = attrs.evolve(last.manifest, ended=kind)
        if self.is_chief and manifest != last.manifest:
            self.retention.rewrite(last.path, manifest, "how the session ended")
        self.last = attrs.evolve(last, manifest=manifest, ended=kind)

    def mark_ended_late(self, step: int, kind: str) -> None:
        """Record after :meth:`close` how the session ended.

        The checkpoint stays as it is if another session saves into the directory by then.
        """
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
            UsageError: another training run saves, or has saved, into the new directory.
        """
        if self._lock is None:
            return
        try:
            renewed, last = self._lock.renew(), self.last
            if renewed and self.store.found() and not (last and last.is_in_place()):
                self._lock.release()
                raise UsageError(
                    f"{self.store.directory} was removed or renamed during the training, "
                    "and another training run has saved checkpoints there since: give "
                    "another checkpoint_dir"
                )
        except UsageError as error:
            self.is_displaced = not isinstance(error, CheckpointDirectoryError)
            raise

    def is_saved(self, session: Session) -> bool:
        """Return whether the last checkpoint has the current step and variables."""
        if self.last is None or not self.last.has_variables_of(session):
            return False
        return self._lock is None or not self._lock.is_lost

    def is_safe(self, session: Session, snapshot: Snapshot) -> bool:
        """Return whether the last checkpoint contains the current state."""
        if self.last is None or not self.is_saved(session):
            return False
        if self.last.is_final or self.last.files is None:
            return True
        files = self._files_of(session, snapshot)
        return bool(files) and files == self.last.files

    def skip_further_saves(self, session: Session) -> None:
        """Write no further checkpoint of this step if the step is saved.

        After a signal, the code after the loop still runs and may change the model. A
        resumed program runs the code again, so no checkpoint may contain its effects.
        """
        if self.last is not None and self.is_saved(session):
            self.last = attrs.evolve(self.last, is_final=True)

    def note_restored(self, session: Session) -> None:
        """Note the state of hooks and tracked objects after they were restored.

        Called before the first run, so that a later state can be compared with this one.
        The checkpoint cannot serve for that: a hook may be new, or an input may begin anew.
        """
        if self.last is not None and self.checkpoints.enabled_by is not None:
            files = self._files_of(session, self.contents.snapshot(session))
            self.last = attrs.evolve(self.last, files=files)

    def note_moved(self) -> None:
        """Note that the program has moved on since the restored checkpoint, in its passes.

        The next save is written, even if no step was done.
        """
        if self.last is not None:
            self.last = attrs.evolve(self.last, files={})

    def _files_of(self, session: Session, snapshot: Snapshot) -> Mapping[str, FileRecord]:
        """Return the files that a save would write; none if it would fail.

        They are hashed piece by piece, and not written.
        """
        files, contents = CheckpointFiles(), self._gather(session, snapshot)
        try:
            self.writer.codec.write(contents, files)
        except CheckpointError:  # the save itself raises it, and tells what to do
            return {}
        return files.records

    def _gather(self, session: Session, snapshot: Snapshot) -> dict[str, Any]:
        """Return the contents of this rank's part of a checkpoint."""
        return self.contents.gather(session, snapshot, is_chief=self.is_chief)

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
        """Read a checkpoint that the program names. All ranks read the chief's choice.

        Raises:
            NoGoodCheckpointError, CheckpointError: the checkpoint is missing, or not good.
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
        on_bad = store.set_aside if self._lock is not None else report_bad
        return read_newest(store.directory, on_bad, self.contents.check)
