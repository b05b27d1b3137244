"""Captures and restores the random generators of the process."""

from __future__ import annotations

import copy
import importlib
import random
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hookbus.backend.protocol import Session
from hookbus.errors import Undo


class RandomGenerators(Protocol):
    """Random generators: those of the process, or also those that a session tracks.

    This module itself stands for those of the process.
    """

    def capture(self) -> dict[str, Any]:
        """Return their states by name."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put them back to states that :meth:`capture` returned."""

    def fork(self) -> dict[str, Any]:
        """Return the states of a separate stream that follows from today's."""


def capture() -> dict[str, Any]:
    """Return the state of Python's generator and, if NumPy is loaded, of NumPy's."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Restore the generators to a state from :func:`capture`."""
    if "python" in state:
        random.setstate(state["python"])
    if "numpy" in state:
        importlib.import_module("numpy").random.set_state(state["numpy"])


def fork() -> dict[str, Any]:
    """Return states of new streams, derived from the current states; keep those."""
    current = capture()
    random.seed(random.getrandbits(64))
    if "numpy" in current:  # from itself: a program may seed only one of them
        numpy_random = sys.modules["numpy"].random
        numpy_random.seed(numpy_random.randint(2**32, dtype="uint32"))
    forked = capture()
    restore(current)
    return forked


def same(one: Any, other: Any) -> bool:
    """Return whether two captured states are equal, including arrays within them."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)


def preserved(generators: RandomGenerators) -> Undo:
    """Restore *generators* after a block."""
    states = generators.capture()
    return Undo(lambda: generators.restore(states))


def undisturbed(session: Session | None = None) -> AbstractContextManager[None]:
    """Restore random generators and inputs after a block.

    Restores the process's random generators (Python's and, if it was loaded before,
    NumPy's) and the positions of a session's inputs. So an evaluation in the middle of a
    training may draw numbers and pull values without any effect on the training. An input
    is restored as after a kill: its function is called again, and values are skipped or its
    iterator gets its position.

    Args:
        session: the backend session whose inputs are restored; None restores no input.

    >>> import random
    >>> random.seed(1)
    >>> with undisturbed():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    generators = capture()
    # A copy: an iterator may return the very state that it goes on changing.
    positions = {} if session is None else copy.deepcopy(session.positions())

    def undo() -> None:
        try:
            if session is not None:
                _seek(session, positions)
        finally:
            restore(generators)  # last: an input may draw on its way back

    return Undo(undo)


def _seek(session: Session, positions: Mapping[str, Any]) -> None:
    """Move back the inputs that were pulled from; others keep their iterator."""
    current = session.positions()
    moved = {
        name: position
        for name, position in positions.items()
        if not same(current[name], position)
    }
    if moved:
        session.seek(moved)
