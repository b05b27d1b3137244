"""Creates backend sessions, and makes them ready for use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from hookbus.backend.protocol import Session, create_session
from hookbus.checkpoint.reader import NewestIn, load_variables
from hookbus.errors import (
    ArgumentTypeError,
    DeadlineExceededError,
    NotReadyError,
    SessionInterruptedError,
    UsageError,
)
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.report_graph import ReportGraph
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.timer import pause
from hookbus.logs import log
from hookbus.validation import check_directory


@attrs.define(eq=False)
class Scaffold:
    """Defines how a session is initialized, and which nodes are summarized and saved.

    Args:
        graph: the graph of the nodes.
        init_op: fetched once if nothing is restored; a train op with ``increment=0`` that
            sets the first values of variables. ``session.loop()`` does not run it.
        init_feed_dict: feeds for *init_op*.
        init_fn: called as ``init_fn(scaffold, session)`` after *init_op*, if nothing is
            restored.
        ready_op: a node; the session is ready if its value is None or empty, otherwise the
            value names what is missing.
        ready_for_local_init_op: a node that is fetched before *local_init_op*; its value
            has the meaning of that of *ready_op*.
        local_init_op: fetched in every new session, restored or not.
        summary_op: the nodes that the summary-saver writes if it is given none.
        saver: the variables that checkpoints contain; None for all.
        copy_from_scaffold: another scaffold, which provides the arguments that are not
            given.
        local_init_feed_dict: feeds for *local_init_op*.

    Raises:
        UsageError: *copy_from_scaffold* is not a Scaffold.

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
            if getattr(self, field.name) is None:
                setattr(self, field.name, getattr(source, field.name))

    def finalize(self) -> Scaffold:
        """Look up all nodes that are named, then finalize the graph; return self.

        Raises:
            UnknownNodeError: an argument names a node that does not exist.
        """
        for name in ("init_op", "local_init_op", "ready_op", "ready_for_local_init_op"):
            self._nodes_of(name)
        for name in ("init_feed_dict", "local_init_feed_dict"):
            for node in getattr(self, name) or ():
                self.graph.resolve(node, f"{name} of the scaffold")
        if isinstance(self.saver, str):
            raise UsageError(
                f"the scaffold's saver is {self.saver!r}; give a list of variable names"
            )
        for node in self.saver or ():
            self.graph.variable_named(node, "saver of the scaffold")
        self.graph.finalize()
        return self

    def warm_started(self, source: str | Path) -> Scaffold:
        """Return a scaffold that, if nothing is restored, starts from a checkpoint.

        The session starts with the values of the variables that the graph and the
        checkpoint share; *init_op* sets its variables before, *init_fn* after that.

        Args:
            source: the checkpoint, or a directory, for the newest one in it.

        Raises:
            CheckpointError: there is no checkpoint, or it is damaged.
        """
        before, values = self.init_fn, load_variables(source)

        def begin(scaffold: Scaffold, session: Session) -> None:
            own = session.variables()
            known = {name: value for name, value in values.items() if name in own}
            session.write(known)
            log.info("warm start", source=str(source), variables=len(known))
            if before is not None:
                before(scaffold, session)

        return Scaffold(self.graph, init_fn=begin, copy_from_scaffold=self)

    @property
    def saved_names(self) -> frozenset[str] | None:
        """The names of the variables that checkpoints contain; None for all."""
        if self.saver is None:
            return None
        return frozenset(self.graph.resolve(node).name for node in self.saver)

    @property
    def init_names(self) -> frozenset[str]:
        """The names of the nodes that initialize a session."""
        nodes = [*self._nodes_of("init_op"), *self._nodes_of("local_init_op")]
        return frozenset(node.name for node in nodes)

    def initialize(self, session: Session) -> None:
        """Set the first values of a session that restored nothing."""
        if self.init_op is not None:
            session.run(self.init_op, self.init_feed_dict)
        if self.init_fn is not None:
            self.init_fn(self, session)

    def prepare_locally(self, session: Session) -> str | None:
        """Run the local initialization; return the parts still missing, or None."""
        missing = _missing(session, self.ready_for_local_init_op)
        if missing is not None:
            return f"not ready for local init: {missing}"
        if self.local_init_op is not None:
            log.info("running local_init_op")
            session.run(self.local_init_op, self.local_init_feed_dict)
        return _missing(session, self.ready_op)

    def _nodes_of(self, argument: str) -> list[Node]:
        asker = f"{argument} of the scaffold"
        return self.graph.resolve_all(getattr(self, argument), asker)


def _missing(session: Session, ready: Node | str | None) -> str | None:
    """Return the parts that a ready op reports as missing, or None."""
    if ready is None:
        return None
    value = session.run(ready)
    size = getattr(value, "size", None)
    if value is None or size == 0 or (size is None and not value):
        return None
    return str(value)


class SessionCreator(Protocol):
    """Creates backend sessions for one graph, a new one after each preemption.

    Between its two methods the session restores a checkpoint.

    Attributes:
        graph: the graph that the sessions run.
        scaffold: initializes them.
        checkpoint_dir: the directory to restore from, or None.
        checkpoint_filename_with_path: the one checkpoint to restore, or None.

    >>> from hookbus import EmbeddedSession, MonitoredSession
    >>> class LoudSessionCreator(ChiefSessionCreator):
    ...     def create_session(self):
    ...         print("a new backend session")
    ...         return EmbeddedSession(self.graph)
    >>> with MonitoredSession(session_creator=LoudSessionCreator(Graph())) as session:
    ...     session.global_step
    a new backend session
    0
    """

    graph: Graph
    scaffold: Scaffold
    checkpoint_dir: str | Path | None
    checkpoint_filename_with_path: str | Path | NewestIn | None

    def create_session(self) -> Session:
        """Make a backend session with initial values."""

    def prepare(self, session: Session, restored: bool, hurry: Callable[[], bool]) -> None:
        """Initialize a session; if it was restored, run only its local initialization.

        *hurry* returns whether to stop waiting, for example after a signal.
        """


class _GraphSessionCreator:
    """Creates backend sessions of one graph with one scaffold."""

    checkpoint_dir: str | Path | None = None
    checkpoint_filename_with_path: str | Path | NewestIn | None = None

    def __init__(
        self,
        graph: Graph,
        scaffold: Scaffold | None,
        backend: Callable[[Graph], Session] | None,
    ) -> None:
        if scaffold is not None and scaffold.graph is not graph:
            raise UsageError("the scaffold belongs to another graph than the session")
        self.graph = graph
        self.scaffold: Scaffold = scaffold or Scaffold(graph)
        self._backend = backend or create_session

    def create_session(self) -> Session:
        """Make a backend session with initial values."""
        return self._backend(self.graph)


class ChiefSessionCreator(_GraphSessionCreator):
    """Creates the backend session of the process that initializes and restores.

    Args:
        graph: the graph to run.
        scaffold: initializes the session.
        checkpoint_dir: where to restore from, if it contains a checkpoint. The session also
            saves into it, if a hook in ``hooks`` enables saving.
        checkpoint_filename_with_path: one checkpoint to restore instead, a directory like
            ``runs/digits/ckpt-120``.
        backend: creates a backend session of a graph; by default the one that the graph
            names.

    Raises:
        UsageError: both places to restore from are given.

    >>> from hookbus import MonitoredSession
    >>> graph = Graph()
    >>> w = graph.variable("w", 3.0)
    >>> with MonitoredSession(session_creator=ChiefSessionCreator(graph)) as session:
    ...     session.run("w")
    3.0
    """

    def __init__(
        self,
        graph: Graph,
        scaffold: Scaffold | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_filename_with_path: str | Path | NewestIn | None = None,
        backend: Callable[[Graph], Session] | None = None,
    ) -> None:
        if checkpoint_dir and checkpoint_filename_with_path:
            raise UsageError(
                "Can not provide both checkpoint_dir and checkpoint_filename_with_path."
            )
        super().__init__(graph, scaffold, backend)
        self.checkpoint_dir = checkpoint_dir
        self.checkpoint_filename_with_path = checkpoint_filename_with_path

    def prepare(
        self,
        session: Session,
        restored: bool,
        hurry: Callable[[], bool],  # noqa: ARG002 (it never waits)
    ) -> None:
        """Initialize a session that restored nothing; check that it is ready.

        Raises:
            NotReadyError: the session is not ready.
        """
        scaffold = self.scaffold
        if not restored:
            scaffold.initialize(session)
        missing = scaffold.prepare_locally(session)
        if missing is not None:
            raise NotReadyError(
                f"Init operations did not make model ready: {missing}. "
                f"Init op: {scaffold.init_op}, init fn: {scaffold.init_fn}"
            )


class WorkerSessionCreator(_GraphSessionCreator):
    """Creates the backend session of a process that waits for the chief's initialization.

    Args:
        graph: the graph to run.
        scaffold: its ready ops return whether the model is ready.
        max_wait_secs: the longest time to wait, in seconds.
        recovery_wait_secs: the time between two checks, in seconds.
        backend: creates a backend session of a graph; by default the one that the graph
            names.

    >>> graph = Graph()
    >>> ready = graph.op(lambda: True, name="ready")
    >>> scaffold = Scaffold(graph, ready_op="ready")
    >>> creator = WorkerSessionCreator(graph, scaffold, max_wait_secs=60.0)
    >>> creator.graph is graph
    True
    """

    def __init__(
        self,
        graph: Graph,
        scaffold: Scaffold | None = None,
        max_wait_secs: float = 1800.0,
        recovery_wait_secs: float = 30.0,
        backend: Callable[[Graph], Session] | None = None,
    ) -> None:
        super().__init__(graph, scaffold, backend)
        self._max_wait = max_wait_secs
        self._wait = recovery_wait_secs

    def prepare(
        self,
        session: Session,
        restored: bool,  # noqa: ARG002 (a worker restores nothing)
        hurry: Callable[[], bool],
    ) -> None:
        """Wait until the scaffold finds the session ready.

        Raises:
            DeadlineExceededError: the session is not ready in time.
            SessionInterruptedError: a signal arrived during the wait.
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
                raise SessionInterruptedError(
                    "a signal arrived while the worker was waiting"
                )


def chief(
    graph: Graph | None,
    scaffold: Scaffold | None = None,
    checkpoint_dir: str | Path | None = None,
    path: str | Path | NewestIn | None = None,
) -> ChiefSessionCreator:
    """Return a creator for a graph, or, without one, for a custom loop."""
    if graph is None:
        graph = ReportGraph()
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(
            "expected a Graph as the first argument of a session, not a "
            f"{type(graph).__name__} (pass a session creator as session_creator=)"
        )
    return ChiefSessionCreator(graph, scaffold, checkpoint_dir, path)


def creator_of(
    graph: Graph | None,
    given: SessionCreator | None,
    directory: str | Path | None,
    kind: Kind,
) -> SessionCreator:
    """Return the creator of a monitored session: the given one, or a new one.

    A new one restores the newest checkpoint of the directory, if there is a directory.

    Raises:
        ArgumentTypeError: the graph or the directory is something else.
        UsageError: the arguments exclude each other, or a session that trains has a
            directory.
    """
    check_directory("checkpoint_dir", directory)
    if given is not None:
        if directory is not None:
            raise UsageError(
                "checkpoint_dir and session_creator exclude each other; give the directory "
                "to the session_creator"
            )
        if graph is not None and given.graph is not graph:
            raise UsageError(
                "the session and its session_creator have different graphs; give the "
                "graph in one place"
            )
        return given
    if directory is None:
        return chief(graph)
    if kind == "train":
        raise UsageError(
            "MonitoredSession(checkpoint_dir=) only restores, for the kinds eval and "
            "predict; to train, use MonitoredTrainingSession(checkpoint_dir=), which also "
            "saves"
        )
    return chief(graph, path=NewestIn(directory))
