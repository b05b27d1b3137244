"""Writes one checkpoint, in the session's thread or in one of its own.

Several ranks write it together: each writes its own part, and it counts when all have
written theirs. The work that all ranks do together happens in the session's thread: to
begin it, and to complete it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.checkpoint.codec import Codec, load_codec
from hookbus.checkpoint.files import CheckpointFiles, discard, sync
from hookbus.checkpoint.manifest import RANK_FOLDER, FileRecord, Manifest
from hookbus.checkpoint.store import Store
from hookbus.errors import CheckpointError, text_of
from hookbus.logs import log
from hookbus.peers.agreement import Agreement
from hookbus.saving.copies import Copies

_PATIENCE = 1.0
"""The seconds of waiting after which a line is logged."""


@attrs.frozen(eq=False)
class Draft:
    """A checkpoint that is to be written.

    Attributes:
        contents: the contents of this rank's part.
        manifest: its description, without files.
        version: ``session.version`` when the session had these variables.
        since: when the save began, on the clock of ``time.monotonic``.
    """

    contents: Mapping[str, Any]
    manifest: Manifest
    version: int
    since: float

    @property
    def step(self) -> int:
        """The global step."""
        return self.manifest.global_step


@attrs.frozen(eq=False)
class Written:
    """A checkpoint that stands.

    Attributes:
        path: its directory.
        manifest: its manifest; on other ranks than the chief without files.
        files: the files of this rank's part.
    """

    path: Path
    manifest: Manifest
    files: Mapping[str, FileRecord]


@attrs.define(eq=False)
class Writing:
    """Writes one checkpoint.

    Attributes:
        draft: the checkpoint.
        store: the directory of the checkpoints.
        codec: writes the files.
        agreement: the link to the other ranks; None if this process trains alone.
        copies: makes the copy of the draft; None if it is not copied.
        seconds: how long the save took until this rank had written its part.
        is_left: whether nobody waits for it any more, so that it must not appear.
    """

    draft: Draft
    store: Store
    codec: Codec
    agreement: Agreement | None = None
    copies: Copies | None = None
    seconds: float = 0.0
    is_left: bool = False
    _folder: Path = attrs.field(init=False)
    _files: CheckpointFiles = attrs.field(init=False)
    _written: Written | None = None
    _error: BaseException | None = None

    def begin(self) -> None:
        """Make the place for the files, on all ranks together.

        Raises:
            CheckpointError: it cannot be made.
        """
        agreement = self.agreement
        if not self._is_part:
            self._folder = self.store.begin(self.draft.step)
        if agreement is not None:
            whole = agreement.broadcast(str(self._folder) if agreement.is_chief else None)
            if self._is_part:
                self._folder = Path(whole) / RANK_FOLDER.format(agreement.peers.rank)
        self._files = CheckpointFiles(self._folder)

    def fill(self) -> None:
        """Write this rank's files; a process that trains alone completes the checkpoint.

        An error is kept for :meth:`complete`, so that all ranks hear of it.
        """
        try:
            if self.copies is not None:
                self.copies.await_all()
            if self._is_part:
                self._folder.mkdir()
            self.codec.write(self.draft.contents, self._files)
            if self.is_left:
                discard(self._folder)
            elif self.agreement is None:
                records = self._files.records
                path, manifest = self.store.complete(
                    self._folder, self.draft.manifest, records
                )
                self._written = Written(path, manifest, records)
            elif self._is_part:
                sync(self._folder)
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - self.draft.since

    def complete(self) -> Written:
        """Complete the checkpoint, on all ranks together; return what stands.

        Raises:
            CheckpointError: it cannot be written; earlier checkpoints are intact.
        """
        if self.agreement is not None:
            self._complete_together(self.agreement)
        if self._error is not None:
            if not self._is_part:
                discard(self._folder)
            raise self._refusal(self._error)
        assert self._written is not None
        return self._written

    def _complete_together(self, agreement: Agreement) -> None:
        """Have the chief complete it if all ranks have written their parts."""
        own = self._files.records
        told = {name: [each.bytes, each.sha256] for name, each in own.items()}
        parts = agreement.gather([told, self._why()])
        self._note_failed({rank: why for rank, (_, why) in enumerate(parts) if why})
        path, manifest = self.store.path_of(self.draft.step), self.draft.manifest
        if agreement.is_chief and self._error is None:
            every = dict(own)
            for rank, (files, _) in enumerate(parts[1:], 1):
                for name, (size, digest) in files.items():
                    every[f"{RANK_FOLDER.format(rank)}/{name}"] = FileRecord(size, digest)
            try:
                path, manifest = self.store.complete(self._folder, manifest, every)
            except BaseException as error:
                self._error = error
        self._note_failed({0: why} if (why := agreement.broadcast(self._why())) else {})
        self._written = Written(path, manifest, own)

    def _why(self) -> str | None:
        """Return why this rank cannot write its part, for the others."""
        return None if self._error is None else text_of(self._refusal(self._error))

    def _note_failed(self, failed: Mapping[int, str]) -> None:
        """Fail on this rank, too, if others cannot write their parts."""
        if failed and self._error is None:
            rank, why = min(failed.items())
            self._error = CheckpointError(f"rank {rank}: {why}")

    def _refusal(self, error: BaseException) -> BaseException:
        """Return the error for the user."""
        if self._is_part:
            if isinstance(error, OSError):
                return CheckpointError(f"cannot write {self._folder}: {text_of(error)}")
            return error
        return self.store.refusal(self.draft.step, error)

    @property
    def _is_part(self) -> bool:
        """Whether this rank writes a part of the chief's checkpoint."""
        return self.agreement is not None and not self.agreement.is_chief


class BackgroundWriting:
    """Fills a checkpoint in a thread, while the program goes on.

    Args:
        writing: the checkpoint, which has begun.
    """

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        self._thread = threading.Thread(
            target=writing.fill, name="hookbus-saving", daemon=True
        )
        self._thread.start()

    @property
    def is_filled(self) -> bool:
        """Whether the thread has ended, well or not."""
        return not self._thread.is_alive()

    @property
    def elapsed(self) -> float:
        """The seconds since the save began."""
        return time.monotonic() - self.writing.draft.since

    def leave(self) -> None:
        """Have the thread end without a checkpoint, as soon as it can."""
        self.writing.is_left = True
        _left.append(self._thread)

    def wait(self, seconds: float) -> None:
        """Wait for the thread.

        Raises:
            CheckpointError: the thread still writes after so many seconds.
        """
        self._thread.join(min(_PATIENCE, seconds))
        if self.is_filled:
            return
        step = self.writing.draft.step
        log.info("waiting for a checkpoint", step=step, at_most=f"{seconds:g} seconds")
        self._thread.join(seconds - _PATIENCE)
        if not self.is_filled:
            raise CheckpointError(
                f"the checkpoint of step {step} is not written after {self.elapsed:.0f} "
                "seconds, and the session waits no longer; earlier checkpoints are still "
                "there. Is the disk gone?"
            )


_left: list[threading.Thread] = []
"""The threads for which the sessions of this process did not wait."""


@attrs.define(eq=False)
class Writer:
    """Writes the checkpoints of one session, one after the other.

    Attributes:
        copies: copies what a thread writes while the program goes on.
        under_way: the checkpoint that a thread writes; None without one.
        slowest: the most seconds that this rank took to save.
    """

    copies: Copies = attrs.field(factory=Copies)
    under_way: BackgroundWriting | None = None
    slowest: float = 0.0
    _codec: Codec | None = None

    @property
    def codec(self) -> Codec:
        """The codec of all checkpoints."""
        if self._codec is None:
            self._codec = load_codec()
        return self._codec

    @property
    def has_filled(self) -> bool:
        """Whether this rank has written its part of the checkpoint that is under way."""
        return self.under_way is not None and self.under_way.is_filled

    def prepare(self) -> None:
        """Load the codec, and let the threads end that earlier sessions have left."""
        while _left:
            _left.pop().join()
        self._codec = load_codec()

    def write(self, draft: Draft, store: Store, agreement: Agreement | None) -> Written:
        """Write a checkpoint, and return it when it stands.

        Raises:
            CheckpointError: it cannot be written.
        """
        writing = Writing(draft, store, self.codec, agreement)
        writing.begin()
        writing.fill()
        return self._completed(writing)

    def write_in_background(
        self, draft: Draft, store: Store, agreement: Agreement | None
    ) -> None:
        """Begin to write a copy of a checkpoint; :meth:`settle` takes it over later.

        Raises:
            CheckpointError: its folder cannot be made.
        """
        assert self.under_way is None
        draft = attrs.evolve(draft, contents=self.copies.copy(draft.contents))
        writing = Writing(draft, store, self.codec, agreement, self.copies)
        writing.begin()
        self.under_way = BackgroundWriting(writing)

    def settle(self, most_secs: float) -> tuple[Draft, Written]:
        """Complete the checkpoint that is under way; return it when it stands.

        Args:
            most_secs: how long to wait for the thread.

        Raises:
            CheckpointError: it cannot be written, or is not written by then.
        """
        under_way = self.under_way
        assert under_way is not None
        try:
            under_way.wait(most_secs)
        except BaseException:
            self.leave()
            raise
        self.under_way = None
        return under_way.writing.draft, self._completed(under_way.writing)

    def leave(self) -> None:
        """Wait for no checkpoint any more; its written parts count for nothing."""
        if self.under_way is not None:
            self.under_way.leave()
        self.under_way = None

    def abandon_after_fork(self) -> None:
        """Leave the checkpoint under way to the parent, in a forked child."""
        self.under_way = None

    def seconds_to_save(self) -> tuple[float, float]:
        """Return how long a save will take, and before it the one that is under way.

        Nobody knows before the first one was written: 0.
        """
        under_way = self.under_way
        before = 0.0 if under_way is None else max(0.0, self.slowest - under_way.elapsed)
        return self.slowest, before

    def _completed(self, writing: Writing) -> Written:
        written = writing.complete()
        self.slowest = max(self.slowest, writing.seconds)
        return written
