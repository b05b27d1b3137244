"""Evaluates the model while it trains, and emits the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import Bus, Outcome, Session, SessionRunContext, SessionRunHook, UsageError
from hookbus.errors import ArgumentTypeError, NoValueYetError, UnfedPlaceholderError
from hookbus.evaluating import undisturbed
from hookbus.validation import number_in, numeric


@attrs.define(eq=False)
class InMemoryEvaluatorHook(SessionRunHook):
    """Evaluates the model before the first run, periodically, and at the end.

    The hook logs the metrics, and emits them as ``evaluated`` for other hooks. It restores
    random generators and inputs afterwards, so an evaluation does not change the training.

    Args:
        evaluate: a function that takes the backend session and returns the metrics, from
            name to number.
        every_n_iter: runs between two evaluations. A resumed session that was cut short
            continues the count.
        name: the name of this evaluation, to tell it from others.

    Raises:
        UsageError: the period is not positive, a metric is not a number, or the function
            trains.

    >>> from hookbus.testing import run_steps
    >>> seen = []
    >>> def evaluate(session):
    ...     seen.append(session.run("w"))
    ...     return {"weight": seen[-1]}
    >>> _ = run_steps(InMemoryEvaluatorHook(evaluate, every_n_iter=2), steps=3)
    >>> seen
    [0.0, 3.0, 6.0]
    """

    options = hookbus.HookOptions(only_observes=True)

    evaluate: Callable[[Session], Mapping[str, Any]]
    every_n_iter: int = attrs.field(default=100, validator=numeric(above=0))
    name: str | None = None
    _bus: Bus | None = attrs.field(default=None, init=False)
    _runs: int | None = attrs.field(default=None, init=False)
    _ran: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if not callable(self.evaluate):
            raise ArgumentTypeError(
                f"evaluate must be a function of the session, not {self.evaluate!r}."
            )
        if self.every_n_iter is None:
            raise UsageError(f"invalid every_n_iter={self.every_n_iter}.")

    @hookbus.hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus, to emit metrics on it."""
        self._bus = bus

    def begin(self) -> None:
        """Start counting."""
        self._runs, self._ran = None, False

    def after_create_session(self, session: Session) -> None:
        """Evaluate a model in the graph, whose variables are restored by now."""
        if self._runs is None and not session.graph.takes_reports:
            self._evaluate_first(session)

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due | None:
        """Wait for the next evaluation."""
        if self._runs is None:
            return None
        return hookbus.Due(runs=self.every_n_iter - self._runs % self.every_n_iter)

    @hookbus.hookimpl
    def idled(self, runs: int) -> None:
        """Count the runs that left this hook out."""
        self._runs = (self._runs or 0) + runs

    def before_run(self, run_context: SessionRunContext) -> None:
        """Evaluate the model of a custom loop, which restores it before its first step."""
        if self._runs is None:
            self._evaluate_first(run_context.session)

    def after_run(self, run_context: SessionRunContext) -> None:
        """Evaluate if an evaluation is due."""
        self._ran = True
        self._runs = (self._runs or 0) + 1
        if self._runs % self.every_n_iter == 0:
            self._evaluate(run_context.session)

    def end(self, session: Session, outcome: Outcome) -> None:
        """Evaluate a last time, unless the final checkpoint must not wait."""
        if not hookbus.resumes(outcome.kind):
            self._evaluate(session)

    state_form: ClassVar[Any] = {"runs": (int, None)}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of runs; None before the first evaluation."""
        return {"runs": self._runs}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Continue the count of a session that was cut short; else start a new one."""
        self._runs = state["runs"] if hookbus.resumes(ended) else None

    def _evaluate_first(self, session: Session) -> None:
        self._evaluate(session)
        self._runs = 0

    def _evaluate(self, session: Session) -> None:
        try:
            metrics = self._metrics(session)
        except UnfedPlaceholderError as error:
            if self._ran or not session.graph.takes_reports:
                raise
            # A custom loop reports its first values during its first step.
            hookbus.log.info("nothing to evaluate yet", why=str(error))
            return
        except NoValueYetError as error:
            if self._ran:
                raise
            hookbus.log.info("nothing to evaluate yet", why=str(error))
            return
        assert self._bus is not None
        step, named = session.global_step, {} if self.name is None else {"name": self.name}
        shown = {metric: float(f"{value:.6g}") for metric, value in metrics.items()}
        hookbus.log.info("evaluated", step=step, metrics=shown, **named)
        self._bus.emit("evaluated", metrics=metrics, global_step=step, name=self.name)

    def _metrics(self, session: Session) -> dict[str, float]:
        version = session.version
        assert self._bus is not None
        around = self._bus.around("evaluating", session=session, name=self.name)
        with undisturbed(session), around:
            metrics = self.evaluate(session)
        if session.version != version:
            raise UsageError(
                "in-memory-evaluator: the function evaluate changed a variable or the "
                "global step; it must not fetch a train op"
            )
        if not isinstance(metrics, Mapping):
            raise UsageError(
                "in-memory-evaluator: the function evaluate returned a "
                f"{type(metrics).__name__}; expected a mapping from metric name to number"
            )
        return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: Any) -> float:
    """Turn a number, or an array of any library that holds one, into a float."""
    found = number_in(value)
    if found is not None:
        return found
    shape = tuple(getattr(value, "shape", ()))
    raise UsageError(
        f"in-memory-evaluator: the metric {name!r}, returned by the function evaluate, is "
        f"not a number (type {type(value).__name__}, shape {shape})"
    )
