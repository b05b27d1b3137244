"""Who makes backend sessions: the chief initializes or restores, a worker waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hookbus.errors import (
    ArgumentTypeError,
    DeadlineExceededError,
    SessionInterruptedError,
    UsageError,
)
from hookbus.graph import Graph
from hookbus.logs import log
from hookbus.pause import pause
from hookbus.reports import ReportGraph, ReportSession
from hookbus.scaffold import Scaffold
from hookbus.session import EmbeddedSession, Session


class SessionCreator(Protocol):
    """Makes backend sessions for one graph, a new one after each preemption.

    Attributes:
        graph: what the sessions run.
        scaffold: how they are initialized.
        checkpoint_dir: where they are restored from, or None.
        checkpoint_filename_with_path: the one checkpoint they are restored from, or None.
    """

    graph: Graph
    scaffold: Scaffold
    checkpoint_dir: str | Path | None
    checkpoint_filename_with_path: str | Path | None

    def create_session(self) -> Session:
        """Make a backend session with initial values."""

    def prepare(self, session: Session, restored: bool, hurry: Callable[[], bool]) -> None:
        """Initialize a session, or, where it was restored, only what is local.

        *hurry* says whether to wait no longer, as after a signal.
        """


class ChiefSessionCreator:
    """Makes the backend session of the process that initializes and restores.

    Args:
        graph: what to run.
        scaffold: how to initialize it.
        checkpoint_dir: where to restore from, if there is anything.
        checkpoint_filename_with_path: one checkpoint to restore instead, a directory like
            ``runs/digits/ckpt-120``.
        backend: makes a bare backend session of a graph.

    Raises:
        UsageError: both places to restore from are given.
    """

    def __init__(
        self,
        graph: Graph,
        scaffold: Scaffold | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_filename_with_path: str | Path | None = None,
        backend: Callable[[Graph], Session] = EmbeddedSession,
    ) -> None:
        if checkpoint_dir and checkpoint_filename_with_path:
            raise UsageError(
                "Can not provide both checkpoint_dir and checkpoint_filename_with_path."
            )
        self.graph = graph
        self.scaffold = _for_graph(graph, scaffold)
        self.checkpoint_dir = checkpoint_dir
        self.checkpoint_filename_with_path = checkpoint_filename_with_path
        self._backend = backend

    def create_session(self) -> Session:
        """Make a backend session with initial values."""
        return self._backend(self.graph)

    def prepare(
        self,
        session: Session,
        restored: bool,
        hurry: Callable[[], bool],  # noqa: ARG002 (it never waits)
    ) -> None:
        """Initialize a session that restored nothing; see to it that it is ready.

        Raises:
            NotReadyError: it is not.
        """
        if not restored:
            self.scaffold.initialize(session)
        self.scaffold.make_ready(session)


class WorkerSessionCreator:
    """Makes the backend session of a process that waits until the chief is done.

    Args:
        graph: what to run.
        scaffold: its ready ops say whether the model is ready.
        max_wait_secs: how long to wait for it, in seconds.
        recovery_wait_secs: how long to sleep between two looks, in seconds.
        backend: makes a bare backend session of a graph.
    """

    checkpoint_dir: str | Path | None = None
    checkpoint_filename_with_path: str | Path | None = None

    def __init__(
        self,
        graph: Graph,
        scaffold: Scaffold | None = None,
        max_wait_secs: float = 1800.0,
        recovery_wait_secs: float = 30.0,
        backend: Callable[[Graph], Session] = EmbeddedSession,
    ) -> None:
        self.graph = graph
        self.scaffold = _for_graph(graph, scaffold)
        self._max_wait = max_wait_secs
        self._wait = recovery_wait_secs
        self._backend = backend

    def create_session(self) -> Session:
        """Make a backend session with initial values."""
        return self._backend(self.graph)

    def prepare(
        self,
        session: Session,
        restored: bool,  # noqa: ARG002 (a worker restores nothing)
        hurry: Callable[[], bool],
    ) -> None:
        """Wait until the scaffold finds the session ready.

        Raises:
            DeadlineExceededError: it is not, in time.
            SessionInterruptedError: a signal came meanwhile.
        """
        left = self._max_wait
        while (missing := self.scaffold.prepare_locally(session)) is not None:
            left -= self._wait
            if left < 0:
                raise DeadlineExceededError(
                    f"Session was not ready after waiting {self._max_wait:g} secs: "
                    f"{missing}"
                )
            log.info("waiting for the model to be ready", missing=missing)
            if not pause(self._wait, hurry):
                raise SessionInterruptedError("a signal came while a worker waited")


def _for_graph(graph: Graph, scaffold: Scaffold | None) -> Scaffold:
    if scaffold is not None and scaffold.graph is not graph:
        raise UsageError("scaffold is made for another graph than that of the session")
    return scaffold or Scaffold(graph)


def chief(
    graph: Graph | None,
    scaffold: Scaffold | None = None,
    checkpoint_dir: str | Path | None = None,
    path: str | Path | None = None,
) -> ChiefSessionCreator:
    """Return a creator for a graph, or, without one, for a loop of one's own."""
    if graph is not None and not isinstance(graph, Graph):
        raise ArgumentTypeError(
            f"graph is a {type(graph).__name__}; the first argument of a session is its "
            "Graph (a session creator is given as session_creator=)"
        )
    if graph is not None:
        return ChiefSessionCreator(graph, scaffold, checkpoint_dir, path)
    own = ReportGraph()
    return ChiefSessionCreator(own, scaffold, checkpoint_dir, path, ReportSession)
