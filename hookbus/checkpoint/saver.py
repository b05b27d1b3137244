"""How the state of one session is saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.backend import random_state
from hookbus.backend.inputs import EpochIterator
from hookbus.backend.protocol import Session
from hookbus.checkpoint.codec import Codec, load_codec
from hookbus.checkpoint.hook_state import Stateful, states_of
from hookbus.checkpoint.lock import DirectoryLock
from hookbus.checkpoint.manifest import FileRecord, Manifest
from hookbus.checkpoint.reader import Restored, read_checkpoint
from hookbus.checkpoint.store import Store
from hookbus.checkpoint.tracking import Tracking, leaves
from hookbus.errors import (
    CheckpointError,
    CheckpointMismatchError,
    GraphError,
    NoGoodCheckpointError,
)
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.logs import log, shown


def input_goes_on(ended: str | None) -> bool:
    """Say whether a session goes on in the input of the one before it.

    It starts anew where the one before had used it up, or was left.

    Args:
        ended: how that one ended; None where it did not.
    """
    return ended not in ("completed", "end_of_input")


@attrs.define(eq=False)
class ExtraState:
    """What a session's checkpoints hold besides the backend's own values.

    Attributes:
        hooks: the hooks that have a state, by name.
        tracking: the objects of a loop of one's own.
        passes: where such a loop stands in its input.
    """

    hooks: Mapping[str, Stateful]
    tracking: Tracking
    passes: EpochIterator

    def state(self) -> dict[str, Any]:
        """Return what objects of the loop and hooks hold."""
        return {
            "tracked": self.tracking.state_dict(),
            "hooks": states_of(self.hooks),
        }

    def position(self, session: Session) -> dict[str, Any]:
        """Return where input and generators stand."""
        return {
            "inputs": session.positions(),
            "passes": self.passes.state_dict(),
            "random": random_state.capture(),
        }


@attrs.define(eq=False)
class Saver:
    """Writes and reads the checkpoints of one session.

    Attributes:
        checkpoints: what hooks decided.
        contents: what is saved besides the backend's values.
        versions: of everything that takes part, for the manifest.
        saved_names: the variables that are saved; None for all.
        unsaved: variables that are not saved, whatever the former says.
        goes_on: says by how the session before ended whether input goes on there.
        last_step: the step that was restored or saved last, or None.
        last_path: where that checkpoint lies.
        ended: how the session ended, once that is noted in it.
    """

    checkpoints: Checkpoints
    contents: ExtraState
    versions: Mapping[str, str]
    saved_names: frozenset[str] | None = None
    unsaved: frozenset[str] = frozenset()
    goes_on: Callable[[str | None], bool] = input_goes_on
    last_step: int | None = None
    last_path: Path | None = None
    ended: str | None = None
    _last_manifest: Manifest | None = None
    _codec: tuple[str, Codec] | None = None
    _lock: DirectoryLock | None = None
    _held: tuple[int, Mapping[str, Any]] | None = None
    _last_version: int | None = None

    @property
    def store(self) -> Store:
        """The directory that checkpoints lie in."""
        if self.checkpoints.directory is None:
            raise CheckpointError("the session has no checkpoint_dir to save into")
        return Store(self.checkpoints.directory)

    def prepare(self) -> None:
        """See to it that saving will work, before the first step.

        Raises:
            CheckpointError: the directory cannot be written, or no codec is installed.
        """
        if self.checkpoints.enabled_by is not None:
            self.store.prepare()
            self._lock = DirectoryLock(self.store.directory)
            self._lock.take()
            self.store.clear()
            self._codec = load_codec()

    def close(self) -> None:
        """Let others save into the directory."""
        if self._lock is not None:
            self._lock.release()

    def restore(
        self, session: Session, training: bool = True, path: str | Path | None = None
    ) -> Restored | None:
        """Load the newest good checkpoint: variables, step, input positions.

        Args:
            session: what to load it into.
            training: whether the graph must have all variables of the checkpoint, and the
                session goes on where it stood.
            path: the one checkpoint to load instead.

        Returns:
            All of it, or None where there was never a checkpoint.

        Raises:
            NoGoodCheckpointError: there are checkpoints, none of them good.
            CheckpointMismatchError: another graph wrote it.
        """
        self.last_step, self._held = None, None
        restored = read_checkpoint(path) if path is not None else self._newest()
        if restored is None:
            return None
        self._load(session, restored, training)
        if path is None:
            self.last_step = restored.manifest.global_step
            self._last_version = session.version
            self.last_path, self._last_manifest = restored.path, restored.manifest
        return restored

    def hold_position(self, session: Session) -> None:
        """Take where input and generators stand as what the last checkpoint holds.

        Called once nothing trains any more: evaluations and hooks that end may still pull
        values and draw numbers, and a resumed session must not miss those.
        """
        if self.checkpoints.enabled_by is None:
            return
        if self._held is None or self._held[0] != session.version:
            self._held = session.version, self.contents.position(session)

    def values(self, session: Session) -> dict[str, Any]:
        """Return each number and array that a checkpoint would hold, by name."""
        values = dict(self._variables(session))
        for name, state in self.contents.tracking.state_dict().items():
            values.update(leaves(name, state))
        return values

    def write(self, session: Session, who: str, why: str) -> Path:
        """Write a checkpoint of the current step; return where it lies.

        Raises:
            CheckpointError: it cannot be written.
        """
        step = session.global_step
        if self._codec is None:
            self._codec = load_codec()
        name, codec = self._codec
        state = {
            "variables": self._variables(session),
            **self.contents.state(),
            **self._position(session),
        }

        def seal(files: dict[str, FileRecord]) -> Manifest:
            self._last_manifest = Manifest(step, name, who, why, files, dict(self.versions))
            return self._last_manifest

        path = self.store.write(step, lambda place: codec.write(state, place), seal)
        self.last_step, self.last_path = step, path
        self._last_version = session.version
        log.info("checkpoint saved", path=shown(path), step=step, by=who, why=why)
        if self.checkpoints.max_to_keep is not None:
            self.store.prune(self.checkpoints.max_to_keep, path)
        return path

    def mark_ended(self, step: int, kind: str) -> None:
        """Note in the checkpoint of *step* that the session ended there, and how."""
        if self.last_path is None or self._last_manifest is None or self.last_step != step:
            return
        manifest = attrs.evolve(self._last_manifest, ended=kind)
        self.store.rewrite_manifest(self.last_path, manifest)
        self.ended = kind

    def is_safe(self, session: Session) -> bool:
        """Say whether what the session holds is in the last checkpoint."""
        version = session.version
        return self.last_step == session.global_step and self._last_version == version

    def _position(self, session: Session) -> Mapping[str, Any]:
        """Return where input and generators stand, or stood when training was over."""
        if self._held is not None and self._held[0] == session.version:
            return self._held[1]
        return self.contents.position(session)

    def _variables(self, session: Session) -> dict[str, Any]:
        values, names = session.variables(), self.saved_names
        if names is None and not self.unsaved:
            return values
        held = (values.keys() if names is None else names) - self.unsaved
        return {name: value for name, value in values.items() if name in held}

    def _newest(self) -> Restored | None:
        """Read the newest checkpoint that is good; set aside those that are not."""
        if self.checkpoints.directory is None:
            return None
        try:
            return self._newest_good(self.store)
        except OSError as error:
            raise CheckpointError(
                f"cannot read the checkpoints in {self.store.directory}: {error}; they "
                "were left as they are"
            ) from error

    def _newest_good(self, store: Store) -> Restored | None:
        seen = bool(store.found()) or store.had_any()
        for path, manifest in store.good():
            codec = load_codec(manifest.codec)[1]
            try:
                return Restored(path, codec.read(path), manifest)
            except CheckpointError as error:
                store.set_aside(path, str(error))
        if seen:
            raise NoGoodCheckpointError(
                f"{store.directory} has checkpoints and not one of them is good (see the "
                "warnings above); they were kept: remove the directory to start anew, or "
                "give another checkpoint_dir"
            )
        return None

    def _load(self, session: Session, restored: Restored, training: bool) -> None:
        here, saved = self._variables(session), restored.state["variables"]
        if not training or self.saved_names is not None:
            saved = {name: value for name, value in saved.items() if name in here}
        _compare(session, here, saved, restored.path)
        _report_dtypes(here, saved)
        session.write(saved)
        session.global_step = restored.manifest.global_step
        self.contents.tracking.restore_from(restored.state.get("tracked", {}))
        if training and self.goes_on(restored.manifest.ended):
            session.seek(restored.state.get("inputs", {}))
            if "passes" in restored.state:
                self.contents.passes.load_state_dict(restored.state["passes"])
        log.info("restored", path=shown(restored.path), step=session.global_step)


def _compare(
    session: Session, here: Mapping[str, Any], saved: Mapping[str, Any], path: Path
) -> None:
    """Refuse a checkpoint whose variables are not this graph's."""
    faults = [f"{name!r} is only in the graph" for name in here if name not in saved]
    faults += [f"{name!r} is only in the checkpoint" for name in saved if name not in here]
    for name in here.keys() & saved.keys():
        try:
            session.check(name, saved[name], "the checkpoint")
        except GraphError:
            faults.append(
                f"{name!r} has {_form(here[name])} in the graph and "
                f"{_form(saved[name])} in the checkpoint"
            )
    if faults:
        raise CheckpointMismatchError(
            f"{path} was written by another graph: {'; '.join(sorted(faults))}. "
            "Give this graph another checkpoint_dir"
        )


def _report_dtypes(here: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Tell which variables go on in another dtype than the graph gives them at first.

    Training may well have changed it, so that is no reason to refuse a checkpoint.
    """
    for name in here.keys() & saved.keys():
        first, now = (getattr(values[name], "dtype", None) for values in (here, saved))
        if first is not None and now is not None and first != now:
            log.warning(
                "restored in another dtype", variable=name, graph=str(first), saved=str(now)
            )


def _form(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"the type {type(value).__name__}"
    return f"the shape {tuple(shape)}"
