"""Tells a session from the copy that a fork makes of it."""

from __future__ import annotations

import attrs

from hookbus.errors import ForkedSessionError


@attrs.define(eq=False)
class ForkGuard:
    """The flag of one session that a fork sets in the child; all its parts share it.

    The child has a copy of an open session, with hooks, a lock and files that belong to the
    parent. So the child abandons its copy, which then calls no hook, and writes nothing.

    Attributes:
        is_abandoned: whether this process is such a child.
    """

    is_abandoned: bool = False

    def abandon(self) -> None:
        """Leave the session to the parent process."""
        self.is_abandoned = True

    def check(self) -> None:
        """Raise ForkedSessionError in a forked child of the process of the session."""
        if self.is_abandoned:
            raise ForkedSessionError
