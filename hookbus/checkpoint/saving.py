"""What a session's checkpoints hold, when one is due to be written, and how it comes back.

Hooks ask through :class:`Checkpoints`; the session acts through :class:`Keeper`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.checkpoint import randomness
from hookbus.checkpoint.codec import Codec, load_codec
from hookbus.checkpoint.manifest import FileRecord, Manifest
from hookbus.checkpoint.store import Store
from hookbus.errors import (
    CheckpointError,
    CheckpointMismatchError,
    GraphError,
    NoGoodCheckpointError,
    UsageError,
)
from hookbus.hook import Asks, Turn
from hookbus.logs import log
from hookbus.session import Session


@attrs.define(eq=False)
class Checkpoints:
    """Where and whether a session saves; hooks get it in ``begin``.

    Attributes:
        directory: where checkpoints lie, or None while nobody has said.
        enabled_by: the hook that switched saving on, or None.
        max_to_keep: how many are kept; None keeps all.
    """

    directory: Path | None
    _asks: Asks
    _turn: Turn
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
            if self.directory is not None and Path(directory) != self.directory:
                raise UsageError(
                    f"{who} would save into {directory}, and the session's "
                    f"checkpoint_dir is {self.directory}; a session has one directory"
                )
            self.directory = Path(directory)
        self.enabled_by, self.max_to_keep = who, max_to_keep or None

    def request_save(self, why: str) -> None:
        """Ask for a checkpoint outside a run; it is written when this event is over."""
        self._asks.request_save(self._turn.name, why)


@attrs.frozen(eq=False)
class Restored:
    """What came back from a checkpoint and is still to be handed out.

    Attributes:
        path: where it lies.
        state: its content.
        manifest: its description.
    """

    path: Path
    state: Mapping[str, Any]
    manifest: Manifest

    @property
    def starts_new_pass(self) -> bool:
        """Whether the input starts anew: the session before had used it up or left."""
        return self.manifest.ended in ("completed", "end_of_input")


@attrs.define(eq=False)
class Keeper:
    """Writes and reads the checkpoints of one session.

    Attributes:
        checkpoints: what hooks decided.
        versions: of everything that takes part, for the manifest.
        last_step: the step that was restored or saved last, or None.
        last_path: where that checkpoint lies.
    """

    checkpoints: Checkpoints
    versions: Mapping[str, str]
    last_step: int | None = None
    last_path: Path | None = None
    _last_manifest: Manifest | None = None
    _codec: tuple[str, Codec] | None = None
    _held: Mapping[str, Any] | None = None

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
            self._codec = load_codec()

    def restore(self, session: Session, strict: bool = True) -> Restored | None:
        """Load the newest good checkpoint: variables, step, input positions.

        Args:
            session: what to load it into.
            strict: whether the graph must have all variables of the checkpoint.

        Returns:
            The rest of it, or None where there was never a checkpoint.

        Raises:
            NoGoodCheckpointError: there are checkpoints, none of them good.
            CheckpointMismatchError: another graph wrote it.
        """
        if self.checkpoints.directory is None:
            return None
        store = self.store
        candidates = store.found()
        restored = self._newest(store)
        if restored is None:
            if candidates or store.had_any():
                raise NoGoodCheckpointError(
                    f"{store.directory} has checkpoints and not one of them is good "
                    "(see the warnings above); they were kept: remove the directory to "
                    "start anew, or give another checkpoint_dir"
                )
            return None
        _load(session, restored, strict)
        self.last_step = restored.manifest.global_step
        self.last_path, self._last_manifest = restored.path, restored.manifest
        return restored

    def hold_position(self, session: Session) -> None:
        """Take where input and generators stand as what the last checkpoint holds.

        Called once nothing trains any more: evaluations and hooks that end may still pull
        values and draw numbers, and a resumed session must not miss those.
        """
        if self._held is None and self.checkpoints.enabled_by is not None:
            self._held = _position(session)

    def write(
        self, session: Session, hooks: Mapping[str, Any], who: str, why: str
    ) -> Path | None:
        """Write a checkpoint of the current step, unless that step is safe already.

        Returns:
            Where it lies, or None if there was nothing to do.

        Raises:
            CheckpointError: it cannot be written.
        """
        step = session.global_step
        if self._codec is None:
            self._codec = load_codec()
        name, codec = self._codec
        state = {
            "variables": session.variables(),
            "hooks": {key: hook.state_dict() for key, hook in hooks.items()},
            **(self._held or _position(session)),
        }

        def seal(files: dict[str, FileRecord]) -> Manifest:
            return Manifest(step, name, who, why, files, dict(self.versions))

        path = self.store.write(step, lambda place: codec.write(state, place), seal)
        self.last_step, self.last_path = step, path
        self._last_manifest = Manifest.read(path)
        log.info("checkpoint saved", path=str(path), step=step, by=who, why=why)
        if self.checkpoints.max_to_keep is not None:
            self.store.prune(self.checkpoints.max_to_keep, path)
        return path

    def mark_ended(self, step: int, kind: str) -> None:
        """Note in the checkpoint of *step* that the session ended there, and how."""
        if self.last_path is None or self._last_manifest is None or self.last_step != step:
            return
        manifest = attrs.evolve(self._last_manifest, ended=kind)
        self.store.rewrite_manifest(self.last_path, manifest)

    def _newest(self, store: Store) -> Restored | None:
        for path, manifest in store.good():
            codec = load_codec(manifest.codec)[1]
            try:
                return Restored(path, codec.read(path), manifest)
            except (CheckpointError, OSError) as error:
                store.set_aside(path, str(error))
        return None


def stateful(hooks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hooks that have a state to keep, by name."""
    return {
        name: hook
        for name, hook in hooks.items()
        if hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict")
    }


def load_hooks(hooks: Mapping[str, Any], restored: Restored) -> None:
    """Give each hook its state back; report hooks that are gone or new."""
    states = restored.state.get("hooks", {})
    for name in states.keys() - hooks.keys():
        log.info("the checkpoint has the state of a hook that is not here", hook=name)
    for name, hook in hooks.items():
        if name not in states:
            log.info("the checkpoint has no state for this hook", hook=name)
            continue
        takes_ended = "ended" in inspect.signature(hook.load_state_dict).parameters
        extra = {"ended": restored.manifest.ended} if takes_ended else {}
        hook.load_state_dict(states[name], **extra)


def _position(session: Session) -> dict[str, Any]:
    return {"inputs": session.positions(), "random": randomness.capture()}


def _load(session: Session, restored: Restored, strict: bool) -> None:
    here, saved = session.variables(), restored.state["variables"]
    if not strict:
        saved = {name: value for name, value in saved.items() if name in here}
    _compare(session, saved, restored.path)
    session.write(saved)
    session.global_step = restored.manifest.global_step
    if not restored.starts_new_pass:
        session.seek(restored.state.get("inputs", {}))
    log.info("restored", path=str(restored.path), step=session.global_step)


def _compare(session: Session, saved: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint whose variables are not this graph's."""
    here = session.variables()
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


def _form(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"the type {type(value).__name__}"
    return f"the shape {tuple(shape)}"
