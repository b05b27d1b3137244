"""The loop's session: emits the events, acts on what hooks asked for, ends properly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.backend.reports import ReportGraph
from hookbus.bus.registry import Registration
from hookbus.config.config import Config
from hookbus.errors import (
    END_OF_INPUT,
    SessionClosedError,
    SessionInterruptedError,
    UsageError,
)
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.traversal import inputs_of, train_ops
from hookbus.hooks.hook import Kind, check_kind
from hookbus.hooks.outcome import NOBODY, SWALLOWED, Outcome
from hookbus.plugin.roster import as_hooks, session_hooks
from hookbus.session.builder import build_session, current_config, pop_session, push_session
from hookbus.session.creators import SessionCreator, chief
from hookbus.session.manager import CoordinatedSession
from hookbus.session.recoverable import Done, Recovery
from hookbus.session.signals import KINDS
from hookbus.session.step import Step, StepContext, check_step_fn


class MonitoredSession:
    """A session whose runs reach hooks, and that survives preemptions.

    Making one calls every hook's ``begin``, finalizes the graph, creates and restores the
    backend session and calls ``after_create_session``; leaving its block calls ``end`` or
    ``on_exception``, exactly one of them for each hook that began.

    Args:
        graph: what to run; without one the session is for a loop of one's own, with
            :meth:`track`, :meth:`iterate` and :meth:`step`.
        session_creator: makes the backend sessions, by default a
            :class:`ChiefSessionCreator` without a checkpoint directory.
        hooks: hook objects, called after all plugins, in this order.
        stop_grace_period_secs: how long to wait at the end for the threads that hooks
            registered with the coordinator.
        config: which plugins are on; by default the process's.
        kind: what the session is for.
        recovery: how often a preempted session is opened again.

    Raises:
        UsageError: arguments, flags or settings that do not fit.
        PluginError: a plugin that is on does not load, or a hook does not fit.
        CheckpointError: the checkpoints cannot be read, or not be written.

    >>> graph = Graph()
    >>> w = graph.variable("w", 1.0)
    >>> @graph.train_op(updates="w")
    ... def double(w):
    ...     return w * 2
    >>> with MonitoredSession(graph) as session:
    ...     [session.run(["w", "double"])[0] for _ in range(3)]
    [1.0, 2.0, 4.0]
    >>> session.outcome.kind
    'completed'
    """

    _raises = False

    def __init__(
        self,
        graph: Graph | None = None,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[Any] | None = None,
        stop_grace_period_secs: float = 120.0,
        *,
        config: Config | None = None,
        kind: Kind = "train",
        recovery: Recovery | None = None,
    ) -> None:
        config = config or current_config()
        check_kind(kind)
        creator = session_creator or chief(graph)
        if graph is not None and creator.graph is not graph:
            raise UsageError(
                "the session is given one graph, and its session_creator another; name it "
                "in one place"
            )
        taking_part = session_hooks(config, kind, {"hooks": as_hooks(hooks, "hooks")})
        recovery = recovery or Recovery()
        self._setup(creator, taking_part, kind, config, stop_grace_period_secs, recovery)

    def _setup(
        self,
        creator: SessionCreator,
        taking_part: Sequence[Registration],
        kind: Kind,
        config: Config,
        grace: float,
        recovery: Recovery | None,
    ) -> None:
        self.kind = kind
        self.outcome: Outcome | None = None
        self._graph: Graph | None = creator.graph
        parts = build_session(creator, taking_part, kind, config, grace, recovery)
        self._bus, self._engine, self._closing = parts.bus, parts.engine, parts.closing
        self._engine.raises = self._raises
        self._own = parts.own_loop
        self._engine.watch.install()
        push_session(self._bus.turn)
        try:
            self._open(creator)
        except BaseException as error:
            self._finish(error)
            raise

    @property
    def graph(self) -> Graph | None:
        """The graph; None after close, as in TF."""
        return self._graph

    @property
    def global_step(self) -> int:
        """The global step after the last run; readable after close."""
        attempt = self._engine.attempt
        return attempt.session.global_step if attempt is not None else 0

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        kind: Kind | None = None,
    ) -> Any:
        """Run part of the graph once, hooks before and after it.

        What hooks asked for is done before it returns: variables are written, a
        checkpoint is saved, a stop takes effect. After a preemption the session is opened
        again from the newest good checkpoint, and the run is repeated.

        In a loop of one's own it reads, between two steps, what was reported last.

        Args:
            fetches: a node, its name, or any nesting of these.
            feed_dict: node or name to value.
            options: how to run.
            run_metadata: filled with what the backend records.
            kind: what the run is for, by default what the session is for; an ``aux`` run
                reaches only hooks that declare it, and is allowed after a stop.

        Returns:
            The values in the structure of *fetches*.

        Raises:
            OutOfRangeError: an input has ended.
            RunAfterStopError: a hook asked to stop before.
            SessionClosedError: the session is closed.
            SessionInterruptedError: a signal came; the session's block takes it in.
        """
        engine = self._engine
        if engine.own_loop:
            return self._own.read(fetches, feed_dict)
        if kind is not None:
            check_kind(kind)
        if self._bus.turn.name is not NOBODY:
            self._check_turn()
        attempt = engine.usable(kind)
        request = (fetches, feed_dict, options, run_metadata, kind or self.kind)
        done: Done | None = None
        try:
            values, context = attempt.runner.run(*request)
            done = values, attempt.session.global_step
            engine.after_run(attempt, context)
            return values
        except Exception as error:
            cause = engine.preemption(error)
            if cause is None:
                raise
        return engine.repeat(cause, lambda new: self._run_once(new, *request), done)

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Call a function that runs the backend session as it likes, hooks or not.

        After a preemption anywhere in it the whole function is called again.

        Args:
            step_fn: takes ``step_context``, or ``self`` and ``step_context``.

        Returns:
            What it returns.

        Raises:
            UsageError: it has other parameters.
            StopIteration: it asked to stop; the session's block takes it in.
        """
        check_step_fn(step_fn)
        if isinstance(self._graph, ReportGraph):
            raise UsageError("run_step_fn() is for a session with a graph; use step()")

        def call(attempt: CoordinatedSession) -> Any:
            def run_with_hooks(*args: Any, **kwargs: Any) -> Any:
                self._engine.usable(kwargs.get("kind"))
                return self._run_once(attempt, *args, **kwargs)

            return step_fn(StepContext(attempt.session, run_with_hooks))

        try:
            return call(self._engine.usable(None))
        except Exception as error:
            cause = self._engine.preemption(error)
            if cause is None:
                raise
        return self._engine.repeat(cause, call)

    def loop(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Node | str, Any] | None = None,
    ) -> Iterator[Any]:
        """Train until somebody stops or the input ends; yield each run's values.

        Each turn is one run of all the graph's train ops, together with *fetches*. The
        generator just ends; the block goes on behind it.
        """
        graph = self._graph
        if graph is None:
            return
        if isinstance(graph, ReportGraph):
            raise UsageError(
                "loop() is for a session with a graph; use iterate() and step()"
            )
        names = [node.name for node in train_ops(graph)]
        if not names and not inputs_of(graph, graph.resolve_all(fetches, "the caller")):
            raise UsageError(
                "loop() would never end: the graph has no train op (made by "
                "graph.train_op) and what is fetched reads no input"
            )
        request = names if fetches is None else (fetches, names)
        while not self.should_stop():
            try:
                values = self.run(request, feed_dict)
            except SessionInterruptedError:  # the signal came after should_stop()
                return
            except END_OF_INPUT as error:
                self._engine.end_input(error)
                return
            yield None if fetches is None else values[0]

    def track(self, /, **things: Any) -> Any:
        """Have objects of a loop of one's own saved with every checkpoint.

        They are restored at once, if a checkpoint knows them.

        Args:
            things: name to object: anything with ``state_dict`` and ``load_state_dict``,
                an array, a NumPy Generator, or a pair of functions ``(get, set)``.

        Returns:
            What to go on with: the value, restored or not, or for several a dict by name.

        Raises:
            UsageError: an object cannot be tracked, or its name is taken.
        """
        self._for_own_loops("track()")
        return self._own.track(things)

    def iterate(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Go through the input of a loop of one's own; stop where the session stops.

        Checkpoints hold the position: a loop that was killed starts at its top again, and
        the values that it was through with are skipped.

        Args:
            iterable: gives the same values each time the program is started; a shuffle
                belongs into it.
        """
        self._for_own_loops("iterate()")
        return self._own.iterate(iterable)

    def step(self, *, kind: Kind | None = None) -> Step:
        """Do one step of a loop of one's own: a block around what the step computes.

        Entering it is ``before_run``, leaving it normally counts the step and is
        ``after_run``. An error in it leaves it, the session fails, and is not retried.

        Args:
            kind: what the step is for, by default what the session is for.

        Raises:
            UsageError: the session has a graph.
        """
        self._for_own_loops("step()")
        check_kind(kind)
        self._check_turn()
        return Step(self._own, kind or self.kind)

    def should_stop(self) -> bool:
        """Say whether to leave the loop: closed, stopped, or at the end of input."""
        return self._engine.should_stop()

    def close(self) -> None:
        """End the session as at the end of its block, with nothing raised.

        Raises:
            SessionClosedError: it is closed already.
        """
        if self._engine.closed:
            raise SessionClosedError("Session is already closed.")
        self._finish(None)

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._engine.closed and error is None:
            raise SessionClosedError("Session is already closed.")
        if not self._engine.closed:
            self._finish(error)
        return isinstance(error, SWALLOWED)

    def _open(self, creator: SessionCreator) -> None:
        """Go through the events up to the first run."""
        engine = self._engine
        self._bus.check_order()
        self._closing.begin()
        creator.scaffold.finalize()
        engine.keeper.saved_names = creator.scaffold.saved_names
        engine.keeper.unsaved = creator.graph.unsaved
        engine.keeper.prepare()
        engine.start()
        self._closing.first_step = self.global_step

    def _run_once(
        self,
        attempt: CoordinatedSession,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        kind: Kind | None = None,
    ) -> Any:
        values, context = attempt.runner.run(
            fetches, feed_dict, options, run_metadata, kind or self.kind
        )
        self._engine.after_run(attempt, context)
        return values

    def _finish(self, error: BaseException | None) -> None:
        """End the session, once."""
        engine, closing = self._engine, self._closing
        engine.closed, self._graph = True, None
        reached = error
        error, clean = engine.settle(error, closing.is_clean(error))
        self.outcome = outcome = engine.outcome(error, clean)
        session = engine.attempt.session if engine.attempt is not None else None

        try:
            closing.finish(error, clean, session, outcome, engine.actor, engine.close)
            if error is not None and error is not reached:
                raise error
        finally:
            pop_session(self._bus.turn)
            self._hand_on(outcome)

    def _hand_on(self, outcome: Outcome) -> None:
        """Raise a signal again that came too late to be why the session ended."""
        keeper, watch = self._engine.keeper, self._engine.watch
        served = outcome.kind in KINDS.values()
        if watch.unheard is not None and not served and keeper.ended is not None:
            # The program hears of no end: whoever comes next goes on where this one stood.
            keeper.mark_ended(outcome.step, KINDS[watch.unheard])
        watch.restore(served)

    def _check_turn(self) -> None:
        """Refuse a run inside an event: it would take away what hooks asked for."""
        who = self._bus.turn.name
        if who is not NOBODY:
            raise UsageError(
                f"hook {who!r} runs the session that it is called by; run_context.session."
                "run() runs the backend without any hook"
            )

    def _for_own_loops(self, what: str) -> None:
        if self._engine.closed:
            raise SessionClosedError(f"{what} on a session that is closed; make a new one")
        if not isinstance(self._graph, ReportGraph):
            raise UsageError(
                f"{what} is for a loop of one's own, and this session has a graph: use "
                "run() or loop()"
            )
