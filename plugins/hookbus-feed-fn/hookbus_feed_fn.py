"""What a run is fed by a function, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus import Node, SessionRunArgs, SessionRunHook, UsageError


@attrs.define(eq=False)
class FeedFnHook(SessionRunHook):
    """Feeds each run what a function gives.

    Args:
        feed_fn: called without arguments before each run; returns a dict from node or
            name to value, or None for nothing. End of input raised in it ends the session.

    Raises:
        UsageError: it is no function.
        FeedConflictError: from a run, where somebody else feeds the same node.
    """

    feed_fn: Callable[[], Mapping[Node | str, Any] | None]

    def __attrs_post_init__(self) -> None:
        if not callable(self.feed_fn):
            raise UsageError(
                f"feed_fn must be callable, and a {type(self.feed_fn).__name__} is not."
            )

    def before_run(self) -> SessionRunArgs:
        """Ask the function."""
        return SessionRunArgs(feed_dict=self.feed_fn())
