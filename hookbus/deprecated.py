"""Keeps public names that were renamed: each still works, and warns of its new name."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

RENAMED = {
    "Call": "HookCall",
    "Stop": "StopReason",
    "number_in": "validation.number_in",
    "numeric": "validation.numeric",
    "swapped": "evaluating.swapped",
    "undisturbed": "evaluating.undisturbed",
    "was_cut_short": "resumes",
}
"""The old names of ``hookbus``, each with the new one."""
GONE_IN = "0.3"
"""The version without these old names."""


def warn_deprecated(old: str, new: str, gone_in: str, stacklevel: int = 1) -> None:
    """Warn the caller of a function that a name is deprecated.

    Args:
        old: the name, as the caller wrote it.
        new: the name that replaces it.
        gone_in: the first version without the old name.
        stacklevel: the number of frames between this function and the caller.
    """
    warnings.warn(
        f"{old} is now {new}; the old name goes away in {gone_in}",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def renamed(name: str, stacklevel: int = 1) -> Any:
    """Return the object that had a public name before, and warn of the new one.

    Args:
        name: the name without ``hookbus.``.
        stacklevel: the number of frames between this function and the one that uses it.

    Raises:
        KeyError: no public name was renamed so.
    """
    new = RENAMED[name]
    module, _, attribute = f"hookbus.{new}".rpartition(".")
    warn_deprecated(f"hookbus.{name}", f"hookbus.{new}", GONE_IN, stacklevel + 1)
    return getattr(importlib.import_module(module), attribute)
