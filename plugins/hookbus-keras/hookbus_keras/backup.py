"""Keeps the states of hooks beside the files of Keras' BackupAndRestore."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from hookbus import UsageError, log
from hookbus.files import replacing
from hookbus_keras.values import updates_of

KEPT, NEXT = "hookbus.json", "hookbus-next.json"
"""The states that belong to the weights, and those for which weights are being written."""


@attrs.frozen
class Kept:
    """The states of hooks that belong to one backup of Keras.

    Attributes:
        state: the packed states of hooks.
        step: the global step.
        updates: how often the optimizer had been called.
        epoch: the epoch with which Keras goes on.
        is_inside: whether the backup was written inside that epoch, which Keras repeats.
        follows: the hash of the weights that it replaces; None for the first backup.
        weights: the hash of its weights; None until they are written.
    """

    state: str
    step: int
    updates: int
    epoch: int
    is_inside: bool
    follows: str | None = None
    weights: str | None = None


class Backup:
    """A BackupAndRestore of Keras that also keeps the states of hooks.

    Keras writes its files in place, one after the other. The states are therefore written
    first, into their own file, and take effect when the weights are complete. After a
    kill, the hash of the weights tells which states belong to them.

    Args:
        callback: the callback of Keras, which nobody else calls.

    Attributes:
        wrote: whether it has written since that was last set to False.
    """

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self.wrote = False
        self._folder = Path(callback.backup_dir)
        self._weights: str | None = None

    @property
    def path(self) -> Path:
        """The folder of the backup."""
        return self._folder

    def restore(self, owner: Any, state: Callable[[], Kept]) -> Kept | None:
        """Restore the model as Keras does; return the states of hooks with it, or None.

        Args:
            owner: the callback that calls this one.
            state: returns the states for a backup that is written now.

        Raises:
            UsageError: the callback of Keras is also among those of the fit.
            OSError: Keras cannot read its backup.
        """
        callback = self.callback
        if callback.params is not None and callback.params is owner.params:
            raise UsageError(
                "the BackupAndRestore of BusCallback(backup=...) is also among the "
                "callbacks: leave it out there, BusCallback calls it"
            )
        model = owner.model
        callback.set_params(owner.params)
        callback.set_model(model)
        # Each backup goes through this method, also those that save_freq asks for.
        write = type(callback)._save_model.__get__(callback)
        callback._save_model = lambda: self._write(write, state())
        callback.on_train_begin()
        self._weights = _digest(self._weights_path)
        kept = self._fitting(updates_of(model))
        if kept is not None:
            # Keras may have been killed after its weights, and before it wrote the epoch.
            model._initial_epoch = kept.epoch
            callback._current_epoch = kept.epoch
            if kept.is_inside:
                log.warning(
                    "the backup was written inside an epoch, and Keras begins it again",
                    epoch=kept.epoch,
                    step=kept.step,
                )
        return kept

    def save(self) -> None:
        """Write a backup now."""
        self.callback._save_model()

    def _write(self, write: Callable[[], None], kept: Kept) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = attrs.evolve(kept, follows=self._weights)
        _put(self._folder / NEXT, kept)
        write()
        self._weights = _digest(self._weights_path)
        _put(self._folder / KEPT, attrs.evolve(kept, weights=self._weights))
        (self._folder / NEXT).unlink()
        self.wrote = True

    def _fitting(self, updates: int) -> Kept | None:
        """Return the states for the weights that Keras has restored, or None."""
        now, following = _get(self._folder / KEPT), _get(self._folder / NEXT)
        if self._weights is None:
            return None
        if now is not None and now.weights == self._weights:
            return now
        if following is None or following.follows == self._weights:
            return None  # Keras has not written the weights that were to follow
        return following if following.updates == updates else None

    @property
    def _weights_path(self) -> Path:
        return Path(self.callback._weights_path)


def _digest(path: Path) -> str | None:
    """Return the hash of a file; None if it does not exist."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put(path: Path, kept: Kept) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        json.dump(attrs.asdict(kept), file)
        file.flush()
        os.fsync(file.fileno())


def _get(path: Path) -> Kept | None:
    """Return the content of a file; None if it does not exist or cannot be read."""
    try:
        return Kept(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        log.warning("the states of hooks cannot be read", path=str(path), why=str(error))
        return None
