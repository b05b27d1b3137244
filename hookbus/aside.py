"""What is done beside the training leaves no trace in it: what it uses is put back."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus.checkpoint import randomness
from hookbus.session import Session


@contextlib.contextmanager
def undisturbed(session: Session | None = None) -> Iterator[None]:
    """Put back, after a block, what the training around it goes on with.

    The process's random generators, Python's and, where it was loaded before, NumPy's; and
    where the inputs of a session stand. So an evaluation in the middle of a training may
    draw numbers and pull values, and the training goes on as if it had not been. An input
    is put back as it is after a kill: its function is called again, and values are skipped
    or its iterator told its position.

    Args:
        session: the backend session whose inputs are put back; None for none.

    >>> import random
    >>> random.seed(1)
    >>> with undisturbed():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    generators = randomness.capture()
    positions = _positions(session)
    try:
        yield
    finally:
        try:
            _seek(session, positions)
        finally:
            randomness.restore(generators)  # last: an input may draw on its way back


def _positions(session: Session | None) -> Mapping[str, Any]:
    # A copy: an iterator may hand out the very state that it goes on changing.
    return {} if session is None else copy.deepcopy(session.positions())


def _seek(session: Session | None, positions: Mapping[str, Any]) -> None:
    """Send back the inputs that were moved; others keep their iterator."""
    here = _positions(session)
    moved = {
        name: position
        for name, position in positions.items()
        if not randomness.same(here[name], position)
    }
    if session is not None and moved:
        session.seek(moved)
