"""Runs a training loop: steps with hooks around them, to the end of the session."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus.backend.protocol import RunMetadata, RunOptions, Session
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
from hookbus.graph.traversal import inputs_of, loop_ops
from hookbus.hooks.hook import HookObject
from hookbus.hooks.hook_options import Kind, check_kind
from hookbus.hooks.inbox import SessionRequests
from hookbus.hooks.outcome import NOBODY, Outcome, is_swallowed
from hookbus.library.roles import Role
from hookbus.lifecycle.beginning import begin
from hookbus.lifecycle.creators import SessionCreator, creator_of
from hookbus.lifecycle.finish import leave
from hookbus.lifecycle.modes import mode_of
from hookbus.lifecycle.recovery import Recovery
from hookbus.lifecycle.requests import heed_signal, record
from hookbus.lifecycle.start import (
    Done,
    current_config,
    enter_session,
    finalize,
    finish_run,
    new_session,
    open_backend,
    recover,
    recoverable,
    repeat,
)
from hookbus.lifecycle.state import RUNNING, Phase, SessionOptions
from hookbus.loop.inputs import Passes
from hookbus.plugin.roster import session_hooks
from hookbus.process.interrupts import signals_deferred
from hookbus.process.signals import raise_deferred
from hookbus.session.custom_loop import CustomLoop
from hookbus.session.step_fn import StepContext, check_step_fn
from hookbus.step.backend_handle import BackendHandle
from hookbus.validation import as_hooks

T = TypeVar("T")

if TYPE_CHECKING:
    from argparse import Namespace


class MonitoredSession(CustomLoop):
    """A session that calls hooks around its runs, and recovers from preemptions.

    Its construction calls every hook's ``begin``, finalizes the graph, creates and restores
    the backend session and calls ``after_create_session``. Leaving its block calls ``end``
    or ``on_exception``, exactly one of them for each hook that began.

    Args:
        graph: the graph to run; without one the session serves a custom loop, with
            :meth:`track`, :meth:`iterate` and :meth:`step`.
        session_creator: creates the backend sessions; by default a
            :class:`ChiefSessionCreator` without a checkpoint directory.
        hooks: hook objects, called after all plugins, in this order.
        stop_grace_period_secs: the seconds to wait at the end for the threads that hooks
            registered with the coordinator.
        checkpoint_dir: for the kind ``eval`` or ``predict``: restore the newest good
            checkpoint in this directory, and write nothing there. Hooks find it as
            ``checkpoints.restores_from``. To train, use a
            :class:`MonitoredTrainingSession`.
        config: which plugins are on; by default the process's.
        kind: the purpose of the session: ``train``, ``eval`` or ``predict``.
        recovery: how often a preempted session is opened again; by default
            ``Recovery()``.
        exit_on_signal: whether leaving the block, or :meth:`close`, raises after a signal
            ended the session: KeyboardInterrupt after SIGINT, ``SystemExit(75)`` after
            SIGTERM and SIGHUP, or if a hook ended it as ``preempted``. With False, or if
            the program has its own handler for the signal, the program continues after the
            block.
        watch_signals: whether SIGINT, SIGTERM and SIGHUP end the session. False leaves them
            to the program, and installs no handler.
        hook_budget: the share of the time that each hook may take, like 0.02. The session
            then logs the costs of hooks. The flag ``--hook-budget`` takes precedence. None
            for the share in the config file, or else for any.

    Raises:
        UsageError: arguments, flags or settings are invalid.
        PluginError: a plugin that is on cannot be loaded, or a hook is invalid.
        CheckpointError: the checkpoints cannot be read or cannot be written.

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

    @signals_deferred
    def __init__(
        self,
        graph: Graph | None = None,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[HookObject] | None = None,
        stop_grace_period_secs: float = 120.0,
        *,
        checkpoint_dir: str | Path | None = None,
        config: Config | None = None,
        kind: Kind = "train",
        recovery: Recovery | None = None,
        exit_on_signal: bool = True,
        watch_signals: bool = True,
        hook_budget: float | None = None,
    ) -> None:
        config = config or current_config()
        check_kind(kind)
        creator = creator_of(graph, session_creator, checkpoint_dir, kind)
        self._start(
            creator,
            session_hooks(config, kind, {"hooks": as_hooks(hooks, "hooks")}),
            SessionOptions(
                kind,
                config,
                grace=stop_grace_period_secs,
                exit_on_signal=exit_on_signal,
                watch_signals=watch_signals,
            ),
            recovery=recovery or Recovery(),
            hook_budget=hook_budget,
        )

    @signals_deferred
    def _start(
        self,
        creator: SessionCreator,
        hooks: Sequence[Registration],
        options: SessionOptions,
        recovery: Recovery | None = None,
        hook_budget: float | None = None,
        again: bool = False,
    ) -> None:
        """Create the parts of the session, and begin it; if that fails, finish it."""
        mode = mode_of(creator.graph)
        state = new_session(creator, hooks, mode, options, recovery, hook_budget, again)
        self._state = state
        self._passes = Passes(state, self._should_stop)
        self._signals, self._current = state.ending.signals, state.bus.current
        enter_session(state)
        try:
            begin(state)
            finalize(state)
            open_backend(state)
            raise_deferred()
        except BaseException as error:
            leave(self._state, error, raised=error)
            raise

    @property
    def kind(self) -> Kind:
        """The purpose of the session: ``train``, ``eval`` or ``predict``."""
        return self._state.kind

    @property
    def requests(self) -> SessionRequests:
        """Takes requests to stop, to save and to assign from any thread."""
        return self._state.requests.of(NOBODY)

    @property
    def outcome(self) -> Outcome | None:
        """How the session ended; None until then."""
        return self._state.outcome

    @property
    def graph(self) -> Graph | None:
        """The graph; None after close, as in TF."""
        return None if self._is_closed else self._state.creator.graph

    @property
    def compiled_step(self) -> str | None:
        """The source of the compiled functions of a step; None before they exist.

        A session compiles a step when it repeats. Hooks that were not due in the step are
        not part of the source. Readable after close.
        """
        backend = self._state.backend
        return None if backend is None else backend.stepper.compiled_step

    @property
    def backend_session(self) -> Session:
        """The backend session, as hooks have it; a recovery replaces it.

        Raises:
            SessionClosedError: the session is closed.
        """
        return self._state.usable("aux").session

    @property
    def global_step(self) -> int:
        """The global step after the last run; readable after close."""
        return self._state.global_step

    def names(self, pattern: str = "*", role: Role | None = None) -> tuple[str, ...]:
        """Return the names of values that hooks may fetch, as :meth:`Graph.names` does.

        In a custom loop those that the last step reported are among them.

        Args:
            pattern: the names to return, as a pattern of ``fnmatch``; case counts. All
                names by default.
            role: the role of their values in the training; None for any.

        Raises:
            ArgumentTypeError: the pattern is not a str.
            UsageError: there is no such role.
        """
        return self.backend_session.names(pattern, role)

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        kind: Kind | None = None,
    ) -> Any:
        """Run part of the graph once, and call the hooks before and after.

        Before it returns, the session serves the requests of hooks: it assigns variables,
        saves a checkpoint, or stops. After a preemption it opens the backend again from the
        newest good checkpoint and repeats the run.

        An output of a train op has the value of this run if the run fetches the op, and
        otherwise its last value: reading it does not train. In a custom loop the run
        returns, between two steps, the last reported values.

        Args:
            fetches: a node, its name, or any nesting of these.
            feed_dict: maps nodes or names to values.
            options: how to run.
            run_metadata: gets the backend's record of a traced run.
            kind: the purpose of the run, by default the session's; an ``aux`` run reaches
                only hooks that declare it, and is allowed after a stop.

        Returns:
            The values in the structure of *fetches*.

        Raises:
            OutOfRangeError: an input has ended.
            NoValueYetError: an output of a train op is read before the op has run.
            RunAfterStopError: a hook asked to stop before. If the error leaves the
                session's block, the session still ends well, with its last checkpoint.
            SessionClosedError: the session is closed.
            ForkedSessionError: this process was forked while the session was open.
            SessionInterruptedError: a signal has arrived; the session's block catches the
                error.
        """
        state, signals = self._state, self._signals
        stepper = state.ready
        if (
            stepper is None
            or signals.received is not None
            or self._current.name is not NOBODY
            or kind is not None
            or stepper.takes_reports
        ):
            if state.mode.takes_reports:
                return self._read(fetches, feed_dict)
            if kind is not None:
                check_kind(kind)
                clock = state.bus.clock
                if kind != state.kind and not clock.is_paused:
                    with clock.paused():
                        return self.run(
                            fetches, feed_dict, options, run_metadata, kind=kind
                        )
            self._refuse_inside_event()
            stepper = state.usable(kind).stepper
        done: Done | None = None
        try:
            step = stepper.open(fetches, feed_dict, options, run_metadata, kind)
            values = stepper.close(step, feed_dict)
            if state.requests.pending or signals.received:
                done = values, state.global_step
                finish_run(state, stepper.context_of(step))
            if step.context is not None:
                step.context._phase = "over"  # close() would take longer
            return values
        except BaseException as error:
            state.abort_run()
            cause = recoverable(state, error) if isinstance(error, Exception) else None
            if cause is None:
                raise
        request = (fetches, feed_dict, options, run_metadata, kind)
        return repeat(state, cause, lambda new: self._run_on(new, *request), done)

    def _read(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None) -> Any:
        """Read the values that a custom loop reported last."""
        state = self._state
        state.check_process()
        if state.loop.block == "step":
            raise UsageError("run() inside step(): report what the step computes instead")
        return state.usable("aux").session.run(fetches, feed_dict)

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """Call a function that runs the backend session, with or without hooks.

        After a preemption anywhere in it the whole function is called again.

        Args:
            step_fn: takes ``step_context``, or ``self`` and ``step_context``.

        Returns:
            The result of *step_fn*.

        Raises:
            UsageError: the function has other parameters.
            StopIteration: *step_fn* asked to stop; the session's block catches the error.
        """
        check_step_fn(step_fn)
        state = self._state
        if state.mode.takes_reports:
            raise UsageError("run_step_fn() is for a session with a graph; use step()")

        def call(backend: BackendHandle) -> Any:
            def run_with_hooks(
                fetches: Any,
                feed_dict: Mapping[Node | str, Any] | None = None,
                options: RunOptions | None = None,
                run_metadata: RunMetadata | None = None,
                kind: Kind | None = None,
            ) -> Any:
                self._refuse_inside_event()
                current = state.usable(kind)  # a roll-back may have replaced the first
                kind = kind or state.kind
                is_aside = kind != state.kind
                with state.bus.clock.paused() if is_aside else nullcontext():
                    return self._run_on(
                        current, fetches, feed_dict, options, run_metadata, kind
                    )

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
        """Train until a hook stops the session or the input ends; yield each run's values.

        Each iteration runs all train ops of the graph together with *fetches*. It leaves
        out those made with ``in_loop=False``, those that hooks add for themselves, and
        those that initialize the session. When the generator ends, the block continues
        after the loop.

        Args:
            fetches: the nodes whose values to yield, as for :meth:`run`; None yields None.
            feed_dict: feeds for every run, from node or name to value.
        """
        if self._is_closed:
            return
        graph = self._state.creator.graph
        if self._state.mode.takes_reports:
            raise UsageError(
                "loop() is for a session with a graph; use iterate() and step()"
            )
        initial = self._state.creator.scaffold.init_names
        names = [node.name for node in loop_ops(graph) if node.name not in initial]
        if not names and not inputs_of(graph, graph.resolve_all(fetches, "the caller")):
            raise UsageError(
                "loop() would never end: the graph has no train op (made by "
                "graph.train_op) and the fetches read no input; fetch a node that reads "
                "an input, or write a loop that checks session.should_stop()"
            )
        request = names if fetches is None else (fetches, names)
        while not self.should_stop():
            try:
                values = self.run(request, feed_dict)
            except SessionInterruptedError:
                if self._state.is_stopping:  # the signal arrived after should_stop()
                    return
                raise
            except END_OF_INPUT as error:
                self._state.end_input(error)
                return
            yield None if fetches is None else values[0]

    def record(self, params: Mapping[str, Any] | Namespace) -> None:
        """Record the hyperparameters of the training, at its start and at each resume.

        Hooks get them as ``params_recorded``. Checkpoints, the outcome and ``outcome.json``
        contain them. Further calls add to them. A resumed session has those of the
        checkpoint until its program records its own.

        Args:
            params: a dict of numbers, strings, None, and lists and dicts of these; or what
                ``parse_args`` of ``argparse`` returned.

        Raises:
            ArgumentTypeError: something else is among them.
            SessionClosedError: the session is closed.
        """
        record(self._state, params)

    def should_stop(self) -> bool:
        """Return whether the loop should end: closed, stopped, or at the end of input.

        Raises:
            ForkedSessionError: a forked child asks. It would otherwise leave the loop, and
                run the code behind it a second time.
        """
        state = self._state
        if state.mode.takes_reports and threading.get_ident() == state.loop.thread:
            state.contents.position.safepoint()
            if state.ending.signals.received is not None and not heed_signal(state):
                return False
        return self._should_stop()

    def _should_stop(self) -> bool:
        state = self._state
        backend = state.backend
        if state.ready is None or backend is None or self._signals.received is not None:
            state.check_process()
            if state.mode.takes_reports and state.phase is RUNNING:
                heed_signal(state)
            return True
        if not backend.coord.should_stop():
            return False
        error = backend.coord.exception
        cause = recoverable(state, error) if error is not None else None
        if cause is None:
            if state.options.shows_backend and error is not None:
                raise error
            return True
        recover(state, cause)  # a thread met a preemption
        return state.ending.stop is not None

    @signals_deferred
    def close(self) -> None:
        """End the session, like leaving its block without an error.

        In a forked child this, like leaving the block, does nothing.

        Raises:
            SessionClosedError: it is already closed.
            KeyboardInterrupt, SystemExit: a signal ended the session; see
                *exit_on_signal*.
        """
        if self._is_closed:
            raise SessionClosedError("Session is already closed.")
        leave(self._state, None, raised=sys.exception())

    @signals_deferred
    def __enter__(self) -> MonitoredSession:
        return self

    @signals_deferred
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._is_closed and error is None:
            raise SessionClosedError("Session is already closed.")
        if self._is_closed:
            # close() may have raised SessionInterruptedError for the block around this one.
            return isinstance(error, END_OF_INPUT)
        leave(self._state, error, raised=error)
        return not self._state.is_abandoned and is_swallowed(error, self._state.outcome)

    @property
    def _is_closed(self) -> bool:
        return self._state.phase is Phase.CLOSED

    def _run_on(self, backend: BackendHandle, *request: Any) -> Any:
        state, stepper = self._state, backend.stepper
        try:
            step = stepper.open(*request)
            values = stepper.close(step, request[1])
            context = stepper.context_of(step)
            finish_run(state, context)
        except BaseException:
            state.abort_run()
            raise
        context.close()
        return values
