"""What hooks see of checkpoints: where they lie, and the listeners around each save."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.hooks.context import CurrentHook, Requests

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session


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


@attrs.define(eq=False)
class Checkpoints:
    """Where and whether a session saves; hooks get it in ``begin``.

    Attributes:
        directory: where checkpoints lie, or None while nobody has said.
        enabled_by: the hook that switched saving on, or None.
        max_to_keep: how many are kept; None keeps all.
    """

    directory: Path | None
    _asks: Requests
    _turn: CurrentHook
    enabled_by: str | None = None
    max_to_keep: int | None = 5

    def enable(
        self, directory: str | Path | None = None, max_to_keep: int | None = 5
    ) -> None:
        """Switch saving on; the session then also saves at its end.

        Args:
            directory: where; by default the session's ``checkpoint_dir``.
            max_to_keep: how many to keep; None or 0 keeps all.

        Raises:
            UsageError: there is no directory, or there are two.
        """
        who = self._turn.name
        if directory is None and self.directory is None:
            raise UsageError(
                f"{who} has no directory to save into: give the session "
                f"checkpoint_dir=, or the flag --{who}-checkpoint-dir DIR"
            )
        if directory is not None:
            here = Path(directory).absolute()
            if self.directory is not None and here != self.directory:
                raise UsageError(
                    f"{who} would save into {directory}, and the session's "
                    f"checkpoint_dir is {self.directory}; a session has one directory"
                )
            self.directory = Path(directory).absolute()
        self.enabled_by, self.max_to_keep = who, max_to_keep or None

    def request_save(self, why: str) -> None:
        """Ask for a checkpoint outside a run; it is written after the next event or run."""
        self._asks.request_save(self._turn.name, why, anyway=True)


def check_listeners(given: Iterable[Any] | None) -> tuple[CheckpointSaverListener, ...]:
    """Return the listeners that an argument holds.

    Raises:
        ArgumentTypeError: it is no list, or one of them is no listener.
    """
    if not isinstance(given, Iterable | None):
        raise _no_listener(given)
    listeners = tuple(given or ())
    for listener in listeners:
        if not isinstance(listener, CheckpointSaverListener):
            raise _no_listener(listener)
    return listeners


def _no_listener(given: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"saving_listeners must be a list of CheckpointSaverListener, given: {given!r}"
    )
