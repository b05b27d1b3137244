"""Runs one step of a custom loop as a block."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from hookbus.backend.reports import Reports
from hookbus.errors import UsageError, summary_of
from hookbus.graph.summaries import Summaries, SummaryKind
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.requests import RunRequests
from hookbus.lifecycle.beginning import begin_training
from hookbus.lifecycle.requests import (
    apply_after_run,
    apply_between_steps,
    apply_cancelled,
    apply_requests,
    heed_signal,
    hold_until_pull,
    is_overdue,
    undoes_failed_step,
)
from hookbus.lifecycle.state import RUNNING, SessionState
from hookbus.logs import log
from hookbus.loop.inputs import complete_tracking, reports_of, through
from hookbus.step.backend_handle import BackendHandle
from hookbus.step.request import NO_FEEDS, NO_FETCHES
from hookbus.step.trace import OpenStep


class Step:
    """One step of a custom loop. Entering it calls ``before_run``, leaving ``after_run``.

    Attributes:
        feeds: the values that hooks feed in this step, by name.
        is_undone: whether the step failed, and a hook had the session suppress the error:
            the loop gets the value once more, after the rest of its body.
        increment: the number of global steps that the block counts.

    >>> from hookbus import Config, MonitoredSession
    >>> with MonitoredSession(config=Config(autoload=False, header=False)) as session:
    ...     with session.step() as step:
    ...         step.report(loss=0.5)
    ...     session.global_step, session.run("loss")
    (1, 0.5)
    """

    __slots__ = (
        "_aside",
        "_cancelled",
        "_counts",
        "_kind",
        "_open",
        "_other_kind",
        "_reports",
        "_state",
        "feeds",
        "is_undone",
    )

    increment: int = 1

    def __init__(self, state: SessionState, kind: Kind) -> None:
        self.feeds: Mapping[str, Any] = NO_FEEDS
        self._state = state
        self._kind = kind
        self._other_kind = None if kind == state.kind else kind
        self._aside = state.contents.tracking.aside
        self._counts = kind == state.kind
        self._reports: Reports
        self._open: OpenStep | None = None
        self._cancelled = False
        self.is_undone: bool = False

    def report(self, /, **values: Any) -> None:
        """Make values of this step available to hooks.

        Args:
            values: the values by name. A callable is called only if a hook fetches it.
                It may draw random numbers: the generators of the process and those that
                the session tracks are restored afterwards. It must not change anything
                else, like the state of a model, because then the training would depend
                on which hooks are on.

        Raises:
            UsageError: a name is reported twice, or the step is not entered.
        """
        if self._open is None:
            self._entered("report()")
        self._reports.add(values)

    def through(self, /, **values: Any) -> Any:
        """Pass values of this step through hooks, which may change them, and report them.

        Call it where the value is made, and go on with what it returns: hooks wrap values
        by these names, with :meth:`Graph.wrap`. A value that hooks feed takes its place
        before that.

        Args:
            values: the values by name, like ``gradient=g``. Those that a hook wraps
                together have to be in one call.

        Returns:
            The value; of several a dict, by name.

        Raises:
            UsageError: a name is reported or passed through twice in this step, or the step
                is not entered.
            GraphError: a wrap returns a value of another form.

        >>> from hookbus import Config, MonitoredSession, SessionRunHook
        >>> class ClipHook(SessionRunHook):
        ...     def begin(self, graph):
        ...         graph.wrap("gradient", lambda gradient: max(-1.0, min(gradient, 1.0)))
        >>> quiet = Config(autoload=False, header=False)
        >>> with MonitoredSession(hooks=[ClipHook()], config=quiet) as session:
        ...     with session.step() as step:
        ...         print(step.through(gradient=3.5))
        1.0
        """
        if self._open is None:
            self._entered("through()")
        for name in values:
            self._reports.check_new(name, "passed through step.through()")
        if self.feeds:
            values = {name: self.feeds.get(name, value) for name, value in values.items()}
        found = through(self._state, values)
        self._reports.pass_through(found)
        return next(iter(found.values())) if len(found) == 1 else found

    def count(self, increment: int) -> None:
        """Have the open block count this number of global steps.

        Args:
            increment: the number of steps, like ``increment=`` of ``session.step()``.

        Raises:
            UsageError: the step is not entered.
        """
        self._entered("count()")
        self._reports.increment = increment

    @property
    def opened(self) -> OpenStep:
        """The step between its halves, inside the block."""
        return self._open or self._entered("opened")

    @property
    def skipped(self) -> bool:
        """Whether a hook asks this step not to update the model.

        The loop reads this flag before its update, for example before ``optimizer.step()``.
        A step without an update still counts.

        Raises:
            UsageError: the step is not entered.
        """
        return self._entered("skipped").skipped_by is not None

    @property
    def summary(self) -> Summaries[Any]:
        """Reports summaries of this step, as :attr:`Graph.summary` does in a graph."""
        return Summaries(self._summarize)

    def cancel(self) -> None:
        """Leave the step without counting it; hooks get ``cancelled``, not ``after_run``.

        The rest of the block still runs; an error that leaves it counts as usual.
        """
        self._cancelled = True

    def _summarize(self, kind: SummaryKind, name: str, value: Any) -> None:
        self._entered(f"summary.{kind}()")
        self._reports.summarize(kind, name, value)

    def _entered(self, what: str) -> OpenStep:
        if self._open is None:
            raise UsageError(f"call {what} inside the block of its step")
        return self._open

    def __enter__(self) -> Step:
        state = self._state
        loop, contents, stepper = state.loop, state.contents, state.ready
        if loop.block is not None:
            loop.check_block("step")
        contents.position.begin_step(self._counts)
        if (
            stepper is None
            or state.ending.signals.received is not None
            or state.requests.pending
            or not loop.has_begun
        ):
            stepper = self._prepare().stepper
        try:
            opened = stepper.open(NO_FETCHES, None, None, None, self._other_kind)
            if opened.unplanned is not None or opened.trace is not stepper.captured_for:
                stepper.capture(opened)
        except BaseException:
            state.abort_run()
            raise
        reports = self._reports = Reports()
        reports.aside = self._aside
        self._open, self.feeds, loop.block = opened, opened.feeds, "step"
        self._cancelled = self.is_undone = False
        return self

    def _prepare(self) -> BackendHandle:
        """Prepare the first step, or a step after an unusual event, like a signal."""
        state = self._state
        contents, backend = state.contents, state.backend
        signals, holds = state.ending.signals, contents.position.holds
        if backend is None or state.phase is not RUNNING or signals.received is not None:
            # After a signal the body of a value still gets its steps. A foreign loop is
            # told of the signal after the step.
            waits = holds and state.phase is RUNNING and not is_overdue(state)
            kind = "aux" if waits or state.mode.is_driven else self._kind
            if kind != "aux" and signals.received is not None:
                heed_signal(state)
            backend = state.usable(kind)
        is_new = not state.loop.has_begun
        if is_new:
            state.loop.has_begun = True
            if not contents.tracking.is_complete:
                complete_tracking(state)
                state.saver.note_restored(backend.session)
            if state.creator.graph.wraps:
                reports_of(state).change_values()
            state.loop.is_untold = state.kind == "train"
        asked = self._begin_training(backend) if state.loop.is_untold else None
        if state.requests.pending or (is_new and state.agreement is not None):
            session, saver = backend.session, state.saver
            # The first checkpoint; or what a cancelled step left. After a checkpoint, its
            # own after_save may have asked for the next one, which comes after this step.
            # What has wrapped the first value would be saved as it is after that; and from
            # inside of a body, a resumed program could not undo a step of it.
            is_kept = holds and state.loop.kept is not None
            is_inside = contents.position.has_wrapped or is_kept
            is_first = session.global_step == state.first_step and not is_inside
            saves = is_first or not (holds or saver.is_saved(session))
            if saves or not holds:
                apply_requests(state, None, saves, together=is_new, asked=asked)
            elif asked is not None:
                apply_between_steps(state, None, asked=asked)
        if asked is not None and state.phase is not RUNNING and not state.mode.is_driven:
            return state.usable(self._kind)  # a hook has stopped it
        return backend

    def _begin_training(self, backend: BackendHandle) -> RunRequests | None:
        """Tell hooks that training begins; a step of another kind leaves that to others."""
        state = self._state
        asked = None
        if self._counts:
            state.loop.is_untold = False
            asked = begin_training(state, backend.session)
        state.requests.forget_run(state.is_waiting or asked is not None)
        return asked

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool | None:
        opened, self._open = self._open, None
        state = self._state
        state.loop.block = None
        if opened is None:
            return None
        if error is not None:
            return self._fail(opened, error)
        try:
            self._leave(opened)
        except BaseException as failure:
            if not self._fail(opened, failure):
                raise
            return None
        assert opened.context is not None
        opened.context._phase = "over"  # as close() does: every step comes here
        return None

    def _fail(self, opened: OpenStep, error: BaseException) -> bool:
        """Forget the step, which an error leaves; return whether a hook undoes it."""
        state = self._state
        stepper = state.ready
        try:
            if self._counts and isinstance(error, Exception) and stepper is not None:
                context = stepper.context_of(opened)
                self.is_undone = undoes_failed_step(state, context, error)
        except BaseException:
            state.abort_run()
            raise
        if not self.is_undone:
            state.abort_run()
            return False
        log.warning(
            "a step failed, and is undone", step=opened.began, why=summary_of(error)
        )
        state.loop.last_context = context
        hold_until_pull(state, context.asked)
        context.close()
        return True

    def _leave(self, opened: OpenStep) -> None:
        state, context = self._state, opened.context
        assert context is not None
        if self._counts:
            state.contents.position.step_done()
        stepper = state.ready or state.usable("aux").stepper
        if self._cancelled:
            stepper.cancel(opened)
            apply_cancelled(state, context)
            return
        reports = self._reports
        if opened.feeds:  # a hook sees its own feed, even if the loop used another value
            reports = reports.fed(opened.feeds)
        stepper.close(opened, reports)
        state.loop.last_context = context
        if state.requests.pending or state.ending.signals.received:
            apply_after_run(state, context)


class SeveralSteps(Step):
    """Several steps of a custom loop in one block.

    A separate class, so that all other blocks look at no increment.
    """

    __slots__ = ("increment",)

    def __init__(self, state: SessionState, kind: Kind, increment: int) -> None:
        super().__init__(state, kind)
        self.increment: int = increment

    def __enter__(self) -> Step:
        super().__enter__()
        self.count(self.increment)
        return self

    def _leave(self, opened: OpenStep) -> None:
        self._state.contents.position.count_more(self.increment - 1)
        super()._leave(opened)


class StepAside(Step):
    """A step of another kind than the session's, during which the clock stands still."""

    __slots__ = ("_pause",)

    def __enter__(self) -> StepAside:
        with ExitStack() as pause:
            pause.enter_context(self._state.bus.clock.paused())
            super().__enter__()
            self._pause = pause.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool | None:
        if self._open is None:
            return None
        with self._pause:
            return super().__exit__(kind, error, trace)
