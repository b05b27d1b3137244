"""Gives the session of a training loop: runs steps with hooks around them, to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from hookbus.backend.protocol import RunMetadata, RunOptions
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
from hookbus.session.creators import SessionCreator, chief
from hookbus.session.finish import finish
from hookbus.session.recovery import Recovery
from hookbus.session.requests import act_after_run
from hookbus.session.run import HookedSession
from hookbus.session.start import (
    Done,
    begin,
    current_config,
    enter_session,
    new_session,
    recover,
    recoverable,
    repeat,
)
from hookbus.session.state import Phase, SessionState
from hookbus.session.step import CustomLoop, Step, StepContext, check_step_fn


class MonitoredSession:
    """A session whose runs reach hooks, and that recovers from preemptions.

    Making one calls every hook's ``begin``, finalizes the graph, creates and restores the
    backend session and calls ``after_create_session``; leaving its block calls ``end`` or
    ``on_exception``, exactly one of them for each hook that began.

    Args:
        graph: the graph to run; without one the session serves a custom loop, with
            :meth:`track`, :meth:`iterate` and :meth:`step`.
        session_creator: makes the backend sessions, by default a
            :class:`ChiefSessionCreator` without a checkpoint directory.
        hooks: hook objects, called after all plugins, in this order.
        stop_grace_period_secs: the seconds to wait at the end for the threads that hooks
            registered with the coordinator.
        config: which plugins are on; by default the process's.
        kind: the purpose of the session: ``train``, ``eval`` or ``predict``.
        recovery: how often a preempted session is opened again.

    Raises:
        UsageError: arguments, flags or settings do not fit.
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
        self._start(
            new_session(
                creator,
                session_hooks(config, kind, {"hooks": as_hooks(hooks, "hooks")}),
                kind=kind,
                config=config,
                grace=stop_grace_period_secs,
                recovery=recovery or Recovery(),
            )
        )

    def _start(self, state: SessionState) -> None:
        """Begin the session; one that fails at it is finished, too."""
        self._state = state
        self._custom_loop = CustomLoop(state)
        enter_session(state)
        try:
            begin(state)
        except BaseException as error:
            finish(state, error)
            raise

    @property
    def kind(self) -> Kind:
        """The purpose of the session: ``train``, ``eval`` or ``predict``."""
        return self._state.kind

    @property
    def outcome(self) -> Outcome | None:
        """How the session ended; None until then."""
        return self._state.outcome

    @property
    def graph(self) -> Graph | None:
        """The graph; None after close, as in TF."""
        return None if self._is_closed else self._state.creator.graph

    @property
    def global_step(self) -> int:
        """The global step after the last run; readable after close."""
        return self._state.global_step

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

        Before it returns, the session does what hooks asked for: it writes variables,
        saves a checkpoint, stops. After a preemption it opens the backend again from the
        newest good checkpoint and repeats the run.

        In a custom loop it returns, between two steps, what was reported last.

        Args:
            fetches: a node, its name, or any nesting of these.
            feed_dict: node or name to value.
            options: how to run.
            run_metadata: gets the backend's record of a traced run.
            kind: the purpose of the run, by default the session's; an ``aux`` run reaches
                only hooks that declare it, and is allowed after a stop.

        Returns:
            The values in the structure of *fetches*.

        Raises:
            OutOfRangeError: an input has ended.
            RunAfterStopError: a hook asked to stop before.
            SessionClosedError: the session is closed.
            SessionInterruptedError: a signal came; the session's block ends well with it.
        """
        state = self._state
        if state.custom_loop:
            return self._custom_loop.read(fetches, feed_dict)
        if kind is not None:
            check_kind(kind)
        if state.bus.current.name is not NOBODY:
            self._refuse_inside_event()
        backend = state.backend
        usual = state.phase is Phase.RUNNING and state.signals.received is None
        if backend is None or not usual:
            backend = state.usable(kind)
        kind = kind or state.kind
        done: Done | None = None
        try:
            values, context = backend.run(fetches, feed_dict, options, run_metadata, kind)
            done = values, backend.session.global_step
            if state.requests.pending or state.recovering or state.signals.received:
                act_after_run(state, context)
            return values
        except Exception as error:
            cause = recoverable(state, error)
            if cause is None:
                raise
        request = (fetches, feed_dict, options, run_metadata, kind)
        return repeat(state, cause, lambda new: self._run_on(new, *request), done)

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Call a function that runs the backend session with or without hooks.

        After a preemption anywhere in it the whole function is called again.

        Args:
            step_fn: takes ``step_context``, or ``self`` and ``step_context``.

        Returns:
            The function's result.

        Raises:
            UsageError: the function has other parameters.
            StopIteration: it asked to stop; the session's block ends well with it.
        """
        check_step_fn(step_fn)
        state = self._state
        if state.custom_loop:
            raise UsageError("run_step_fn() is for a session with a graph; use step()")

        def call(backend: HookedSession) -> Any:
            def run_with_hooks(
                fetches: Any,
                feed_dict: Mapping[Node | str, Any] | None = None,
                options: RunOptions | None = None,
                run_metadata: RunMetadata | None = None,
                kind: Kind | None = None,
            ) -> Any:
                state.usable(kind)
                request = (fetches, feed_dict, options, run_metadata, kind or state.kind)
                return self._run_on(backend, *request)

            return step_fn(StepContext(backend.session, run_with_hooks))

        try:
            return call(state.usable(None))
        except Exception as error:
            cause = recoverable(state, error)
            if cause is None:
                raise
        return repeat(state, cause, call)

    def loop(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Node | str, Any] | None = None,
    ) -> Iterator[Any]:
        """Train until the session stops or the input ends; yield each run's values.

        Each iteration is one run of all the graph's train ops, together with *fetches*.
        When the generator ends, the session's block goes on after the loop.
        """
        graph = self.graph
        if graph is None:
            return
        if self._state.custom_loop:
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
                self._state.end_input(error)
                return
            yield None if fetches is None else values[0]

    def track(self, /, **things: Any) -> Any:
        """Save objects of a custom loop with every checkpoint, and restore them at once.

        Args:
            things: name to object: anything with ``state_dict`` and ``load_state_dict``,
                an array, a NumPy Generator, or a pair of functions ``(get, set)``.

        Returns:
            The value to go on with, restored if a checkpoint has it; a dict of several.

        Raises:
            UsageError: an object cannot be tracked, or its name is taken.
        """
        self._check_custom_loop("track()")
        return self._custom_loop.track(things)

    def iterate(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the values of a custom loop's input; stop when the session stops.

        Checkpoints hold the position. A loop that was killed starts at its top again, and
        the session skips the values whose steps are done.

        Args:
            iterable: gives the same values each time the program starts; a shuffle
                belongs inside it.
        """
        self._check_custom_loop("iterate()")
        return self._custom_loop.iterate(iterable, self.should_stop)

    def step(self, *, kind: Kind | None = None) -> Step:
        """Return a block around the computation of one step of a custom loop.

        Entering it calls ``before_run``. Leaving it normally counts the step and calls
        ``after_run``. An error in it leaves it; the session fails and is not retried.

        Args:
            kind: the purpose of the step, by default the session's.

        Raises:
            UsageError: the session has a graph.
        """
        self._check_custom_loop("step()")
        check_kind(kind)
        self._refuse_inside_event()
        return Step(self._custom_loop, kind or self.kind)

    def should_stop(self) -> bool:
        """Return whether to leave the loop: closed, stopped, or at the end of input."""
        state = self._state
        backend = state.backend
        if state.phase is not Phase.RUNNING or state.signals.came() or backend is None:
            return True
        if not backend.coord.should_stop():
            return False
        error = backend.coord.exception
        cause = recoverable(state, error) if error is not None else None
        if cause is None:
            if state.shows_backend and error is not None:
                raise error
            return True
        recover(state, cause)  # a thread met a preemption
        return False

    def close(self) -> None:
        """End the session as at the end of its block, with nothing raised.

        Raises:
            SessionClosedError: it is closed already.
        """
        if self._is_closed:
            raise SessionClosedError("Session is already closed.")
        finish(self._state, None)

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._is_closed and error is None:
            raise SessionClosedError("Session is already closed.")
        if not self._is_closed:
            finish(self._state, error)
        return isinstance(error, SWALLOWED)

    @property
    def _is_closed(self) -> bool:
        return self._state.phase is Phase.CLOSED

    def _run_on(self, backend: HookedSession, *request: Any) -> Any:
        values, context = backend.run(*request)
        act_after_run(self._state, context)
        return values

    def _refuse_inside_event(self) -> None:
        """Refuse a run inside an event: it would take away what hooks asked for."""
        who = self._state.bus.current.name
        if who is not NOBODY:
            raise UsageError(
                f"hook {who!r} runs the session that it is called by; run_context.session."
                "run() runs the backend without any hook"
            )

    def _check_custom_loop(self, what: str) -> None:
        if self._is_closed:
            raise SessionClosedError(f"{what} on a session that is closed; make a new one")
        if not self._state.custom_loop:
            raise UsageError(
                f"{what} is for a custom loop, and this session has a graph: use run() or "
                "loop()"
            )
