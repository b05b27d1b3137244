"""What can be done around every checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookbus.session import Session


class CheckpointSaverListener:
    """Told by the checkpoint-saver before and after each save; override what you need."""

    def begin(self) -> None:
        """Come with the saver's own ``begin``."""

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Come before a checkpoint is written, when no hook has refused it."""

    def after_save(self, session: Session, global_step_value: int) -> bool | None:
        """Come when the checkpoint is safe on disk; True asks to stop training.

        The answer counts for saves after a run, not for the first and the last one.
        """

    def end(self, session: Session, global_step_value: int) -> None:
        """Come when the session has ended well, after its last checkpoint."""
