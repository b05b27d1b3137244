"""Defines the default of an argument for which None has another meaning."""

from __future__ import annotations

import enum


class Unset(enum.Enum):
    """The default of an argument for which None has another meaning."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset.UNSET
