"""The session around a loop of one's own: what it tracks, its input, its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from hookbus.checkpoint import randomness
from hookbus.engine import Engine
from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.hook import Kind
from hookbus.inputs import Generators
from hookbus.node import Node
from hookbus.passes import Passes
from hookbus.reports import Reports, ReportSession
from hookbus.runner import Entered
from hookbus.summaries import Summaries, SummaryKind
from hookbus.tracking import Tracking


class Step:
    """One step of a loop of one's own: entered is ``before_run``, left ``after_run``.

    Attributes:
        feeds: what hooks feed in this step, name to value.
    """

    def __init__(self, loop: OwnLoop, kind: Kind) -> None:
        self.feeds: Mapping[str, Any] = {}
        self._loop = loop
        self._kind = kind
        self._reports = Reports()
        self._entered: Entered | None = None
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
class OwnLoop:
    """What a session has for a loop of one's own.

    Attributes:
        tracking: the objects under watch.
        passes: where the loop stands in its input.
    """

    tracking: Tracking = attrs.field(factory=Tracking)
    passes: Passes = attrs.field(
        default=attrs.Factory(
            lambda self: Passes(Generators(self.capture, self.put_back, self.fork)),
            takes_self=True,
        )
    )
    _engine: Engine | None = None
    _step: Step | None = None

    def run_on(self, engine: Engine) -> None:
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

    def enter(self, step: Step, kind: Kind) -> Entered:
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

    def cancel(self, entered: Entered) -> None:
        """Leave a step that does not count; its value of the input is used up."""
        self._step = None
        self._use_value_up(entered)
        self._running.cancelled(self._running.usable("aux"))

    def leave(self, entered: Entered, reports: Reports) -> None:
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

    def _use_value_up(self, entered: Entered) -> None:
        if entered[0].kind == self._running.opener.kind:
            self.passes.step_done()

    def capture(self) -> dict[str, Any]:
        """Return the states of all generators that a pass may draw from."""
        return {**randomness.capture(), "tracked": self.tracking.generators()}

    def put_back(self, states: Mapping[str, Any]) -> None:
        """Put these generators back."""
        randomness.restore(states)
        self.tracking.put_generators(states.get("tracked", {}))

    def fork(self) -> dict[str, Any]:
        """Return states of a stream apart from today's."""
        return {**randomness.fork(), "tracked": self.tracking.forked_generators()}

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise UsageError("the session is not open yet")
        return self._engine
