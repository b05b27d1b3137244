"""Copies the contents of checkpoints, which are written or put back while training goes on.

Values that nobody can change need no copy: the arrays of JAX, and the committed variables
of a graph. Everything else is copied into memory that is kept for the next checkpoint,
because fresh memory takes longer to write than the copy itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from hookbus.backend.protocol import Session
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import Restored
from hookbus.hooks.outcome import Rollback
from hookbus.library.lookup import PLAIN, libraries, library_of
from hookbus.passes.place import Pass
from hookbus.saving.contents import Contents
from hookbus.saving.hook_state import load_hooks

_Path: TypeAlias = tuple[Any, ...]

MOST_COPIED = 256 * 2**20
"""The most bytes that are copied for a checkpoint without anybody asking for it."""
LEAST_WRITTEN = 2**20
"""The bytes from which on a checkpoint is worth a thread: fewer are written at once."""
_TRUSTED = "variables"
"""The part of a checkpoint whose read-only arrays belong to the backend session."""


@attrs.define(eq=False)
class Copies:
    """Copies the contents of checkpoints, one after the other.

    Attributes:
        trusts_immutable: whether values that nobody can change are not copied. A program
            that donates its arrays deletes them, so those have to be copied.
    """

    trusts_immutable: bool = True
    _memory: dict[_Path, Any] = attrs.field(factory=dict)

    def is_cheap(self, contents: Mapping[str, Any]) -> bool:
        """Return whether a copy holds the loop for less time than writing would."""
        total = copied = 0
        for part, value in _leaves(contents):
            nbytes = getattr(value, "nbytes", 0)
            total += nbytes
            copied += 0 if self._stays(part, value) else nbytes
        return total >= LEAST_WRITTEN and copied <= MOST_COPIED

    def copy(self, contents: Mapping[str, Any]) -> dict[str, Any]:
        """Return the contents with a copy of everything that may change.

        The result of the call before is not valid any more: its memory is used again.
        """
        used: dict[_Path, Any] = {}
        copied: dict[str, Any] = self._copied((), contents, used)
        self._memory = used
        return copied

    def has_lost(self, contents: Mapping[str, Any]) -> bool:
        """Return whether the program has deleted values that were not copied."""
        return any(
            (library := library_of(value)) is not None
            and library.is_immutable(value)
            and library.why_not_saved(value) is not None
            for _, value in _leaves(contents)
        )

    def await_all(self) -> None:
        """Wait until all copies are made: a device makes them while the program goes on."""
        for library in libraries().values():
            library.await_copies()

    def _copied(self, path: _Path, value: Any, used: dict[_Path, Any]) -> Any:
        if value.__class__ in PLAIN:  # the state of a generator has hundreds of numbers
            return value
        if isinstance(value, Mapping):
            return {k: self._copied((*path, k), v, used) for k, v in value.items()}
        if value.__class__ in (list, tuple):
            parts = [self._copied((*path, n), v, used) for n, v in enumerate(value)]
            return parts if value.__class__ is list else tuple(parts)
        if self._stays(path[0], value):
            return value
        library = library_of(value)
        copied = _copied_array if library is None else library.copied
        used[path] = copied(value, self._memory.get(path))
        return used[path]

    def _stays(self, part: str, value: Any) -> bool:
        """Return whether a value remains as it is, whatever the program does."""
        library = library_of(value)
        if library is not None:
            return self.trusts_immutable and library.is_immutable(value)
        if not _is_array(value):
            return True  # a number or text; or nothing that a codec takes
        return part == _TRUSTED and _is_read_only(value)


@attrs.define(eq=False)
class KeptValue:
    """The value in hand of a loop, and the state in which its body begins.

    Attributes:
        of: the pass that the value is from; None before the first value.
    """

    of: Pass | None = None
    _contents: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    _value: Any = attrs.field(default=None, init=False)
    _step: int = attrs.field(default=0, init=False)
    # A program deletes what it donates to a computation, so nothing is trusted to stay.
    _copies: Copies = attrs.field(
        factory=lambda: Copies(trusts_immutable=False), init=False
    )

    def keep(self, contents: Contents, session: Session, value: Any) -> None:
        """Copy a value that was pulled and the state, into the memory of those before."""
        snapshot = contents.snapshot(session)
        now = contents.gather(session, snapshot, is_chief=True)
        kept = self._copies.copy({"contents": now, "value": value})
        self._copies.await_all()
        self._contents, self._value = kept["contents"], kept["value"]
        self._step, self.of = session.global_step, contents.position.innermost

    def again(self) -> Any:
        """Return the value once more, as it was when it was pulled."""
        return copy.deepcopy(self._value)

    def put_back(self, contents: Contents, session: Session, asked: Rollback) -> None:
        """Give a session the state, except the hook that asked: it goes on."""
        # The memory is used again for the next value, and objects may keep what they get.
        saved = copy.deepcopy(self._contents)
        manifest = Manifest(self._step, "memory", asked.who, asked.why, {}, {})
        contents.put_back(session, Restored(Path(), saved, manifest), None)
        contents.unfreeze_position()
        others = {n: each for n, each in contents.hooks.items() if n != asked.who}
        states = saved.get("hooks", {})
        load_hooks(others, {name: states[name] for name in others if name in states}, None)
        contents.generators.restore(saved.get("random", {}))
        contents.position.forget_evaluations(self._step)
        contents.position.repeat_value()


def _leaves(contents: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that may be large, each with the part of the checkpoint it is in."""
    for part, state in contents.items():
        values = [state]
        while values:
            value = values.pop()
            if isinstance(value, Mapping):
                value = value.values()
            elif not isinstance(value, list | tuple):
                yield part, value
                continue
            # The state of a generator has hundreds of numbers: none costs a call.
            values += [each for each in value if each.__class__ not in PLAIN]


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy, which is no dependency."""
    return hasattr(value, "setflags") and hasattr(value, "__setitem__")


def _is_read_only(array: Any) -> bool:
    """Return whether nobody can write an array, not even through one that it views."""
    while _is_array(array):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)


def _copied_array(array: Any, before: Any) -> Any:
    """Return a copy of an array, in the memory of an earlier one if that fits."""
    if before.__class__ is array.__class__ and _form(before) == _form(array):
        before[...] = array
        return before
    return array.copy("K")


def _form(array: Any) -> tuple[Any, ...]:
    """Return the dtype and the shape of an array, and the order of its axes in memory."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return array.dtype, array.shape, order
