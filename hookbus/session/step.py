"""Serves steps that the caller computes: in a custom loop, or in a step function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from hookbus.backend.protocol import Session
from hookbus.backend.reports import Reports, ReportSession
from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.graph.node import Node
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
        run_with_hooks: ``session.run`` of the monitored session; any number of calls.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> NoReturn:
        """Leave the step function at once, and with it the session's block.

        Raises:
            StopIteration: always; for the block it is a clean end.
        """
        raise StepFnStop("step_fn has requested the iterations to stop.")


def check_step_fn(step_fn: Callable[[StepContext], Any]) -> None:
    """Check that a step function takes the one parameter ``step_context``.

    Raises:
        UsageError: it takes others.
    """
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
    """One step of a custom loop: ``before_run`` going in, ``after_run`` coming out.

    Attributes:
        feeds: the values that hooks feed in this step, by name.
    """

    def __init__(self, loop: CustomLoop, kind: Kind) -> None:
        self.feeds: Mapping[str, Any] = {}
        self._loop = loop
        self._kind = kind
        self._reports = Reports()
        self._pending: PendingRun | None = None
        self._cancelled = False

    def report(self, /, **values: Any) -> None:
        """Report values of this step to the hooks.

        Args:
            values: name to value; a callable is called only if a hook fetches the name.

        Raises:
            UsageError: a name is reported twice, or the step is not entered.
        """
        self._check_entered("report()")
        self._reports.add(values)

    @property
    def summary(self) -> Summaries[Any]:
        """Reports values for summaries, as :attr:`Graph.summary` does in a graph."""
        return Summaries(self._summarize)

    def cancel(self) -> None:
        """Leave the step without ``after_run`` and without counting it."""
        self._cancelled = True

    def _summarize(self, kind: SummaryKind, name: str, value: Any) -> None:
        self._check_entered(f"summary.{kind}()")
        self._reports.summarize(kind, name, value)

    def _check_entered(self, what: str) -> None:
        if self._pending is None:
            raise UsageError(f"{what} belongs into the block of its step")

    def __enter__(self) -> Step:
        self._reports, self._cancelled = Reports(), False
        self._pending = pending = self._loop.enter(self._kind)
        self.feeds = pending[2]
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pending, self._pending = self._pending, None
        if error is not None or pending is None:
            self._loop.abandon()
        elif self._cancelled:
            self._loop.cancel(pending)
        else:
            self._loop.leave(pending, self._reports)


class CustomLoop:
    """Serves the steps of a custom loop: the caller computes, the session tells the hooks.

    Args:
        state: the session.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._in_step = False

    def track(self, things: Mapping[str, Any]) -> Any:
        """Track objects; return the one, or a dict of several."""
        tracking = self._state.tracking
        values = {name: tracking.add(name, thing) for name, thing in things.items()}
        return next(iter(values.values())) if len(values) == 1 else values

    def iterate(
        self, iterable: Iterable[Any], should_stop: Callable[[], bool]
    ) -> Iterator[Any]:
        """Yield the values of one epoch, until the session stops."""
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ArgumentTypeError(
                f"session.iterate() takes an iterable, not a {type(iterable).__name__}"
            )
        return self._state.saver.epochs.iterate(iterable, should_stop)

    def read(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None) -> Any:
        """Return what the last step reported."""
        if self._in_step:
            raise UsageError("run() inside step(): report what the step computes instead")
        return self._state.usable("aux").session.run(fetches, feed_dict)

    def enter(self, kind: Kind) -> PendingRun:
        """Ask the hooks what they want of a step."""
        if self._in_step:
            raise UsageError("step() inside step(): leave the first one before")
        state = self._state
        # A value that would be lost still gets its step, though a signal has come.
        backend = state.usable("aux" if state.saver.epochs.pending else kind)
        state.tracking.check()
        act(state, None)
        pending = backend.ask([], None, None, None, kind)
        self._in_step = True
        return pending

    def abandon(self) -> None:
        """Leave a step that an error cut short."""
        self._in_step = False

    def cancel(self, pending: PendingRun) -> None:
        """Leave a step that does not count; its value of the input is used up."""
        self._leave(pending)
        act(self._state, None, saving=False)

    def leave(self, pending: PendingRun, reports: Reports) -> None:
        """Count a step and tell the hooks about it."""
        self._leave(pending)
        backend = self._state.usable("aux")
        assert isinstance(backend.session, ReportSession)
        context, _, feeds, _, _ = pending
        # A hook sees its own feed, whatever the loop made of it.
        backend.session.last = given = reports.fed(feeds)
        backend.execute(pending, given, advance=1 if context.kind == "train" else 0)
        act_after_run(self._state, context)

    def _leave(self, pending: PendingRun) -> None:
        self._in_step = False
        if pending[0].kind == self._state.kind:
            self._state.saver.epochs.step_done()
