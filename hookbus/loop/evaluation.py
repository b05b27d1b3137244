"""Runs one evaluation of the model of a custom loop as a block, between two steps."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

from hookbus.errors import UsageError
from hookbus.lifecycle.requests import is_overdue
from hookbus.lifecycle.state import SessionState
from hookbus.logs import log, log_evaluation
from hookbus.loop.inputs import emit_between_steps
from hookbus.peers.reduction import check_reduction, sums_of_all
from hookbus.validation import scalar_in


class Evaluation:
    """One evaluation of the model of a custom loop, as a block.

    Leaving the block without an error sends the means of the reported values to all hooks
    as the event ``evaluated``, and serves their requests, like a stop. In any case, leaving
    the block restores the random generators of the process and those that the session
    tracks. In the block, tracked objects compute as in an evaluation, if their library
    supports that.

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
        self._repeats = False
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
            SessionStoppedError: a signal has arrived; the session's block catches it.
        """
        if self._inside is None:
            raise UsageError("call report() inside the block of its evaluation")
        self._leave_after_signal()
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

    def _leave_after_signal(self) -> None:
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
        self._leave_after_signal()
        backend = state.usable("aux")
        self._sums, self.metrics, self._repeats = {}, {}, position.resuming
        with ExitStack() as inside:
            inside.enter_context(state.bus.clock.paused())
            inside.enter_context(state.contents.tracking.aside())
            if not self._repeats:
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
        position, step = state.contents.position, backend.session.global_step
        if self._repeats or position.is_evaluated(self.name, step):
            return  # hooks know it, and in a resumed program the model is a later one
        if not self.metrics:
            log.warning("an evaluation reports nothing", name=self.name)
            return
        position.note_evaluation(self.name, step)
        log_evaluation(self.metrics, step, self.name)
        emit_between_steps(state, "evaluated", metrics=self.metrics, name=self.name)


def _number(name: str, value: Any) -> float:
    number = scalar_in(value)
    if number is None:
        raise UsageError(
            f"evaluation: {name!r} is not a number (type {type(value).__name__}); report "
            "a number"
        )
    return number
