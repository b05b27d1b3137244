"""Gives variables other values for a while, and those of the training for a save."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import attrs

from hookbus.backend.protocol import Session
from hookbus.errors import ArgumentTypeError, Undo, UsageError, WriteConflictError
from hookbus.graph.node import Node
from hookbus.validation import backend_of


@attrs.define(eq=False)
class Swaps:
    """The variables of one session that have other values for a while.

    Attributes:
        asker: returns who swaps now, in words.
        raw: the values of the training, by variable.
        holders: who swaps each of them.
    """

    asker: Callable[[], str] = lambda: "the caller"
    raw: dict[str, Any] = attrs.field(factory=dict)
    holders: dict[str, str] = attrs.field(factory=dict)


class HasBackendSession(Protocol):
    """A session with hooks, which runs a backend session."""

    @property
    def backend_session(self) -> Session:
        """The backend session, as hooks have it."""


_swaps: WeakKeyDictionary[Session, Swaps] = WeakKeyDictionary()


def swaps_of(session: Session) -> Swaps:
    """Return the record of the values that are swapped in a session."""
    return _swaps.setdefault(session, Swaps())


@contextlib.contextmanager
def swapped(
    session: Session | HasBackendSession, values: Mapping[str, Any] | Mapping[Node, Any]
) -> Iterator[None]:
    """Give variables other values in a block, like averages for an evaluation.

    The values are visible at once, and the old ones are restored even after an error.
    It does not count as a change, so it causes no save. A checkpoint that is written
    inside the block contains the old values.

    Args:
        session: the backend session, as hooks have it, or a monitored session.
        values: node or name of each variable to its value in the block.

    Raises:
        ArgumentTypeError: it is no session, or the values are no dict.
        WriteConflictError: one of the variables is swapped already.
        UsageError: the block trained, or wrote a variable: the session has lost that.
        UnknownNodeError, GraphError: as :meth:`SessionRunContext.assign`.

    >>> from hookbus import EmbeddedSession, Graph
    >>> graph = Graph()
    >>> _ = graph.variable("w", 1.0)
    >>> session = EmbeddedSession(graph)
    >>> with swapped(session, {"w": 5.0}):
    ...     session.run("w")
    5.0
    >>> session.run("w")
    1.0
    """
    backend: Session = backend_of(session, "swapped")
    if not isinstance(values, Mapping):
        raise ArgumentTypeError(
            f"swapped() takes a dict from variable to value, not a {type(values).__name__}"
        )
    swaps = swaps_of(backend)
    who = swaps.asker()
    named = {backend.graph.variable_named(node, who): v for node, v in values.items()}
    for name, value in named.items():
        if name in swaps.holders:
            raise WriteConflictError(
                f"variable {name!r} is swapped by two parties at a time: "
                f"{swaps.holders[name]} and {who}; leave the first block before"
            )
        backend.check(name, value, who)
    raw = _values(backend, named)
    swaps.raw.update(raw)
    swaps.holders.update(dict.fromkeys(named, who))
    version = backend.version

    def undo() -> None:
        try:
            _put(backend, {name: swaps.raw[name] for name in raw})
        finally:
            for name in raw:
                del swaps.raw[name], swaps.holders[name]

    with Undo(undo):
        _put(backend, named)
        yield
        if backend.version != version:
            raise UsageError(
                f"{who} swapped {', '.join(map(repr, named))}, and the block changed a "
                "variable or the global step; do not train or write inside swapped()"
            )


@contextlib.contextmanager
def unswapped(session: Session) -> Iterator[None]:
    """Give swapped variables the values of the training in a block, for a save."""
    swaps = _swaps.get(session)
    if swaps is None or not swaps.raw:
        yield
        return
    shown = _values(session, swaps.raw)
    _put(session, swaps.raw)
    try:
        yield
    finally:
        swaps.raw.update(_values(session, swaps.raw))  # a hook may have assigned one
        _put(session, shown)


def _values(session: Session, names: Iterable[str]) -> dict[str, Any]:
    """Return copies of variables: some backends change the very values."""
    values = session.variables()
    return {name: copy.deepcopy(values[name]) for name in names}


def _put(session: Session, values: Mapping[str, Any]) -> None:
    """Write variables; this does not count as a change."""
    version = session.version
    session.write(values)
    session.version = version
