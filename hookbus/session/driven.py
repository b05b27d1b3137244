"""Provides the session that a foreign loop drives: it reports events, and hooks run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions, Session, create_session
from hookbus.config.config import Config
from hookbus.errors import UsageError, summary_of
from hookbus.graph.graph import Graph
from hookbus.graph.report_graph import ReportGraph
from hookbus.hooks.hook import HookObject
from hookbus.hooks.hook_options import Kind, check_kind
from hookbus.hooks.inbox import SessionRequests
from hookbus.hooks.outcome import NOBODY, Outcome, StopReason, is_swallowed
from hookbus.hooks.requests import ForeignLoop, Served
from hookbus.lifecycle.beginning import begin
from hookbus.lifecycle.creators import ChiefSessionCreator
from hookbus.lifecycle.finish import leave
from hookbus.lifecycle.modes import Driven
from hookbus.lifecycle.requests import (
    apply_after_run,
    apply_cancelled,
    heed_signal,
    record,
)
from hookbus.lifecycle.start import (
    close_replaced,
    current_config,
    enter_session,
    finalize,
    new_session,
    open_backend,
)
from hookbus.lifecycle.state import Phase, SessionOptions
from hookbus.loop.evaluation import Evaluation
from hookbus.loop.inputs import hold, track
from hookbus.loop.step import Step
from hookbus.plugin.roster import session_hooks
from hookbus.process.interrupts import signals_deferred
from hookbus.process.signals import raise_deferred
from hookbus.session.foreign import (
    check_loop,
    check_rollbacks,
    end_dropped,
    served_by,
    take_place,
)
from hookbus.session.trainer_events import TrainerEvents
from hookbus.session.training import automatic_plugins
from hookbus.step.executor import check_given
from hookbus.step.request import NO_FETCHES
from hookbus.step.stepper import Stepper
from hookbus.step.trace import OpenStep
from hookbus.tracked.held import Held
from hookbus.validation import as_hooks, check_increment, check_name

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@attrs.frozen(eq=False)
class StepRequest:
    """The request of all hooks for one step of a foreign loop.

    Attributes:
        fetches: the names of the nodes whose values hooks want, each once.
        feeds: the values that hooks feed, by the name of the node.
        options: the united options of hooks.
        metadata: the record for hooks. The loop fills it in if ``options.trace_level`` is
            above 0.
        skipped_by: the hook that asks the loop not to update the model in this step; None
            if no hook does. The step still counts.

    >>> request = StepRequest(("loss",), {}, RunOptions(), RunMetadata())
    >>> request.fetches, request.skipped_by
    (('loss',), None)
    """

    fetches: tuple[str, ...]
    feeds: Mapping[str, Any]
    options: RunOptions
    metadata: RunMetadata
    skipped_by: str | None = None


class _GivenSession(ChiefSessionCreator):
    """Hands out the backend session that a foreign loop has created and initialized."""

    given: Session | None = None

    def create_session(self) -> Session:
        """Return the session of the loop."""
        assert self.given is not None
        return self.given

    def prepare(self, *_: Any) -> None:
        """Initialize nothing: the loop has done it."""


class DrivenSession(TrainerEvents):
    """A session whose steps a foreign loop runs, like that of another trainer.

    It carries plugins, flags, checkpoints and the outcome into a loop that hookbus does
    not own. The loop reports its events by calling :meth:`begin`, :meth:`created`, then for
    each step :meth:`before_step` and :meth:`after_step`, and once :meth:`end` or
    :meth:`failed`. Hooks get the calls of a :class:`MonitoredSession`, in its order. Used
    as a block, the session calls :meth:`end` or :meth:`failed` itself. Treat an error that
    a method raises like one of the loop: pass it to :meth:`failed`. A session that the loop
    drops ends as failed.

    The loop alone decides about recovery. After a failed step it either goes on with a new
    backend session (:meth:`created` again), leaves the step out (:meth:`cancel_step`), or
    gives up (:meth:`failed`).

    Args:
        graph: the graph whose nodes hooks fetch and feed. None is for a loop that only
            reports values: hooks see what :meth:`after_step` reports, and :meth:`track`
            gives the objects to save.
        hooks: hook objects, called after all plugins, in this order.
        checkpoint_dir: the directory to restore from and to save into; it switches on the
            plugin checkpoint-saver. None leaves checkpoints to the loop.
        stop_grace_period_secs: the seconds to wait at the end for the threads that hooks
            registered with the coordinator.
        config: which plugins are on; by default the process's.
        kind: the purpose of the session: ``train``, ``eval`` or ``predict``.
        exit_on_signal: as in :class:`MonitoredSession`; :meth:`end` and :meth:`failed`
            raise.
        watch_signals: as in :class:`MonitoredSession`. False is for a loop that handles
            signals itself.
        serves: the requests that the loop serves. ``"skip"``: it leaves out the update of a
            step whose request has ``skipped_by``. ``"feed"``: it uses the ``feeds`` of the
            request. ``"rollback"``: it goes on with its next batch after a roll-back, which
            needs *checkpoint_dir*, and no graph. ``"save"``: it writes a checkpoint of its
            own; give *save*. None by default.
        save: has the loop write its own checkpoint, now or soon, for a hook or after a
            signal; the loop then calls :meth:`saved`. It implies that the loop serves
            ``"save"``. The loop also keeps :meth:`state_dict` in its checkpoints.
        loop: the name of the loop, for messages.
        instead: the user's way in place of a request that the loop does not serve, by
            the request, for messages.
        summary_dir: the directory for summaries; by default *checkpoint_dir*. Either one
            switches on summary-saver and step-counter, if they are installed.

    Raises:
        UsageError: arguments, flags or settings are invalid.
        PluginError: a plugin that is on cannot be loaded, or a hook is invalid.

    >>> from hookbus import EmbeddedSession, SessionRunArgs, SessionRunHook
    >>> class StopAtTwo(SessionRunHook):
    ...     def before_run(self):
    ...         return SessionRunArgs("w")
    ...     def after_run(self, run_context, run_values):
    ...         if run_values.results == 2:
    ...             run_context.request_stop("w is 2")
    >>> graph = Graph()
    >>> w = graph.variable("w", 0)
    >>> train = graph.train_op(lambda w: w + 1, name="train", updates="w")
    >>> with DrivenSession(graph, hooks=[StopAtTwo()]) as driven:
    ...     driven.begin()
    ...     engine = EmbeddedSession(graph)
    ...     driven.created(engine)
    ...     while not driven.stop:
    ...         wanted = driven.before_step()
    ...         names = [*wanted.fetches, "train"]
    ...         values = engine.run(names, wanted.feeds)
    ...         stop = driven.after_step(dict(zip(names, values)))
    >>> stop.who, stop.why, driven.outcome.kind, driven.outcome.step
    ('stop-at-two', 'w is 2', 'stopped', 3)
    """

    @signals_deferred
    def __init__(
        self,
        graph: Graph | None = None,
        hooks: Iterable[HookObject] | None = None,
        checkpoint_dir: str | Path | None = None,
        stop_grace_period_secs: float = 120.0,
        *,
        config: Config | None = None,
        kind: Kind = "train",
        exit_on_signal: bool = True,
        watch_signals: bool = True,
        serves: Iterable[Served] = (),
        save: Callable[[], None] | None = None,
        loop: str = "the loop that runs the steps",
        instead: Mapping[Served, str] = MappingProxyType({}),
        summary_dir: str | Path | None = None,
    ) -> None:
        config = config or current_config()
        check_kind(kind)
        if kind == "train" and save is None:
            checkpoint_dir = config.directory(checkpoint_dir)
        graph = ReportGraph(loop) if graph is None else graph
        self._foreign = ForeignLoop(served_by(serves, save), loop, dict(instead))
        check_loop(self._foreign, checkpoint_dir, save, graph)
        self._creator = _GivenSession(graph, checkpoint_dir=checkpoint_dir)
        self._open: OpenStep | Step | None = None
        self._usual_step: OpenStep | None = None
        self._usual_request: StepRequest
        self._finalized = False
        self._state = new_session(
            self._creator,
            session_hooks(
                config,
                kind,
                {"hooks": as_hooks(hooks, "hooks")},
                automatic=automatic_plugins(checkpoint_dir, summary_dir)
                if kind == "train"
                else (),
            ),
            Driven(graph.takes_reports, self._foreign, save),
            SessionOptions(
                kind,
                config,
                grace=stop_grace_period_secs,
                exit_on_signal=exit_on_signal,
                watch_signals=watch_signals,
            ),
        )
        self._step = Step(self._state, kind)
        weakref.finalize(self, end_dropped, self._state)

    @property
    def kind(self) -> Kind:
        """The purpose of the session: ``train``, ``eval`` or ``predict``."""
        return self._state.kind

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._state.creator.graph

    @property
    def requests(self) -> SessionRequests:
        """Takes requests to stop, to save and to assign from any thread."""
        return self._state.requests.of(NOBODY)

    @property
    def outcome(self) -> Outcome | None:
        """How the session ended; None until then."""
        return self._state.outcome

    @property
    def global_step(self) -> int:
        """The global step after the last step; readable after the end."""
        return self._state.global_step

    @property
    def stop(self) -> StopReason | None:
        """Why the loop should end: a hook, a signal or a thread asked for it; or None."""
        state, backend = self._state, self._state.backend
        if state.ready is None or backend is None or self._open is not None:
            return state.ending.stop
        if state.ending.signals.received is not None:
            if state.mode.takes_reports:
                heed_signal(state)  # it may have come between two steps: saves
            state.stop_by_signal()
        elif backend.coord.is_stopping:
            error = backend.coord.exception
            why = "a thread asked to stop" if error is None else summary_of(error)
            return StopReason("coordinator", why)
        return state.ending.stop

    @property
    def rolled_back_to(self) -> int | None:
        """The step to which hooks had the loop go back after its last step; or None."""
        return self._state.loop.rolled_back_to

    @signals_deferred
    def begin(self, last_step: int | None = None) -> None:
        """Call every hook's ``begin``. Hooks may add nodes; the graph may still change.

        Args:
            last_step: the global step at which the loop will end, if it knows that; hooks
                see it as ``run_context.last_step``.

        Raises:
            UsageError: it was called before, or a hook rolls back and the loop does not.
            PluginError: the order that the hooks ask for is impossible.
        """
        state = self._state
        self._check_open("begin()")
        if state.phase is not Phase.NEW:
            raise UsageError("begin() was called before; call it once")
        check_rollbacks(state)
        take_place(state)
        state.loop.last_step = last_step
        enter_session(state)
        begin(state)
        raise_deferred()

    @signals_deferred
    def created(
        self, session: Session | None = None, *, global_step: int | None = None
    ) -> None:
        """Use a backend session that the loop has created and initialized.

        The first call finalizes the graph. Each call restores the newest checkpoint of
        *checkpoint_dir* into the session, if there is one, and calls every hook's
        ``after_create_session``. If a backend session fails later and the loop goes on with
        a new one, call it again: the step that failed is forgotten. If nothing is restored,
        hooks go back to their first state if the session has a *checkpoint_dir*, and keep
        their state otherwise. Look at :attr:`stop` afterwards: if training is already
        complete, the loop must do no step.

        Args:
            session: runs nodes of :attr:`graph` for the hooks, and reads and writes its
                variables. Its ``global_step`` counts the steps of the loop. At the end it
                is closed; a session around something that the loop itself closes does
                nothing then. Without a graph it is left out.
            global_step: the number of steps that a loop without a graph has done before; by
                default that of the restored checkpoint.

        Raises:
            UsageError: the session is missing or has another graph; a loop without a graph
                calls this again; or *global_step* is given with a graph, or differs from
                that of the restored checkpoint.
            CheckpointError: the checkpoints cannot be read or cannot be written.
        """
        state, graph = self._state, self._state.creator.graph
        self._check_begun("created()")
        if state.mode.takes_reports:
            if session is not None:
                raise UsageError("created() takes no session: this loop has no graph")
            if state.backend is not None:
                raise UsageError(
                    "created() was called before, and a loop without a graph cannot "
                    "recover; call failed(), and resume in a new DrivenSession"
                )
            session = create_session(graph)
            session.global_step = global_step or 0
        elif global_step is not None:
            raise UsageError(
                "created() takes no global_step: the backend session counts the steps of "
                "this graph"
            )
        elif session is None:
            raise UsageError("created() needs the backend session that runs the graph")
        elif session.graph is not graph:
            raise UsageError(
                "created() got a session of another graph; create it with the graph of "
                "the DrivenSession"
            )
        self._creator.given = session
        if not self._finalized:
            finalize(state)
            self._finalized = True
        if state.backend is not None:
            self._forget_step()
            close_replaced(state)
            state.ending.repeat_failed()
        open_backend(state)
        if global_step is not None and global_step != state.global_step:
            raise UsageError(
                f"created(global_step={global_step}), but the checkpoint in "
                f"{state.saver.checkpoints.directory} is of step {state.global_step}: "
                "resume the loop from the same step, or give another checkpoint_dir"
            )
        raise_deferred()

    def track(self, /, **things: Any) -> Any:
        """Save objects of a loop without a graph; see :meth:`MonitoredSession.track`.

        Raises:
            UsageError: the session has a graph; an object cannot be restored in place, or
                its name is already used.
            CheckpointMismatchError: the checkpoint holds another shape, dtype or structure.
        """
        self._check_created("track()")
        self._state.check_custom_loop("track()", "its variables are saved")
        return track(self._state, things)

    def hold(self, /, **values: Any) -> Held:
        """Hold values that a loop replaces; see :meth:`MonitoredSession.hold`.

        Raises:
            UsageError: the session has a graph; a value cannot be saved, or its name is
                already used.
            CheckpointMismatchError: the checkpoint holds another shape, dtype or structure.
        """
        self._check_created("hold()")
        self._state.check_custom_loop("hold()", "its variables are saved")
        return hold(self._state, values)

    def record(self, params: Any) -> None:
        """Record hyperparameters; see :meth:`MonitoredSession.record`.

        Raises:
            ArgumentTypeError: something else is among them.
        """
        self._check_created("record()")
        record(self._state, params)

    def before_step(self, fetches: Any = (), *, kind: Kind | None = None) -> StepRequest:
        """Call every ``before_run``; return the request of all hooks for the step.

        Args:
            fetches: the nodes of the graph that the loop itself fetches in this step, or
                their names. Hooks see them as ``run_context.original_args.fetches``: the
                plugin progress shows a loss that the step computes anyway.
            kind: the purpose of the step, by default the session's; an ``aux`` step is
                allowed after a stop.

        Raises:
            UsageError: the step before is still open, or a hook calls this, or a loop
                without a graph gives *fetches*.
            RunAfterStopError: the loop was told to stop, by :meth:`after_step` or
                :attr:`stop`.
            GraphError: a hook asks for a node that does not exist.
        """
        state = self._state
        stepper = state.ready
        if (
            stepper is None
            or kind is not None
            or self._open is not None
            or state.bus.current.name is not NOBODY
        ):
            stepper = self._check_before_step(kind)
        opened: OpenStep | None
        if not stepper.takes_reports:
            self._open = opened = self._ask(stepper, fetches, kind)
        elif fetches:
            raise UsageError("before_step() takes no fetches: this loop has no graph")
        else:
            step = self._step if kind is None else Step(state, kind)
            self._open = step.__enter__()
            opened = step._open
        assert opened is not None
        if opened.feeds and "feed" not in self._foreign.serves:
            self._refuse_feeds(opened)
        if opened is self._usual_step:
            context = opened.context
            if context is None or context._asked is None:
                return self._usual_request
        return self._request_of(stepper, opened)

    def _check_before_step(self, kind: Kind | None) -> Stepper:
        backend = self._check_created("before_step()")
        if self._open is not None:
            raise UsageError(
                "before_step() inside a step: call after_step() or cancel_step() first; "
                "if the session has failed, created() or failed()"
            )
        self._check_outside_event("before_step()")
        check_kind(kind)
        if self._state.ready is None:
            self._state.usable(kind)
        return backend.stepper

    def _request_of(self, stepper: Stepper, opened: OpenStep) -> StepRequest:
        """Return the request of all hooks for a step, and keep that of a repetition."""
        asked = opened.asked
        request = StepRequest(
            tuple(dict.fromkeys(stepper.wanted(opened))),
            opened.feeds,
            asked.options,
            asked.metadata,
            opened.skipped_by,
        )
        if opened.is_usual:
            self._usual_step, self._usual_request = opened, request
        return request

    def after_step(
        self, values: Mapping[str, Any] = _NOTHING, *, increment: int = 1
    ) -> StopReason | None:
        """Call every ``after_run`` with the values of the step; serve their requests.

        Checkpoints are saved and variables assigned before this method returns. With a
        graph, the ``global_step`` of the backend session must already count the step;
        without a graph, this method counts it.

        Args:
            values: by name: with a graph one for each of the request's ``fetches``, without
                one all that the loop reports. Others are ignored.
            increment: the number of global steps that the loop has done in one call, like
                a compiled function that trains on several batches. Only without a graph.

        Returns:
            The reason to end the loop now, as :attr:`stop`; None to go on.

        Raises:
            UsageError: no step has begun, a value is missing, or *increment* is below 1 or
                is given with a graph.
            ArgumentTypeError: *increment* is not a whole number.
        """
        state, opened = self._state, self._open
        stepper = state.ready
        if stepper is None or opened is None:
            stepper = self._check_created("after_step()").stepper
            opened = self._check_inside("after_step()")
        state.loop.rolled_back_to = None
        if isinstance(opened, Step):
            if increment is not opened.increment:  # True equals 1
                check_increment("after_step", increment)
                opened.count(increment)
            opened._reports.add(values)
            self._open = None
            opened.__exit__(None, None, None)
            return self.stop
        if increment != 1:
            raise UsageError(
                "after_step() takes no increment: the backend session counts the steps of "
                "this graph"
            )
        context = opened.context
        assert context is not None
        check_given(stepper.wanted(opened), values)
        self._open = None
        try:
            stepper.close(opened, values)
            if state.requests.pending or state.ending.signals.received:
                apply_after_run(state, context)
        except BaseException:
            state.abort_run()
            raise
        context.close()
        return self.stop

    def cancel_step(self) -> None:
        """Leave a step out, for example one that failed; hooks get ``cancelled``.

        Raises:
            UsageError: no step has begun.
        """
        backend = self._check_created("cancel_step()")
        opened, self._open = self._check_inside("cancel_step()"), None
        if isinstance(opened, Step):
            opened.cancel()
            opened.__exit__(None, None, None)
            return
        state, context = self._state, backend.stepper.context_of(opened)
        try:
            backend.stepper.cancel(opened)
            apply_cancelled(state, context)
        except BaseException:
            state.abort_run()
            raise
        context.close()

    def evaluation(
        self, name: str | None = None, *, reduce: Literal["none", "mean"] = "none"
    ) -> Evaluation:
        """Evaluate the model of a loop without a graph as a block, between two steps.

        As :meth:`MonitoredSession.evaluation`; look at :attr:`stop` afterwards.

        Args:
            name: distinguishes this evaluation from others; None if there is only one.
            reduce: ``"mean"`` combines the reports of all processes; ``"none"`` (default)
                leaves each process its own.

        Raises:
            UsageError: the session has a graph, the name has a slash, or there is no such
                reduction.
            ArgumentTypeError: the name is not a str.
        """
        self._check_created("evaluation()")
        self._state.check_custom_loop("evaluation()", "use the plugin in-memory-evaluator")
        check_name("the name of evaluation()", name)
        self._check_outside_event("evaluation()")
        return Evaluation(self._state, name, reduce)

    @signals_deferred
    def end(self) -> Outcome:
        """End the session after the last step; hooks get ``end`` and ``finished``.

        A step that has begun is forgotten.

        Returns:
            How it ended.

        Raises:
            UsageError: no backend session was created.
            SessionClosedError: it has already ended.
            KeyboardInterrupt, SystemExit: a signal ended the session; see *exit_on_signal*.
            BaseException: the error of a hook's ``end``, or of a thread.
        """
        self._check_created("end()")
        return self._leave(None)

    @signals_deferred
    def failed(self, error: BaseException) -> Outcome:
        """End the session because of an error; hooks get ``on_exception``.

        Some errors end every session well, like an OutOfRangeError at the end of input.
        For such an error, hooks get ``end``.

        Args:
            error: the error that left the loop. The loop itself raises it again.

        Returns:
            The outcome of the session.

        Raises:
            SessionClosedError: the session has already ended.
            KeyboardInterrupt, SystemExit: a signal ended the session, and *error* is part
                of that.
            BaseException: the interrupt that left a hook.
        """
        self._check_open("failed()")
        return self._leave(error)

    @signals_deferred
    def __enter__(self) -> DrivenSession:
        return self

    @signals_deferred
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._state.phase is Phase.CLOSED or self._state.is_abandoned:
            return False
        if error is None:
            self.end()
            return False
        return is_swallowed(error, self.failed(error))

    def _refuse_feeds(self, opened: OpenStep) -> None:
        """Raise UsageError: a hook feeds a loop that does not use that."""
        who, names = next((n, r.feed_dict) for n, r in opened.asked.answers if r.feed_dict)
        self._forget_step()
        fed = ", ".join(repr(getattr(node, "name", node)) for node in names)
        self._foreign.check("feed", who, f"feeds {fed}")

    def _leave(self, error: BaseException | None) -> Outcome:
        self._leave_evaluation()
        self._forget_step()
        leave(self._state, error, raised=error)
        assert self._state.outcome is not None
        return self._state.outcome

    def _ask(self, stepper: Stepper, fetches: Any, kind: Kind | None) -> OpenStep:
        try:
            opened = stepper.open(fetches or NO_FETCHES, None, None, None, kind)
            stepper.wanted(opened)  # it resolves the names
        except BaseException:
            self._state.abort_run()
            raise
        return opened

    def _forget_step(self) -> None:
        self._open, self._state.loop.block = None, None
        self._state.abort_run()

    def _check_outside_event(self, what: str) -> None:
        who = self._state.bus.current.name
        if who is not NOBODY:
            raise UsageError(
                f"{what} in hook {who!r}: a hook cannot drive the session that calls it; "
                "use run_context.session.run(), which calls no hook"
            )

    def _check_inside(self, what: str) -> OpenStep | Step:
        if self._open is None:
            raise UsageError(f"{what} outside a step; call before_step() first")
        return self._open
