"""Feeds each run the values that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus import Node, SessionRunArgs, SessionRunHook, UsageError


@attrs.define(eq=False)
class FeedFnHook(SessionRunHook):
    """Feeds each run the values that a function returns.

    Args:
        feed_fn: a function without arguments that returns a dict from node or name to
            value, or None. It is called before each run; an end of input that it raises
            ends the session.

    Raises:
        UsageError: the function is not callable.
        FeedConflictError: from a run, if the caller or another hook feeds the same node.

    >>> import hookbus
    >>> graph = hookbus.Graph()
    >>> x = graph.placeholder("x")
    >>> square = graph.op(lambda x: x**2, name="square")
    >>> hook = FeedFnHook(lambda: {"x": 3.0})
    >>> with hookbus.SingularMonitoredSession(graph, hooks=[hook]) as session:
    ...     session.run("square")
    9.0
    """

    feed_fn: Callable[[], Mapping[Node | str, Any] | None]

    def __attrs_post_init__(self) -> None:
        if not callable(self.feed_fn):
            raise UsageError(
                f"feed_fn must be callable, not a {type(self.feed_fn).__name__}."
            )

    def before_run(self) -> SessionRunArgs:
        """Call the function, and feed its result."""
        return SessionRunArgs(feed_dict=self.feed_fn())
