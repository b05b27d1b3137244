"""The random generators of the process, and blocks that leave them as they were."""

from __future__ import annotations

import contextlib
import copy
import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus.backend.protocol import Session


def capture() -> dict[str, Any]:
    """Return the state of Python's generator and, if NumPy is loaded, of NumPy's."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Put the generators back where :func:`capture` found them."""
    if "python" in state:
        random.setstate(state["python"])
    if "numpy" in state:
        importlib.import_module("numpy").random.set_state(state["numpy"])


def fork() -> dict[str, Any]:
    """Return states that follow from today's and lead elsewhere; today's stay."""
    today = capture()
    random.seed(random.getrandbits(64))
    if "numpy" in today:  # from its own: a program may seed only the one that it uses
        numpy_random = sys.modules["numpy"].random
        numpy_random.seed(numpy_random.randint(2**32, dtype="uint32"))
    forked = capture()
    restore(today)
    return forked


def same(one: Any, other: Any) -> bool:
    """Say whether two captured states are equal, arrays within them included."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)


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
    generators = capture()
    positions = _positions(session)
    try:
        yield
    finally:
        try:
            _seek(session, positions)
        finally:
            restore(generators)  # last: an input may draw on its way back


def _positions(session: Session | None) -> Mapping[str, Any]:
    # A copy: an iterator may hand out the very state that it goes on changing.
    return {} if session is None else copy.deepcopy(session.positions())


def _seek(session: Session | None, positions: Mapping[str, Any]) -> None:
    """Send back the inputs that were moved; others keep their iterator."""
    here = _positions(session)
    moved = {
        name: position
        for name, position in positions.items()
        if not same(here[name], position)
    }
    if session is not None and moved:
        session.seek(moved)
