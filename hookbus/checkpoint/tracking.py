"""Tracks the objects of a custom loop, whose states checkpoints contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from hookbus.backend import random_state
from hookbus.errors import CheckpointMismatchError, UsageError


@attrs.frozen(eq=False)
class Tracked:
    """One tracked object.

    Attributes:
        get: returns the state to save.
        put: takes a state from a checkpoint and returns the value for the caller.
        value: the value for the caller if nothing is restored.
        fork: for a random generator, returns the state of a separate stream; otherwise
            None.
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    value: Any
    fork: Callable[[], Any] | None = None

    @classmethod
    def of(cls, name: str, thing: Any) -> Tracked:
        """Return how to save and restore *thing*.

        Raises:
            UsageError: an object of its type cannot be tracked.
        """
        stateful = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
        if stateful and not isinstance(thing, type):
            return cls(thing.state_dict, lambda state: _loaded(thing, state), thing)
        if hasattr(thing, "bit_generator"):
            return cls._generator(thing)
        if isinstance(thing, tuple) and len(thing) == 2 and all(map(callable, thing)):
            get, put = thing
            return cls(get, lambda state: (put(state), get())[1], get())
        if hasattr(thing, "dtype") and hasattr(thing, "shape"):
            return cls._array(thing)
        raise UsageError(
            f"cannot track {name!r}, which is of type {type(thing).__name__}: give an "
            "object with state_dict and load_state_dict, an array, a NumPy Generator, or a "
            "pair of functions (get, set)"
        )

    @classmethod
    def _generator(cls, generator: Any) -> Tracked:
        def put(state: Any) -> Any:
            generator.bit_generator.state = state
            return generator

        def fork() -> Any:
            bits = generator.bit_generator
            before = bits.state
            seed = [int(word) for word in generator.integers(2**32, size=4)]
            bits.state = before
            return type(bits)(seed).state

        return cls(lambda: generator.bit_generator.state, put, generator, fork)

    @classmethod
    def _array(cls, array: Any) -> Tracked:
        held = [array]

        def put(state: Any) -> Any:
            held[0] = state
            return state

        return cls(lambda: held[0], put, array)


class Tracking:
    """All objects that one session tracks."""

    def __init__(self) -> None:
        self._tracked: dict[str, Tracked] = {}
        self._saved: Mapping[str, Any] | None = None
        self._checked = False

    def restore_from(self, saved: Mapping[str, Any]) -> None:
        """Restore objects from *saved* when they are tracked."""
        self._saved = saved

    def add(self, name: str, thing: Any) -> Any:
        """Track one object; return it, restored if the checkpoint has it.

        Raises:
            UsageError: the name is already used, or the object cannot be tracked.
        """
        if name in self._tracked:
            raise UsageError(f"{name!r} is already tracked; track each object once")
        if self._checked:
            raise UsageError(
                f"{name!r} is tracked too late: track it before the first step"
            )
        tracked = self._tracked[name] = Tracked.of(name, thing)
        if self._saved is not None and name in self._saved:
            return tracked.put(self._saved[name])
        return tracked.value

    def check(self) -> None:
        """Check, at the first step, that a restored checkpoint has the same names.

        Raises:
            CheckpointMismatchError: the tracked names differ from the checkpoint's.
        """
        if self._checked:
            return
        self._checked = True
        here, saved, self._saved = self._tracked, self._saved, None
        if saved is None:
            return
        faults = [
            f"{name!r} is only in the checkpoint" for name in saved if name not in here
        ]
        faults += [
            f"{name!r} is not in the checkpoint" for name in here if name not in saved
        ]
        if faults:
            raise CheckpointMismatchError(
                "the tracked names differ from those in the restored checkpoint: "
                f"{'; '.join(faults)}. Track the same names as before, or give another "
                "checkpoint_dir"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each object by name."""
        return {name: tracked.get() for name, tracked in self._tracked.items()}

    def capture(self) -> dict[str, Any]:
        """Return the states of all generators that an input may draw from.

        With :meth:`restore` and :meth:`fork` this serves as an input's generators: those
        of the process and those that are tracked.
        """
        tracked = {name: t.get() for name, t in self._generators()}
        return {**random_state.capture(), "tracked": tracked}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the generators back to states that :meth:`capture` returned."""
        random_state.restore(state)
        for name, value in state.get("tracked", {}).items():
            if name in self._tracked:
                self._tracked[name].put(value)

    def fork(self) -> dict[str, Any]:
        """Return the states of separate streams; the generators do not change."""
        forked = {name: t.fork() for name, t in self._generators() if t.fork is not None}
        return {**random_state.fork(), "tracked": forked}

    def _generators(self) -> list[tuple[str, Tracked]]:
        return [(name, t) for name, t in self._tracked.items() if t.fork is not None]


def leaves(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and arrays inside a state, each with its path as its name."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(f"{name}.{key}", value)
    elif isinstance(state, list | tuple):
        for number, value in enumerate(state):
            yield from leaves(f"{name}.{number}", value)
    elif isinstance(state, float) or hasattr(state, "dtype"):
        yield name, state


def _loaded(thing: Any, state: Any) -> Any:
    thing.load_state_dict(state)
    return thing
