"""Which random generators of the process a checkpoint holds: Python's and NumPy's."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Mapping
from typing import Any


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
