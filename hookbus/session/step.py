"""Runs what the caller computes: steps and evaluations of a custom loop, step functions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NoReturn

import attrs

from hookbus.backend.protocol import Session
from hookbus.backend.reports import Reports
from hookbus.bus.schedule import Group
from hookbus.bus.straight import Steady, StraightRun
from hookbus.errors import UsageError
from hookbus.graph.summaries import Summaries, SummaryKind
from hookbus.hooks.context import SessionRunContext, context_of
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import StepFnStop
from hookbus.logs import log, log_evaluation
from hookbus.peers.reduction import check_reduction, sums_of_all
from hookbus.session.requests import act, act_after_run, heed_signal
from hookbus.session.run import (
    DEFAULT_OPTIONS,
    NO_FEEDS,
    NO_FETCHES,
    NO_METADATA,
    HookedSession,
    PendingRun,
)
from hookbus.session.state import RUNNING, SessionState
from hookbus.validation import scalar_in, signature_of


class StepContext:
    """The session, as a step function sees it.

    Attributes:
        session: the backend session; runs through it reach no hook.
        run_with_hooks: does what ``session.run`` does; may be called several times.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> NoReturn:
        """Leave the step function immediately, and the session's block with it.

        Raises:
            StopIteration: always; the session's block catches it as a clean end.
        """
        raise StepFnStop("step_fn has requested the iterations to stop.")


def check_step_fn(step_fn: Callable[[StepContext], Any]) -> None:
    """Raise UsageError unless a step function takes the one parameter ``step_context``."""
    try:
        names = list(signature_of(step_fn).parameters)
    except (TypeError, ValueError):
        names = []
    if names != ["step_context"]:
        raise UsageError(
            "`step_fn` may either have one `step_context` argument, or `self` and "
            f"`step_context` arguments if it's an instance method. Got {names} instead."
        )


class Step:
    """One step of a custom loop. Entering it calls ``before_run``, leaving ``after_run``.

    Attributes:
        feeds: the values that hooks feed in this step, by name.
    """

    __slots__ = (
        "_aside",
        "_cancelled",
        "_counts",
        "_kind",
        "_pending",
        "_repeated",
        "_repeats",
        "_reports",
        "_state",
        "feeds",
    )

    def __init__(self, state: SessionState, kind: Kind) -> None:
        self.feeds: Mapping[str, Any] = NO_FEEDS
        self._state = state
        self._kind = kind
        self._aside = state.contents.tracking.aside
        self._counts = kind == state.kind
        self._reports: Reports
        self._pending: PendingRun | None = None
        self._repeated: RepeatedStep | None = None
        self._repeats = False
        self._cancelled = False

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
        if self._pending is None:
            self._check_entered("report()")
        self._reports.add(values)

    @property
    def pending(self) -> PendingRun:
        """The run between its halves, inside the block."""
        self._check_entered("pending")
        assert self._pending is not None
        return self._pending

    @property
    def skipped(self) -> bool:
        """Whether a hook asks this step not to update what it trains.

        The loop looks at it where it would update, for example before ``optimizer.step()``.
        The step counts all the same.

        Raises:
            UsageError: the step is not entered.
        """
        self._check_entered("skipped")
        return self._state.requests.skip is not None

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
        self._check_entered(f"summary.{kind}()")
        self._reports.summarize(kind, name, value)

    def _check_entered(self, what: str) -> None:
        if self._pending is None:
            raise UsageError(f"call {what} inside the block of its step")

    def __enter__(self) -> Step:
        state, repeated = self._state, self._repeated
        try:
            pending = None if repeated is None else repeated.enter()
        except BaseException:
            state.requests.fail_run()
            raise
        self._repeats = pending is not None and pending[4] is None
        if pending is None:
            pending = self._enter()
        self._cancelled = False
        reports = self._reports = Reports()
        reports.aside = self._aside
        self._pending, self.feeds, state.block = pending, pending[2], "step"
        return self

    def _enter(self) -> PendingRun:
        """Do what comes first in any step."""
        state = self._state
        if state.block is not None:
            state.check_block("step")
        contents, backend = state.contents, state.backend
        must_be_done = contents.epochs.begin_step(self._counts)
        if (
            backend is None
            or state.phase is not RUNNING
            or state.signals.received is not None
            or state.requests.pending
            or not contents.tracking.is_complete
        ):
            backend = self._prepare(must_be_done)
        try:
            pending = backend.ask(NO_FETCHES, None, None, None, self._kind)
            if pending[4] is not None or pending[3] is not backend.armed_for:
                backend.arm(pending)
        except BaseException:
            state.requests.fail_run()
            raise
        return pending

    def _prepare(self, must_be_done: bool) -> HookedSession:
        """Do what comes before the first step, and before one after something unusual.

        Args:
            must_be_done: whether the value of the step would be lost.
        """
        state = self._state
        contents, backend = state.contents, state.backend
        usual = state.phase is RUNNING and state.signals.received is None
        if backend is None or not usual:
            # A value that would be lost still gets its step, even after a signal. A
            # foreign loop is told of the signal after the step.
            kind = "aux" if must_be_done or state.driven else self._kind
            if kind != "aux" and state.signals.received is not None:
                heed_signal(state)
            backend = state.usable(kind)
        is_new = not contents.tracking.is_complete
        if is_new:
            state.check_wraps()
            contents.tracking.check()
            contents.generators.restore_rest()
            state.saver.note_restored(backend.session)
        if state.requests.pending or (is_new and state.agreement is not None):
            session, saver = backend.session, state.saver
            # The first checkpoint; or what a cancelled step left. After a checkpoint, its
            # own after_save may have asked for the next one, which comes after this step.
            # What has wrapped the first value would be saved as it is after that.
            is_first = (
                session.global_step == state.first_step and not contents.epochs.wrapped
            )
            saves = is_first or not (must_be_done or saver.is_saved(session))
            act(state, None, saving=saves, together=is_new)
        return backend

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pending, self._pending = self._pending, None
        state, state.block = self._state, None
        if pending is None:
            return
        if error is not None:
            state.requests.fail_run()
            return
        repeated = self._repeated
        try:
            if self._repeats and not self._cancelled:
                assert repeated is not None
                if repeated.leave(pending[0], self._reports):
                    return
            self._leave(pending)
        except BaseException:
            state.requests.fail_run()
            raise
        state.requests.run = None

    def _leave(self, pending: PendingRun) -> None:
        """Do what comes last in any step."""
        state, (context, group, feeds, steady, _) = self._state, pending
        if self._counts:
            state.contents.epochs.step_done()
        backend = state.backend
        if backend is None or state.phase is not RUNNING:
            backend = state.usable("aux")
        if self._cancelled:
            backend.cancel(pending)
            act(state, None, saving=False)
            return
        reports = self._reports
        if feeds:  # a hook sees its own feed, even if the loop used another value
            reports = reports.fed(feeds)
        backend.session.take_reports(reports)
        advance = 1 if self._kind == "train" else 0
        backend.execute(pending, reports, advance, reports.names())
        state.last_step = context
        if state.requests.pending or state.acts_always or state.signals.received:
            act_after_run(state, context)
        if state.agreement is not None:
            return  # the general path tells whether a hook was due
        if self._counts and steady is not None and steady.hooks is not None:
            repeated = self._repeated
            known = repeated is not None and repeated.hooks is steady.hooks
            if not known and group is backend.schedules[self._kind].idle:
                self._repeated = _repeated_step(state, steady, group)


@attrs.frozen(eq=False)
class RepeatedStep:
    """The two halves of a step that repeats: the same hooks ask for the same as before.

    All that such a step needs is looked up once, and each half is written out from end to
    end. The general path, in :class:`Step` and :class:`HookedSession`, is the definition.

    Attributes:
        hooks: the compiled calls of the hooks.
        enter: does what entering the step does; returns None, and does nothing, if this
            step is to be left to the general path.
        leave: takes the context that hooks see and the reports, and does what leaving the
            step does; returns False, and does nothing, in the same case.
    """

    hooks: StraightRun
    enter: Callable[[], PendingRun | None]
    leave: Callable[[SessionRunContext, Reports], bool]


def _repeated_step(state: SessionState, steady: Steady, group: Group) -> RepeatedStep:
    """Prepare for further steps of the session's kind like the last one.

    Args:
        state: the session.
        steady: what is prepared for such a step.
        group: the hooks that it calls: those that are called if nobody is due.
    """
    assert steady.hooks is not None
    enter, leave = _entering(state, steady, group), _leaving(state, steady, group)
    return RepeatedStep(steady.hooks, enter, leave)


def _entering(
    state: SessionState, steady: Steady, group: Group
) -> Callable[[], PendingRun | None]:
    backend, hooks = state.backend, steady.hooks
    assert backend is not None
    assert hooks is not None
    bus, requests, signals, kind = state.bus, state.requests, state.signals, state.kind
    session, schedule = backend.session, backend.schedules[kind]
    before, begin_step, now = hooks.before, state.contents.epochs.begin_step, time.monotonic

    def enter() -> PendingRun | None:
        step = session.global_step
        if (
            state.phase is not RUNNING
            or signals.received is not None
            or requests.pending
            or state.block is not None
            or backend.armed_for is not steady
            # As in Schedule.enter().
            or step != schedule.at
            or step + schedule.added >= schedule.next_step
            or schedule.idle is not group
            or schedule.changes != bus.changes
            or (schedule.next_time != math.inf and now() >= schedule.next_time)
        ):
            return None
        begin_step(True)
        context = context_of(backend, NO_FETCHES, None, step, kind)
        departure = None if before is None else before(context)
        requests.asking = None
        if departure is not None:
            pending = backend.go_on(context, group, steady, departure)
            backend.arm(pending)
            return pending
        return context, group, NO_FEEDS, steady, None

    return enter


def _leaving(
    state: SessionState, steady: Steady, group: Group
) -> Callable[[SessionRunContext, Reports], bool]:
    backend, hooks, plan = state.backend, steady.hooks, steady.plan
    assert backend is not None
    assert hooks is not None
    assert plan is not None
    bus, requests, signals, kind = state.bus, state.requests, state.signals, state.kind
    session, schedule = backend.session, backend.schedules[kind]
    after, step_done, now = hooks.after, state.contents.epochs.step_done, time.monotonic
    reported, advance = frozenset(steady.reported), kind == "train"
    count, take_reports, run = len(reported), session.take_reports, backend.runner(plan)

    def leave(context: SessionRunContext, reports: Reports) -> bool:
        if (
            len(reports) != count
            or not reported.issuperset(reports)
            or reports.late
            or requests.writes
            or requests.skip
            or state.phase is not RUNNING
        ):
            return False
        step_done()
        take_reports(reports)
        values = run(reports)
        step = session.global_step
        if advance:
            step = session.global_step = step + 1
            session.version += 1
        if (
            # As in Schedule.leave().
            step - context.global_step != schedule.added
            or schedule.version != bus.version
            or (schedule.next_time != math.inf and now() >= schedule.next_time)
        ):
            backend.tell((context, group, NO_FEEDS, steady, None), plan, values)
        else:
            schedule.runs += 1
            schedule.at = step
            if after is not None:
                after(context, values, DEFAULT_OPTIONS, NO_METADATA, step)
        state.last_step = context
        if requests.pending or state.acts_always or signals.received:
            act_after_run(state, context)
        requests.run = None
        return True

    return leave


class Evaluation:
    """One evaluation of the model of a custom loop, as a block.

    Leaving the block without an error sends the means of the reported values to all hooks
    as the event ``evaluated``, and serves what they ask for, like a stop. In any case it
    restores the random generators of the process and those that the session tracks. In the
    block, tracked objects compute as in an evaluation, if their library knows how.

    Attributes:
        name: distinguishes this evaluation from others; None if there is only one.
        metrics: the means by name, after the block.
    """

    def __init__(self, state: SessionState, name: str | None, reduce: str) -> None:
        check_reduction(reduce, ("none", "mean"))
        self.name, self._reduce = name, reduce
        self.metrics: dict[str, float] = {}
        self._state = state
        self._sums: dict[str, tuple[float, float]] = {}
        self._inside: ExitStack | None = None

    def report(self, /, *, weight: float = 1.0, **values: Any) -> None:
        """Add values to the means.

        Args:
            weight: how much these values count, for example the size of their batch. Values
                with the weight 0 do not count.
            values: the values by name: numbers, or arrays that hold one.

        Raises:
            UsageError: a value is not a number, the weight is negative or not finite, or
                the block is not entered.
        """
        if self._inside is None:
            raise UsageError("call report() inside the block of its evaluation")
        counts = scalar_in(weight)
        if counts is None or not 0 <= counts < math.inf:
            raise UsageError(
                f"evaluation: the weight is {weight!r}; expected a finite number of at "
                "least 0"
            )
        numbers = {name: _number(name, value) for name, value in values.items()}
        for name, number in numbers.items() if counts else ():
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + counts * number, weights + counts

    def __enter__(self) -> Evaluation:
        state = self._state
        state.check_block("evaluation")
        backend = state.usable("aux")
        self._sums, self.metrics = {}, {}
        with ExitStack() as inside:
            inside.enter_context(state.contents.tracking.aside())
            if not state.contents.epochs.resuming:
                session, name = backend.session, self.name
                around = state.bus.around("evaluating", session=session, name=name)
                inside.enter_context(around)
            self._inside = inside.pop_all()
        state.block = "evaluation"
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        inside, self._inside = self._inside, None
        state, state.block = self._state, None
        if inside is not None:
            inside.__exit__(kind, error, trace)
        epochs = state.contents.epochs
        repeats = epochs.resuming
        epochs.mark()
        if error is not None:
            return
        backend, sums = state.usable("aux"), self._sums
        if self._reduce != "none" and state.agreement is not None:
            sums = sums_of_all(state.agreement, sums, backend.session.global_step)
        self.metrics = {name: total / w for name, (total, w) in sums.items()}
        if repeats:
            return  # hooks that were saved later know it, and the model is a later one
        if not self.metrics:
            log.warning("an evaluation reports nothing", name=self.name)
            return
        log_evaluation(self.metrics, backend.session.global_step, self.name)
        _tell(state, backend, "evaluated", metrics=self.metrics, name=self.name)


def end_epoch(state: SessionState, epoch: int) -> None:
    """Tell hooks that a pass over the input of a custom loop has ended."""
    backend = state.usable("aux")
    if not state.bus.caller("epoch_ended").reaches_nobody:
        _tell(state, backend, "epoch_ended", session=backend.session, epoch=epoch)
    if state.agreement is not None:
        act(state, state.last_step, saving=state.contents.may_save, together=True)


def _tell(
    state: SessionState, backend: HookedSession, event: str, **arguments: Any
) -> None:
    """Send an event between two steps, and serve what hooks ask for."""
    # They ask through the context of the last step, which is over otherwise.
    state.requests.run = state.last_step
    try:
        backend.emit(event, **arguments, global_step=backend.session.global_step)
        act(state, state.last_step, saving=state.contents.may_save)
    finally:
        state.requests.run = None


def _number(name: str, value: Any) -> float:
    number = scalar_in(value)
    if number is None:
        raise UsageError(
            f"evaluation: {name!r} is not a number (type {type(value).__name__}); report "
            "a number"
        )
    return number
