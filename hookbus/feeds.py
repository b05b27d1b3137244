"""What several parties feed in one run, united; no two of them feed one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookbus.errors import FeedConflictError, GraphError
from hookbus.node import Node


def unite_feeds(
    parties: Iterable[tuple[str, Mapping[Node | str, Any] | None]],
    resolve: Callable[[Node | str, str], Node],
) -> dict[str, Any]:
    """Return all feeds by the name of the node.

    Args:
        parties: who feeds what, by node or name.
        resolve: finds the node, for the one who is named.

    Raises:
        FeedConflictError: one node is fed twice; both parties are named.
    """
    united: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for who, feeds in parties:
        if feeds is not None and not isinstance(feeds, Mapping):
            raise GraphError(
                f"the feeds of {who} are a {type(feeds).__name__}; give a dict from node "
                "or name to value"
            )
        for key, value in (feeds or {}).items():
            name = resolve(key, f"the feeds of {who}").name
            if name in united:
                raise FeedConflictError(
                    f"Same tensor is fed by two parties: {name!r} by {owners[name]} and "
                    f"{who}; leave it to one of them"
                )
            united[name] = value
            owners[name] = who
    return united
