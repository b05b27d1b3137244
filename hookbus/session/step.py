"""Runs steps that the caller computes: in a custom loop, or in a step function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from hookbus.backend.protocol import Session
from hookbus.backend.reports import Reports, ReportSession
from hookbus.errors import UsageError
from hookbus.graph.summaries import Summaries, SummaryKind
from hookbus.hooks.hook import Kind
from hookbus.hooks.outcome import StepFnStop
from hookbus.session.requests import act, act_after_run
from hookbus.session.run import PendingRun
from hookbus.session.state import SessionState


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
        names = list(inspect.signature(step_fn).parameters)
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

    def __init__(self, state: SessionState, kind: Kind) -> None:
        self.feeds: Mapping[str, Any] = {}
        self._state = state
        self._kind = kind
        self._reports = Reports(state.saver.tracking)
        self._pending: PendingRun | None = None
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
        self._check_entered("report()")
        self._reports.add(values)

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
        state = self._state
        if state.in_step:
            raise UsageError("step() inside step(): leave the first step first")
        # A value that would be lost still gets its step, even after a signal.
        backend = state.usable("aux" if state.saver.epochs.pending else self._kind)
        state.saver.tracking.check()
        act(state, None)
        self._reports, self._cancelled = Reports(state.saver.tracking), False
        self._pending = pending = backend.ask([], None, None, None, self._kind)
        self.feeds, state.in_step = pending[2], True
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pending, self._pending = self._pending, None
        state, state.in_step = self._state, False
        if error is not None or pending is None:
            return
        if self._kind == state.kind:
            state.saver.epochs.step_done()
        backend = state.usable("aux")
        if self._cancelled:
            backend.cancel(pending)
            act(state, None, saving=False)
            return
        assert isinstance(backend.session, ReportSession)
        context, _, feeds, _, _ = pending
        # A hook sees its own feed, even if the loop used another value.
        backend.session.last = given = self._reports.fed(feeds)
        backend.execute(pending, given, advance=1 if self._kind == "train" else 0)
        act_after_run(state, context)
