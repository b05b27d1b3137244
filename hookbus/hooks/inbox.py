"""Takes the requests of any thread, and gives the asker the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from hookbus.graph.node import Node

StopKind: TypeAlias = Literal["stopped", "preempted"]
"""The ways in which a hook may end a session: ``preempted`` if it is to be continued."""

PostedKind: TypeAlias = Literal["stop", "save", "assign"]
"""The requests of threads."""


class Asked(Protocol):
    """The context of a run, through which the requests of threads are made."""

    def request_stop(self, reason: str, kind: StopKind, label: str | None) -> None:
        """Ask for the end of the session."""

    def request_save(self, why: str, keep: bool) -> None:
        """Ask for a checkpoint."""

    def assign(self, values: Mapping[Node | str, Any]) -> None:
        """Ask for variables to be set."""


@attrs.frozen(eq=False)
class Posted:
    """A request that a thread has made.

    Attributes:
        who: the plugin that asks, or ``caller``.
        kind: the kind of request.
        make: makes the request through the context of a run.
        answer: gets the result.
    """

    who: str
    kind: PostedKind
    make: Callable[[Asked], object]
    answer: Future[Any]


@attrs.frozen(eq=False)
class SessionRequests:
    """Makes requests of a session from any thread, at any time.

    The session serves them after its next step; in a pass of ``session.iterate``, it stops
    and saves when the next value is pulled. Each method returns a future at once. Its
    result comes when the request is served, and its exception is the reason of a refusal: a
    UsageError, a GraphError or, if the session ends before, a SessionClosedError. Do not
    wait for it in the thread of the session, which would never come to serve it.

    Hooks get an object of this class in ``begin``, as the argument ``requests``; a program
    has ``session.requests``.

    >>> from hookbus import Config, MonitoredSession
    >>> with MonitoredSession(config=Config(autoload=False, header=False)) as session:
    ...     weights = session.track(w={"w": 0.0})
    ...     asked = session.requests.request_stop("enough")
    ...     for _ in session.iterate(range(10)):
    ...         with session.step():
    ...             pass
    >>> asked.done(), session.global_step, session.outcome.why
    (True, 1, 'enough')
    """

    _who: str
    _post: Callable[[Posted], None]

    def request_stop(
        self, why: str, kind: StopKind = "stopped", label: str | None = None
    ) -> Future[None]:
        """Ask the session to end.

        Args:
            why: the reason, in words, for the outcome.
            kind: the kind of the outcome: ``"stopped"`` or ``"preempted"``.
            label: a word for programs, for the outcome.
        """
        return self._posted("stop", lambda context: context.request_stop(why, kind, label))

    def request_save(self, why: str, keep: bool = False) -> Future[int]:
        """Ask for a checkpoint. The result is its global step.

        Args:
            why: the reason, in words, for the manifest of the checkpoint.
            keep: whether the checkpoint is never removed.
        """
        return self._posted("save", lambda context: context.request_save(why, keep))

    def assign(self, values: Mapping[Node | str, Any]) -> Future[None]:
        """Ask for variables, or parts of tracked objects, to be set.

        Args:
            values: the values by name, like ``{"optimizer.lr": 0.01}``. With several
                processes the request is refused.
        """
        return self._posted("assign", lambda context: context.assign(values))

    def _posted(self, kind: PostedKind, make: Callable[[Asked], object]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._post(Posted(self._who, kind, make, answer))
        return answer


@attrs.define(eq=False)
class Inbox:
    """The requests of threads until they are answered. The requests of hooks lock it.

    Attributes:
        posted: those that were made, and are still to be taken up.
        taken: those that the session serves.
    """

    posted: list[Posted] = attrs.field(factory=list)
    taken: list[Posted] = attrs.field(factory=list)

    def take(self) -> list[Posted]:
        """Return the requests that were made, which are served from now on."""
        taken, self.posted = self.posted, []
        self.taken += taken
        return taken

    def answered(self, *kinds: PostedKind) -> list[Posted]:
        """Return the requests of some kinds that are served, and forget them."""
        found = [each for each in self.taken if each.kind in kinds]
        self.taken = [each for each in self.taken if each.kind not in kinds]
        return found

    def close(self) -> list[Posted]:
        """Return all requests that are left, and forget them."""
        left = self.posted + self.taken
        self.posted, self.taken = [], []
        return left
