"""Defines the hooks' view of checkpoints: the directory, its contents, and saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.errors import UsageError
from hookbus.hooks.requests import CurrentHook, ForeignLoop, Requests
from hookbus.logs import log
from hookbus.validation import expanded

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session


class CheckpointSaverListener:
    """Called by checkpoint-saver before and after each save. Every method is optional.

    Listeners are passed to ``CheckpointSaverHook(listeners=[...])``.

    >>> class CopyListener(CheckpointSaverListener):
    ...     def after_save(self, session, global_step_value):
    ...         print("saved", global_step_value)
    ...         return global_step_value >= 1000  # then the training stops
    >>> CopyListener().after_save(None, 1000)
    saved 1000
    True
    """

    def begin(self) -> None:
        """Called in the saver's own ``begin``."""

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Called before a checkpoint is written, when no hook has refused it.

        Args:
            session: the backend session.
            global_step_value: the global step of the checkpoint.
        """

    def after_save(self, session: Session, global_step_value: int) -> bool | None:
        """Called when the checkpoint is safe on disk; return True to stop training.

        The result applies to saves after a run, not to the first and the last save.

        Args:
            session: the backend session.
            global_step_value: the global step of the checkpoint.
        """

    def end(self, session: Session, global_step_value: int) -> None:
        """Called when the session has ended cleanly, after its last checkpoint.

        Args:
            session: the backend session.
            global_step_value: the global step at the end.
        """


FAILED = "failed"
"""The folder, in a directory of checkpoints, for those of failed sessions."""


@attrs.define(eq=False)
class Checkpoints:
    """Whether and where a session saves; hooks get it in ``begin``.

    Attributes:
        directory: the directory of the checkpoints, or None if it is not set yet.
        enabled_by: the hook that switched saving on, or None.
        max_to_keep: the number of checkpoints to keep; None keeps all.
        background: whether the program goes on while a checkpoint is written; None decides
            for each one by what that costs.
        failed_by: the hook that asked for a checkpoint if the session fails, or None.
        replaced: the directory that the program gives, if the flag ``--checkpoint-dir``
            takes its place; None if the program gives none, or without the flag.
        restores_from: the directory of the checkpoint that the session is given to restore,
            like an evaluation of one checkpoint; None if it is given none.
        foreign: the loop that writes the checkpoints, and keeps and removes them; None if
            the session does.

    >>> from hookbus import SessionRunHook
    >>> from hookbus.testing import run_steps
    >>> class PlaceHook(SessionRunHook):
    ...     def begin(self, checkpoints):
    ...         print(checkpoints.directory, checkpoints.max_to_keep)
    >>> _ = run_steps(PlaceHook(), steps=1)
    None 5
    """

    directory: Path | None
    _requests: Requests
    _current_hook: CurrentHook
    enabled_by: str | None = None
    max_to_keep: int | None = 5
    background: bool | None = None
    failed_by: str | None = None
    _failed: Path | None = None
    _is_frozen: bool = False
    _saves: bool = True
    replaced: Path | None = None
    restores_from: Path | None = None
    foreign: ForeignLoop | None = None
    _replace: Callable[[str | Path], str | Path | None] | None = None

    @property
    def written_by(self) -> str | None:
        """The name of the loop that writes the checkpoints; None if the session does."""
        return None if self.foreign is None else self.foreign.name

    @property
    def failed_directory(self) -> Path | None:
        """The directory of the checkpoints of failed sessions; None to save none."""
        if self.failed_by is None or self._failed is not None:
            return self._failed
        return None if self.directory is None else self.directory / FAILED

    def enable(
        self,
        directory: str | Path | None = None,
        max_to_keep: int | None = 5,
        background: bool | None = None,
    ) -> None:
        """Switch saving on, in ``begin``; the session then also saves at its end.

        A session that evaluates or predicts around a custom loop saves nothing: its
        checkpoint would lack the objects that only the training tracks.

        Args:
            directory: where to save; by default the session's ``checkpoint_dir``.
            max_to_keep: the number of checkpoints to keep; None or 0 keeps all.
            background: whether the program goes on while a checkpoint is written. None
                decides for each one: it does if no other hook that cannot wait has an
                ``after_save``, the checkpoint has 1 MiB or more, and at most 256 MiB of it
                have to be copied.

        Raises:
            UsageError: no directory is set, or two different ones, or every ``begin`` was
                called; or another loop writes the checkpoints, and a directory is given, or
                it writes none for hooks.
        """
        who = self._current_hook.name
        self._check_not_frozen("enable")
        if self.foreign is not None:
            self.foreign.check("save", who, "saves checkpoints")
            if directory is not None:
                raise UsageError(
                    f"{who} would save into {directory}, but {self.foreign.name} writes "
                    "the checkpoints, into its own directory: leave the setting out"
                )
            return
        if directory is None and self.directory is None:
            raise UsageError(
                f"{who} has no directory to save into: give the session "
                f"checkpoint_dir=, or the flag --{who}-checkpoint-dir DIR"
            )
        if directory is not None and self._replace is not None:
            if self.directory is None:
                self.replaced = expanded(directory).absolute()
                self.directory = expanded(self._replace(directory) or directory)
        elif directory is not None:
            here = expanded(directory).absolute()
            if self.directory is not None and here != self.directory:
                raise UsageError(
                    f"{who} would save into {directory}, but the session's "
                    f"checkpoint_dir is {self.directory}; give only one"
                )
            self.directory = here
        if not self._saves:
            log.info("this session saves no checkpoint", hook=who, why="it does not train")
            return
        self.enabled_by, self.max_to_keep = who, max_to_keep or None
        self.background = background

    def save_on_exception(self, directory: str | Path | None = None) -> None:
        """Have a checkpoint written if an error ends the session, in ``begin``.

        The checkpoint is written before ``on_exception``, with ``ended="failed"`` in its
        manifest, and apart from the others: no session restores it automatically. An error
        of the write becomes a note on the first error.

        Args:
            directory: where to save it; by default ``failed`` in the session's
                ``checkpoint_dir``.

        Raises:
            UsageError: every ``begin`` was called; another hook has asked for another
                directory; the directory is that of the other checkpoints; none is given,
                and the session has no ``checkpoint_dir``, or another loop writes the
                checkpoints.
        """
        who = self._current_hook.name
        self._check_not_frozen("save_on_exception")
        here = None if directory is None else expanded(directory).absolute()
        if self.failed_by is not None and here != self._failed:
            raise UsageError(
                f"{who} and {self.failed_by} would save the checkpoint of a failed session "
                "into two directories; give only one"
            )
        if self.foreign is not None and here is None:
            raise UsageError(
                f"{who} would save a session that failed, but {self.foreign.name} writes "
                "the checkpoints, and none after an error"
            )
        if not self._saves:
            return
        self.failed_by, self._failed = who, here

    def freeze(self) -> None:
        """Refuse to switch saving on from now on: the session prepares to save, or not.

        Raises:
            UsageError: a checkpoint of a failed session would have no directory, or that of
                the others.
        """
        self._is_frozen = True
        failed, who = self.failed_directory, self.failed_by
        if who is not None and failed is None:
            raise UsageError(
                f"{who} called checkpoints.save_on_exception() without a directory: give "
                "the session checkpoint_dir=, or save_on_exception() a directory"
            )
        if failed is not None and failed == self.directory:
            raise UsageError(
                f"{who} would save the checkpoint of a failed session into {failed}, where "
                "the next session would restore it; give another directory"
            )

    def _check_not_frozen(self, method: str) -> None:
        if self._is_frozen:
            raise UsageError(
                f"{self._current_hook.name} called checkpoints.{method}() after the last "
                "begin(), when the session has checked whether it can save; call it in "
                "begin()"
            )

    def request_save(self, why: str, keep: bool = False) -> None:
        """Ask for a checkpoint, in any event up to ``end``.

        It is written when the session is open, after the current or the next run, or at the
        end, and even if that run fails.

        Args:
            why: the reason, in words.
            keep: never prune this checkpoint; its manifest says so, and *why*.

        Raises:
            UsageError: every hook's ``end`` was called, or the session failed.
        """
        if self._saves:
            self._requests.request_save(self._current_hook.name, why, keep=keep)

    def record_values(self, values: Mapping[str, Any], global_step: int) -> None:
        """Record numbers for the checkpoint of a step, in any event up to ``finished``.

        Its manifest gets them, at once if there is a checkpoint of *global_step*, or when
        it is written in this session; of several numbers of one name the last counts.
        Others read them with ``list_checkpoints`` and in the event ``pruning``.

        Args:
            values: finite numbers, or arrays that hold one, by name.
            global_step: the step of the model that has these values.

        Raises:
            UsageError: a value is not a finite number; or the session is over.
        """
        self._requests.record_values(self._current_hook.name, values, global_step)
