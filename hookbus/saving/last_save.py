"""Describes the checkpoint that a session has restored or saved last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from hookbus.backend.protocol import Session
from hookbus.checkpoint.manifest import FileRecord, Manifest
from hookbus.errors import CheckpointError, UsageError
from hookbus.hooks.outcome import resumes


@attrs.frozen(eq=False)
class LastSave:
    """The checkpoint that a session has restored or saved last.

    Attributes:
        step: the global step of the checkpoint.
        path: its directory.
        manifest: its manifest.
        version: ``session.version`` when the session had the variables in it.
        files: the files that this rank has in it, with their hashes, to compare the state
            of today. None after a restore, until something may have changed; empty if the
            session has changed since.
        ended: how this session ended, once the manifest records that.
        restored_end: how the session ended that wrote the checkpoint, if this session has
            restored it; None if it did not end.
        is_final: whether no further checkpoint of its step is written.
    """

    step: int
    path: Path
    manifest: Manifest
    version: int
    files: Mapping[str, FileRecord] | None = None
    ended: str | None = None
    restored_end: str | None = None
    is_final: bool = False

    def has_variables_of(self, session: Session) -> bool:
        """Return whether it is on the disk, and has the current step and variables."""
        current = session.global_step, session.version
        return current == (self.step, self.version) and self.path.is_dir()

    def is_in_place(self) -> bool:
        """Return whether it is still in its directory, and not another one there."""
        try:
            return Manifest.read(self.path) == self.manifest
        except (CheckpointError, UsageError):
            return False

    @property
    def is_marked(self) -> bool:
        """Whether it belongs to a session that ended on its own."""
        return not resumes(self.manifest.ended)
