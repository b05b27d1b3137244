"""A step that the caller does: in a loop of one's own, or in a step function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import attrs

from hookbus.backend import random_state
from hookbus.backend.inputs import EpochIterator, RandomGenerators
from hookbus.backend.protocol import Session
from hookbus.backend.reports import Reports, ReportSession
from hookbus.checkpoint.tracking import Tracking
from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.graph.node import Node
from hookbus.graph.summaries import Summaries, SummaryKind
from hookbus.hooks.hook import Kind
from hookbus.hooks.outcome import StepFnStop
from hookbus.session.hooked import PendingRun
from hookbus.session.recoverable import RecoverableSession


class StepContext:
    """The session as a step function sees it.

    Attributes:
        session: the backend session; runs through it reach no hook.
        run_with_hooks: what ``session.run`` is outside; may be called several times.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> NoReturn:
        """Leave the step function at once, and with it the session's block.

        Raises:
            StopIteration: always; the block takes it as a clean end.
        """
        raise StepFnStop("step_fn has requested the iterations to stop.")


def check_step_fn(step_fn: Callable[[StepContext], Any]) -> None:
    """See to it that a step function has the one parameter it must have, by name.

    Raises:
        UsageError: it has not.
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
    """One step of a loop of one's own: entered is ``before_run``, left ``after_run``.

    Attributes:
        feeds: what hooks feed in this step, name to value.
    """

    def __init__(self, loop: StepLoop, kind: Kind) -> None:
        self.feeds: Mapping[str, Any] = {}
        self._loop = loop
        self._kind = kind
        self._reports = Reports()
        self._entered: PendingRun | None = None
        self._cancelled = False

    def report(self, /, **values: Any) -> None:
        """Tell hooks about values of this step; what is callable is only called if asked.

        Raises:
            UsageError: a name is reported twice, or the step is not entered.
        """
        self._check_entered("report()")
        self._reports.add(values)

    @property
    def summary(self) -> Summaries[Any]:
        """Tells hooks about values that are to be shown, as in :class:`Graph`."""
        return Summaries(self._summarize)

    def cancel(self) -> None:
        """Leave the step as if it had not been: no ``after_run``, no step counted."""
        self._cancelled = True

    def _summarize(self, kind: SummaryKind, name: str, value: Any) -> None:
        self._check_entered(f"summary.{kind}()")
        self._reports.summarize(kind, name, value)

    def _check_entered(self, what: str) -> None:
        if self._entered is None:
            raise UsageError(f"{what} belongs into the block of its step")

    def __enter__(self) -> Step:
        self._reports, self._cancelled = Reports(), False
        self._entered = entered = self._loop.enter(self, self._kind)
        self.feeds = entered[2]
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        entered, self._entered = self._entered, None
        if error is not None or entered is None:
            self._loop.abandon()
        elif self._cancelled:
            self._loop.cancel(entered)
        else:
            self._loop.leave(entered, self._reports)


@attrs.define(eq=False)
class StepLoop:
    """What a session has for a loop of one's own.

    Attributes:
        tracking: the objects under watch.
        passes: where the loop stands in its input.
    """

    tracking: Tracking = attrs.field(factory=Tracking)
    passes: EpochIterator = attrs.field(
        default=attrs.Factory(
            lambda self: EpochIterator(
                RandomGenerators(self.capture, self.put_back, self.fork)
            ),
            takes_self=True,
        )
    )
    _engine: RecoverableSession | None = None
    _step: Step | None = None

    def run_on(self, engine: RecoverableSession) -> None:
        """Take *engine* for what runs the steps."""
        self._engine = engine

    def track(self, things: Mapping[str, Any]) -> Any:
        """Track objects; return the one, or a dict of several."""
        values = {name: self.tracking.add(name, thing) for name, thing in things.items()}
        return next(iter(values.values())) if len(values) == 1 else values

    def iterate(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the values of one pass, until somebody stops."""
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ArgumentTypeError(
                f"session.iterate() takes an iterable, not a {type(iterable).__name__}"
            )
        return self.passes.iterate(iterable, self._running.should_stop)

    def read(self, fetches: Any, feed_dict: Mapping[Node | str, Any] | None) -> Any:
        """Return what the last step reported."""
        if self._step is not None:
            raise UsageError("run() inside step(): report what the step computes instead")
        attempt = self._running.usable("aux")
        return attempt.session.run(fetches, feed_dict)

    def enter(self, step: Step, kind: Kind) -> PendingRun:
        """Ask the hooks what they want of a step."""
        if self._step is not None:
            raise UsageError("step() inside step(): leave the first one before")
        # A value that would be lost still gets its step, though a signal has come.
        attempt = self._running.usable("aux" if self.passes.pending else kind)
        self.tracking.check()
        self._running.actor.act(attempt.session, None)
        entered = attempt.runner.enter([], None, None, kind)
        self._step = step
        return entered

    def abandon(self) -> None:
        """Leave a step that an error cut short."""
        self._step = None

    def cancel(self, entered: PendingRun) -> None:
        """Leave a step that does not count; its value of the input is used up."""
        self._step = None
        self._use_value_up(entered)
        self._running.cancelled(self._running.usable("aux"))

    def leave(self, entered: PendingRun, reports: Reports) -> None:
        """Count a step and tell the hooks about it."""
        self._step = None
        self._use_value_up(entered)
        engine = self._running
        attempt = engine.usable("aux")
        assert isinstance(attempt.session, ReportSession)
        context, _, feeds, _ = entered
        # What a hook feeds it also sees, whatever the loop made of it.
        attempt.session.last = given = reports.fed(feeds)
        counts = 1 if context.kind == "train" else 0
        attempt.runner.leave(entered, given, None, advance=counts)
        engine.after_run(attempt, context)

    def _use_value_up(self, entered: PendingRun) -> None:
        if entered[0].kind == self._running.opener.kind:
            self.passes.step_done()

    def capture(self) -> dict[str, Any]:
        """Return the states of all generators that a pass may draw from."""
        return {**random_state.capture(), "tracked": self.tracking.generators()}

    def put_back(self, states: Mapping[str, Any]) -> None:
        """Put these generators back."""
        random_state.restore(states)
        self.tracking.put_generators(states.get("tracked", {}))

    def fork(self) -> dict[str, Any]:
        """Return states of a stream apart from today's."""
        return {**random_state.fork(), "tracked": self.tracking.forked_generators()}

    @property
    def _running(self) -> RecoverableSession:
        if self._engine is None:
            raise UsageError("the session is not open yet")
        return self._engine
