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
