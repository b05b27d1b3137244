"""Runs one evaluation of the model of a custom loop as a block, with steps of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, cast

from hookbus.backend.reports import Reports, ReportSession
from hookbus.errors import UsageError
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.requests import RunRequests
from hookbus.lifecycle.requests import apply_between_steps, is_overdue
from hookbus.lifecycle.state import SessionState
from hookbus.logs import log, log_evaluation
from hookbus.loop.inputs import emit_between_steps
from hookbus.loop.step import Step
from hookbus.peers.reduction import check_reduction, sums_of_all
from hookbus.step.inside import check_evaluates
from hookbus.step.request import NO_FETCHES
from hookbus.step.trace import OpenStep
from hookbus.validation import scalar_in

_UNHEARD: Any = OpenStep(None)  # type: ignore[arg-type]
"""Stands for a step that reaches no hook, because hooks know its evaluation already."""


class Evaluation:
    """One evaluation of the model of a custom loop, as a block.

    Leaving the block without an error sends the means of the reported values to all hooks
    as the event ``evaluated``, and serves their requests, like a stop. In any case, leaving
    the block restores the random generators of the process and those that the session
    tracks. In the block, tracked objects compute as in an evaluation, if their library
    supports that.

    Hooks see the values of a batch if the block reports them in a :meth:`step`.

    Attributes:
        name: distinguishes this evaluation from others; None if there is only one.
        metrics: the means by name, after the block.

    >>> from hookbus import Config, MonitoredSession
    >>> with MonitoredSession(config=Config(autoload=False, header=False)) as session:
    ...     with session.evaluation("val") as evaluation:
    ...         evaluation.report(loss=0.5, weight=3)
    ...         evaluation.report(loss=0.1, weight=1)
    >>> evaluation.name, evaluation.metrics
    ('val', {'loss': 0.4})
    """

    def __init__(self, state: SessionState, name: str | None, reduce: str) -> None:
        check_reduction(reduce, ("none", "mean"))
        self.name: str | None = name
        self._reduce = reduce
        self.metrics: dict[str, float] = {}
        self._state = state
        self._sums: dict[str, tuple[float, float]] = {}
        self._is_known = False
        self._has_steps = False
        self._asked = RunRequests()
        self._inside: ExitStack | None = None

    def step(self, *, weight: float = 1.0) -> EvaluationStep:
        """Run one step of the evaluation as a block, usually for one batch.

        It is a step of the kind ``eval``, which hooks of this kind see: entering it calls
        ``before_run``, leaving it ``after_run``. It counts no global step. Requests of
        hooks in it are served when the evaluation is over.

        The numbers that the step reports count for the means, like those of
        :meth:`report`. Arrays, texts and functions are for hooks only.

        Args:
            weight: how much its numbers count, for example the size of the batch.

        Raises:
            UsageError: the weight is negative or not finite, or the block is not entered.

        >>> from hookbus import (
        ...     HookOptions, MonitoredSession, SessionRunArgs, SessionRunHook)
        >>> class PrintHook(SessionRunHook):
        ...     options = HookOptions(kinds=("eval",))
        ...     def before_run(self):
        ...         return SessionRunArgs(["prediction", "label"])
        ...     def after_run(self, run_context, run_values):
        ...         print(run_context.evaluation, run_values.results)
        >>> with MonitoredSession(hooks=[PrintHook()]) as session:
        ...     with session.evaluation("val") as evaluation:
        ...         with evaluation.step(weight=2) as step:
        ...             step.report(prediction=[0, 1], label=[1, 1], accuracy=0.5)
        ...     evaluation.metrics
        val [[0, 1], [1, 1]]
        {'accuracy': 0.5}
        """
        self._check_inside("step()")
        return EvaluationStep(self._state, self, _checked_weight(weight))

    def report(self, /, *, weight: float = 1.0, **values: Any) -> None:
        """Add values to the means.

        Args:
            weight: how much these values count, for example the size of their batch. Values
                with the weight 0 do not count.
            values: the values by name: numbers, or arrays that hold one.

        Raises:
            UsageError: a value is not a number, the weight is negative or not finite, or
                the block is not entered.
            SessionStoppedError: a signal has arrived; the session's block catches it.
        """
        self._check_inside("report()")
        self.leave_after_signal()
        counts = _checked_weight(weight)
        self._add({name: _number(name, value) for name, value in values.items()}, counts)

    def _add(self, numbers: Mapping[str, float], counts: float) -> None:
        for name, number in numbers.items() if counts else ():
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + counts * number, weights + counts

    def _check_inside(self, what: str) -> None:
        if self._inside is None:
            raise UsageError(f"call {what} inside the block of its evaluation")

    def begin_step(self) -> bool:
        """Begin a step; return whether it reaches hooks. For the step.

        Raises:
            UsageError: the block is not entered, or another step is open.
            SessionStoppedError: as :meth:`report`.
        """
        self._check_inside("step()")
        if self._state.loop.block == "step":
            self._state.loop.check_block("step")
        self.leave_after_signal()
        return not self._is_known

    def count_step(self, reports: Reports, weight: float) -> None:
        """Count the numbers among the reports of a step. For the step.

        Functions are left out: whether one is called depends on the hooks.
        """
        self._has_steps = True
        known = [(n, scalar_in(v)) for n, v in reports.items() if n not in reports.late]
        self._add({n: number for n, number in known if number is not None}, weight)

    def keep_requests(self, context: SessionRunContext) -> None:
        """Keep what hooks ask for in a step, until the evaluation is over. For the step.

        Raises:
            UsageError: a hook assigns a variable.
        """
        requests = self._state.requests
        if requests.pending:
            check_evaluates(context)
            requests.pass_on(context.asked, self._asked)

    def leave_after_signal(self) -> None:
        """Leave the session's block if a signal came; a resumed program evaluates again.

        In the body of a value, the evaluation goes on until the body is complete.
        """
        state = self._state
        if state.ending.signals.received is None:
            return
        if is_overdue(state) or not state.contents.position.holds:
            state.stop_by_signal()
            state.usable(None)

    def __enter__(self) -> Evaluation:
        state = self._state
        state.loop.check_block("evaluation")
        position = state.contents.position
        position.safepoint()
        self.leave_after_signal()
        backend = state.usable("aux")
        self._sums, self.metrics, repeats = {}, {}, position.resuming
        step = backend.session.global_step
        self._is_known = repeats or position.is_evaluated(self.name, step)
        self._has_steps, self._asked = False, RunRequests()
        with ExitStack() as inside:
            inside.enter_context(state.bus.clock.paused())
            inside.enter_context(state.contents.tracking.aside())
            if not repeats:
                session, name = backend.session, self.name
                around = state.bus.around("evaluating", session=session, name=name)
                inside.enter_context(around)
            self._inside = inside.pop_all()
        state.loop.block = "evaluation"
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        inside, self._inside = self._inside, None
        state = self._state
        state.loop.block = None
        if inside is not None:
            inside.__exit__(kind, error, trace)
        if error is not None:
            return
        backend, sums = state.usable("aux"), self._sums
        if self._reduce != "none" and state.agreement is not None:
            sums = sums_of_all(state.agreement, sums, backend.session.global_step)
        self.metrics = {name: total / w for name, (total, w) in sums.items()}
        step = backend.session.global_step
        if self._is_known:
            return  # hooks know it, and in a resumed program the model is a later one
        if not self.metrics and not self._has_steps:
            log.warning("an evaluation reports nothing", name=self.name)
            return
        state.contents.position.note_evaluation(self.name, step)
        if self.metrics:
            log_evaluation(self.metrics, step, self.name)
            emit_between_steps(state, "evaluated", metrics=self.metrics, name=self.name)
        asked = self._asked
        if asked.stop or asked.save or asked.rollback:
            apply_between_steps(state, None, asked=asked)


class EvaluationStep(Step):
    """One step of an evaluation, as :meth:`Evaluation.step` makes it.

    Behind it, the values that were reported last are again those of the training.
    """

    __slots__ = ("_before", "_evaluation", "_weight")

    def __init__(self, state: SessionState, evaluation: Evaluation, weight: float) -> None:
        super().__init__(state, "eval")
        self._evaluation, self._weight = evaluation, weight
        self._counts = False  # also in a session that evaluates
        self._before: tuple[ReportSession, Reports]

    def __enter__(self) -> EvaluationStep:
        opened = self._ask() if self._evaluation.begin_step() else _UNHEARD
        reports = self._reports = Reports()
        reports.aside = self._aside
        self._open, self._cancelled = opened, False
        self.feeds: Mapping[str, Any] = opened.feeds
        self._state.loop.block = "step"
        return self

    def _ask(self) -> OpenStep:
        state = self._state
        backend = state.usable("aux")
        stepper, session = backend.stepper, cast("ReportSession", backend.session)
        self._before = session, session.last
        try:
            opened = stepper.open(NO_FETCHES, None, None, None, self._other_kind)
            if opened.unplanned is not None or opened.trace is not stepper.captured_for:
                stepper.capture(opened)
            assert opened.context is not None
            check_evaluates(opened.context)
        except BaseException:
            state.abort_run()
            raise
        return opened

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        opened = self._open
        if opened is None:
            return
        try:
            if opened is not _UNHEARD:
                self._tell(kind, error, trace)
            if error is None and not self._cancelled:
                self._evaluation.count_step(self._reports, self._weight)
        finally:
            self._open, self._state.loop.block = None, "evaluation"

    def _tell(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        session, last = self._before
        try:
            super().__exit__(kind, error, trace)
        finally:
            session.take_reports(last)

    def _leave(self, opened: OpenStep) -> None:
        context, stepper = opened.context, self._state.usable("aux").stepper
        assert context is not None
        if self._cancelled:
            stepper.cancel(opened)
        else:
            reports = self._reports
            stepper.close(opened, reports.fed(opened.feeds) if opened.feeds else reports)
        self._evaluation.keep_requests(context)


def _checked_weight(weight: Any) -> float:
    counts = scalar_in(weight)
    if counts is None or not 0 <= counts < math.inf:
        raise UsageError(
            f"evaluation: the weight is {weight!r}; expected a finite number of at least 0"
        )
    return counts


def _number(name: str, value: Any) -> float:
    number = scalar_in(value)
    if number is None:
        raise UsageError(
            f"evaluation: {name!r} is not a number (type {type(value).__name__}); report "
            "a number"
        )
    return number
