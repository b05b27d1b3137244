"""What has to happen before a new backend session can be used, in which order.

Nodes and functions take the place of TensorFlow's ops: variables have their initial values
from the start, so each piece may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.errors import ArgumentTypeError, NotReadyError, UsageError
from hookbus.fetches import leaves_of, shape_of
from hookbus.graph import Graph
from hookbus.logs import log
from hookbus.node import Node
from hookbus.session import Session


@attrs.define(eq=False)
class Scaffold:
    """How a session is initialized, and what of it is summarized and saved.

    Args:
        graph: what the nodes belong to.
        init_op: fetched once where nothing is restored; a train op with ``increment=0``
            that gives variables their first values.
        init_feed_dict: feeds for *init_op*.
        init_fn: called as ``init_fn(scaffold, session)`` after *init_op*, where nothing is
            restored.
        ready_op: a node; the session is ready when its value is None or empty, else the
            value names what is missing.
        ready_for_local_init_op: the same, asked before *local_init_op*.
        local_init_op: fetched in every new session, restored or not.
        summary_op: the nodes that the summary-saver writes when it is told none.
        saver: the variables that checkpoints hold; None for all.
        copy_from_scaffold: another one, whose pieces stand where none is given here.
        local_init_feed_dict: feeds for *local_init_op*.

    Raises:
        UsageError: *copy_from_scaffold* is no Scaffold.

    >>> graph = Graph()
    >>> w = graph.variable("w", 0.0)
    >>> scaffold = Scaffold(graph, init_fn=lambda scaffold, s: s.write({"w": 5.0}))
    >>> from hookbus import SingularMonitoredSession
    >>> with SingularMonitoredSession(graph, scaffold=scaffold) as session:
    ...     session.run("w")
    5.0
    """

    graph: Graph
    init_op: Any = None
    init_feed_dict: Mapping[Node | str, Any] | None = None
    init_fn: Callable[[Scaffold, Session], None] | None = None
    ready_op: Node | str | None = None
    ready_for_local_init_op: Node | str | None = None
    local_init_op: Any = None
    summary_op: Any = None
    saver: Sequence[Node | str] | None = None
    copy_from_scaffold: Scaffold | None = attrs.field(default=None, repr=False)
    local_init_feed_dict: Mapping[Node | str, Any] | None = None

    def __attrs_post_init__(self) -> None:
        source = self.copy_from_scaffold
        if source is None:
            return
        if not isinstance(source, Scaffold):
            raise ArgumentTypeError("copy_from_scaffold is not a Scaffold instance.")
        for field in attrs.fields(Scaffold):
            if field.name not in ("graph", "copy_from_scaffold"):
                mine = getattr(self, field.name)
                theirs = getattr(source, field.name)
                setattr(self, field.name, theirs if mine is None else mine)

    def finalize(self) -> Scaffold:
        """Look up all nodes that are named, then finalize the graph; return self.

        Raises:
            UnknownNodeError: a piece names no node.
        """
        pieces = ("init_op", "local_init_op", "ready_op", "ready_for_local_init_op")
        for piece in pieces:
            wanted = getattr(self, piece)
            if wanted is not None:
                for leaf in leaves_of(shape_of(wanted)):
                    self.graph.resolve(leaf, f"{piece} of the scaffold")
        for piece in ("init_feed_dict", "local_init_feed_dict"):
            for node in getattr(self, piece) or ():
                self.graph.resolve(node, f"{piece} of the scaffold")
        if isinstance(self.saver, str):
            raise UsageError(
                f"saver of the scaffold is {self.saver!r}; give a list of names"
            )
        for node in self.saver or ():
            self.graph.variable_named(node, "saver of the scaffold")
        self.graph.finalize()
        return self

    @property
    def saved_names(self) -> frozenset[str] | None:
        """The names of the variables that checkpoints hold; None for all."""
        if self.saver is None:
            return None
        return frozenset(self.graph.resolve(node).name for node in self.saver)

    def initialize(self, session: Session) -> None:
        """Give a session that restored nothing its first values."""
        if self.init_op is not None:
            session.run(self.init_op, self.init_feed_dict)
        if self.init_fn is not None:
            self.init_fn(self, session)

    def prepare_locally(self, session: Session) -> str | None:
        """Run what every new session runs; return what is still missing, or None."""
        missing = _missing(session, self.ready_for_local_init_op)
        if missing is not None:
            return f"not ready for local init: {missing}"
        if self.local_init_op is not None:
            log.info("running local_init_op")
            session.run(self.local_init_op, self.local_init_feed_dict)
        return _missing(session, self.ready_op)

    def make_ready(self, session: Session) -> None:
        """Run what every new session runs.

        Raises:
            NotReadyError: it is not ready then.
        """
        missing = self.prepare_locally(session)
        if missing is not None:
            raise NotReadyError(
                f"Init operations did not make model ready: {missing}. "
                f"Init op: {self.init_op}, init fn: {self.init_fn}"
            )


def _missing(session: Session, ready: Node | str | None) -> str | None:
    """Return what a ready op names as missing; None, and an empty value, are nothing."""
    if ready is None:
        return None
    value = session.run(ready)
    size = getattr(value, "size", None)
    if value is None or size == 0 or (size is None and not value):
        return None
    return str(value)
