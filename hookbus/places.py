"""The places in which something can be said about plugins, the weakest first."""

from __future__ import annotations

import enum


class Place(enum.IntEnum):
    """Where a word or a setting was given, the weakest first."""

    IMPLIED = 0
    """What a hook class falls back to when flags switch it on."""
    DEFAULT = 1
    """What a session falls back to when its arguments are not given."""
    FILE = 2
    CODE = 3
    ENVIRONMENT = 4
    COMMAND = 5

    @property
    def title(self) -> str:
        """How messages call it.

        >>> Place.COMMAND.title
        'command line'
        """
        return "command line" if self is Place.COMMAND else self.name.lower()
