"""Describes the place of a program in its passes over inputs, for checkpoints.

The place is a tree. The program is a body of code that begins passes over inputs, one after
another. Each value of a pass has a body as well: the code that the program runs for the
value, which may begin passes of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from hookbus.backend.inputs import Input

BEFORE_ALL: Mapping[str, Any] = {"over": 0, "within": {}, "marks": 0}
"""The position of a custom loop before its first call of ``session.iterate``."""


class PassEvents(Protocol):
    """The session, as a pass over an input sees it."""

    def begins(self) -> None:
        """Serve what waits before a pass begins.

        Raises:
            SessionStoppedError: the session has stopped.
        """

    @property
    def keeps_values(self) -> bool:
        """Whether values are kept, because a hook may go back to them."""

    def has_stopped(self) -> bool:
        """Return whether the session has stopped."""

    def pulled(self, value: Any) -> None:
        """Keep a value that was pulled, and the state, if a hook may go back to them."""

    def again(self) -> Any:
        """Return the value in hand once more."""

    def before_value(self) -> bool:
        """Serve what waits between two values; return whether the pass stops there."""

    def before_end(self) -> None:
        """Serve what waits after the last value. The input may go back in it."""

    def pass_ended(self, number: int) -> None:
        """Tell hooks that a pass has ended on its own."""

    def epoch_ended(self, number: int) -> None:
        """Tell hooks that an epoch has ended."""

    def epochs_ended(self) -> None:
        """Save the state at the end of the last epoch."""


@attrs.define(eq=False)
class Body:
    """The code that runs for one value of a pass, or the whole program.

    Attributes:
        passes: the number of passes that it has begun.
        safepoints: the number of safepoints since its last pass. A safepoint is a call of
            the session at which the session may save or stop.
        steps: the number of blocks of steps in it that are outside of its passes.
        more: the global steps that such blocks count beyond one for each.
        before: the global steps of the values before the one in hand.
        values: the number of values that were pulled, with the one in hand.
        usual: the number of blocks of the value before the one in hand.
        last: its last pass; None before the first.
        ends: the states of the generators at the end of its passes, by the number.
        target: the position in it that a resumed program still has to reach, or None.
    """

    passes: int = 0
    safepoints: int = 0
    steps: int = 0
    more: int = 0
    before: int = 0
    values: int = 0
    usual: int = 0
    last: Pass | None = None
    ends: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)
    target: Mapping[str, Any] | None = None

    def begin_value(self) -> None:
        """Begin the body of the next value, after one that has begun no passes."""
        self.values += 1
        self.usual = steps = self.steps
        if steps or self.more:
            self.before += steps + self.more
            self.steps = self.more = 0
        self.safepoints = 0

    def begin_again(self) -> None:
        """Begin the body of the value in hand once more."""
        self.passes = self.safepoints = self.steps = self.more = 0
        self.last, self.ends = None, {}

    def expected(self, left: int, usual: float) -> int:
        """Return how many global steps are to come in the pass, by the mean of its values.

        Args:
            left: the number of values after the one in hand.
            usual: the number of steps of a value as long as none has had any.
        """
        own = self.steps + self.more
        if not self.values or not (self.before or own):
            return round((left + (self.values > 0)) * usual)
        mean = self.mean(usual)
        rest = mean - own if self.values == 1 or self.steps < self.usual else 0
        return round(left * mean + max(0, rest))

    def mean(self, usual: float) -> float:
        """Return the mean of the global steps of its values; *usual* without values."""
        if not self.values:
            return usual
        # Further steps of the value in hand may be to come.
        before = self.before / (self.values - 1) if self.values > 1 else usual
        return max((self.before + self.steps + self.more) / self.values, before)

    def position(self) -> dict[str, Any]:
        """Return the position of the program in this body, for a checkpoint.

        It has the number of passes that are complete (``over``), the place in the last one
        (``within``), the number of safepoints since then (``marks``), and *ends*.
        """
        if self.target is not None:
            return dict(self.target)
        each = self.last
        if each is None:  # a loop without passes goes on by the global step
            marks = 0 if self.steps else self.safepoints
            return {"over": self.passes, "within": {}, "marks": marks}
        # The code after the epochs is not saved, and neither are its safepoints.
        is_over = not (each.is_open or each.is_stopped or each.is_epochs)
        marks = self.safepoints if is_over else 0
        position = {"over": each.number, "within": each.place(), "marks": marks}
        return {**position, "ends": self.ends} if self.ends else position


@attrs.define(eq=False)
class Pass:
    """A pass over an input.

    Attributes:
        number: the number of the pass in its body, from 0.
        source: pulls the values.
        name: the name under which hooks wrap the values, or None.
        wraps: whether hooks wrap its values.
        is_epochs: whether its values are the numbers of epochs.
        done: the number of values whose body is complete.
        body: the code that runs for the value in hand.
        has_passes: whether such code begins passes. If so, the pass keeps *before*.
        before: the position before the value in hand, and the generators after its pull.
        awaited: these two parts of a checkpoint, for the first pull of a resumed pass.
        began: the time of ``time.monotonic()`` at which the pass began.
        is_open: whether the program is in the pass.
        loaders: of epochs, what the order of the loaders in their passes depends on, by
            the number of the pass: at the start of its first pass, and at the start and
            the end of its last one.
        is_stopped: whether the session stopped in it, so that a resumed program goes on.
        repeats: whether it gives the value in hand once more.
    """

    number: int
    source: Input
    name: str | None = None
    wraps: bool = False
    is_epochs: bool = False
    done: int = 0
    body: Body = attrs.field(factory=Body)
    has_passes: bool = False
    before: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    awaited: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    began: float = attrs.field(factory=time.monotonic)
    is_open: bool = True
    loaders: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    is_stopped: bool = False
    repeats: bool = False

    @property
    def has_value(self) -> bool:
        """Whether a value is in hand: pulled, and its body is not complete."""
        return self.source.pulled > self.done

    @property
    def holds(self) -> bool:
        """Whether the body of the value has to be complete before a save.

        The body of an epoch does only if it does steps outside of passes.
        """
        return self.has_value and (not self.is_epochs or self.body.steps > 0)

    def place(self) -> dict[str, Any]:
        """Return the place in the pass, with the position in the body of its value."""
        place = self._place()
        return {**place, "loaders": self.loaders} if self.loaders else place

    def _place(self) -> dict[str, Any]:
        source, body = self.source, self.body
        if not self.is_open:
            if self.is_epochs or self.is_stopped:
                return source.state_at(self.done)
            return {"ended": True, **source.state_at_end()}
        if not self.has_value or not (body.passes or body.safepoints):
            return source.state_at(self.done)
        if self.before is None:
            place, random = source.state_at(self.done), {}
        else:
            place, random = dict(self.before[0]), {"random": self.before[1]}
        return {**place, **random, "body": body.position()}


def upgraded(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a position in today's form; older ones count inside the open pass."""
    within, marks = state["within"], state.get("marks", 0)
    if not marks or not within or "ended" in within or "body" in within:
        return {"marks": 0, **state}
    body = {"over": 0, "within": {}, "marks": marks}
    return {**state, "within": {**within, "body": body}, "marks": 0}


def bare(within: Mapping[str, Any]) -> dict[str, Any]:
    """Return the place in a pass without that in the body of its value."""
    inside = ("body", "random", "loaders")
    return {key: part for key, part in within.items() if key not in inside}
