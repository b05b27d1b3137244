"""When a model is evaluated in the middle of its training, and who is told the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

import hookbus
from hookbus import (
    ArgumentTypeError,
    Bus,
    Outcome,
    Session,
    SessionRunContext,
    SessionRunHook,
    UnfedPlaceholderError,
    UsageError,
)


@attrs.define(eq=False)
class InMemoryEvaluatorHook(SessionRunHook):
    """Evaluates the model before the first run, every so many runs, and at the end.

    The metrics are logged, and emitted as ``evaluated`` for whoever records them or
    decides by them. Random generators and inputs are put back afterwards, so that the
    training goes on as without an evaluation.

    Args:
        evaluate: takes the backend session and returns a mapping, metric name to number.
        every_n_iter: runs between two evaluations, counted in this session; one that
            was cut short is continued.
        name: tells this evaluation from others.

    Raises:
        UsageError: the period is not positive, a metric is no number, or the function
            trains.
    """

    only_observes = True

    evaluate: Callable[[Session], Mapping[str, Any]]
    every_n_iter: int = attrs.field(default=100, validator=hookbus.numeric(above=0))
    name: str | None = None
    _bus: Bus | None = attrs.field(default=None, init=False)
    _runs: int | None = attrs.field(default=None, init=False)
    _ran: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if not callable(self.evaluate):
            raise ArgumentTypeError(
                f"evaluate is a function of the session, not {self.evaluate!r}."
            )
        if self.every_n_iter is None:
            raise UsageError(f"invalid every_n_iter={self.every_n_iter}.")

    @hookbus.hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep what metrics are emitted on."""
        self._bus = bus

    def begin(self) -> None:
        """Start counting."""
        self._runs, self._ran = None, False

    def after_create_session(self, session: Session) -> None:
        """Evaluate a model that is all there: one in variables of the graph."""
        if self._runs is None and session.graph.variables:
            self._evaluate_first(session)

    def before_run(self, run_context: SessionRunContext) -> None:
        """Evaluate a model of a loop's own, which restores it before its first step."""
        if self._runs is None:
            self._evaluate_first(run_context.session)

    def after_run(self, run_context: SessionRunContext) -> None:
        """Evaluate when it is due."""
        self._ran = True
        self._runs = (self._runs or 0) + 1
        if self._runs % self.every_n_iter == 0:
            self._evaluate(run_context.session)

    def end(self, session: Session, outcome: Outcome) -> None:
        """Evaluate a last time, unless the checkpoint that comes next must not wait."""
        if not hookbus.was_cut_short(outcome.kind):
            self._evaluate(session)

    def state_dict(self) -> dict[str, Any]:
        """Return how many runs were counted; None before the first evaluation."""
        return {"runs": self._runs}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on counting where a session was cut short; after one that ended, anew."""
        self._runs = state["runs"] if hookbus.was_cut_short(ended) else None

    def _evaluate_first(self, session: Session) -> None:
        self._evaluate(session)
        self._runs = 0

    def _evaluate(self, session: Session) -> None:
        try:
            metrics = self._metrics(session)
        except UnfedPlaceholderError as error:
            if self._ran or session.graph.variables:
                raise
            # A loop of one's own reports its values during its first step.
            hookbus.log.info("nothing to evaluate yet", why=str(error))
            return
        assert self._bus is not None
        step, named = session.global_step, {} if self.name is None else {"name": self.name}
        shown = {metric: float(f"{value:.6g}") for metric, value in metrics.items()}
        hookbus.log.info("evaluated", step=step, metrics=shown, **named)
        self._bus.emit("evaluated", metrics=metrics, global_step=step, name=self.name)

    def _metrics(self, session: Session) -> dict[str, float]:
        version = session.version
        with hookbus.undisturbed(session):
            metrics = self.evaluate(session)
        if session.version != version:
            raise UsageError(
                "in-memory-evaluator: the setting evaluate changed a variable or the "
                "global step; a function that evaluates fetches no train op"
            )
        if not isinstance(metrics, Mapping):
            raise UsageError(
                "in-memory-evaluator: the setting evaluate returned a "
                f"{type(metrics).__name__}; it returns a mapping, metric name to number"
            )
        return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: Any) -> float:
    """Turn a number, or an array of any library that holds one, into a float."""
    found = hookbus.number_in(value)
    if found is not None:
        return found
    shape = tuple(getattr(value, "shape", ()))
    raise UsageError(
        f"in-memory-evaluator: the metric {name!r}, which the setting evaluate returned, "
        f"is no number (type {type(value).__name__}, shape {shape})"
    )
