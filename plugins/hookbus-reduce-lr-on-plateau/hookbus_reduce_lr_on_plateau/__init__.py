"""Lowers the learning rate when a value does not improve for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field

import hookbus
from hookbus import Due, Graph, Session, SessionRunArgs, SessionRunHook
from hookbus.validation import numeric
from hookbus_reduce_lr_on_plateau.rule import NAME, Plateau, metric_in

_COUNT = numeric(least=0, whole=True)
_LEAST = 1e-8
"""The change of a rate that counts, as in PyTorch."""


@attrs.define(eq=False)
class ReduceLROnPlateauHook(SessionRunHook):
    """Multiplies the learning rate by a factor after some checks without a better value.

    Args:
        metric: the node to watch, or the metric of evaluations.
        evaluation: the evaluation with the metric, ``""`` for one without a name.
        every_n_steps: global steps between two checks of the node.
        higher_is_better: whether to raise the value.
        factor: the number by which the learning rate is multiplied.
        patience: the number of checks without a better value that do not matter.
        threshold: the share by which a value must be better than the best one.
        cooldown: the checks after a reduction that do not count.
        min_lr: the learning rate does not get lower.
        variable: the learning rate; by default the only ``lr`` or ``learning_rate``.

    Raises:
        UsageError: a setting is not valid, the metric is missing or not a number, or there
            is no such variable.

    >>> from hookbus.testing import run_steps
    >>> hook = ReduceLROnPlateauHook(every_n_steps=1, factor=0.5, patience=1)
    >>> losses = [1.0, 2.0, 2.0, 2.0]
    >>> steps = run_steps(hook, values={"loss": losses}, variables={"lr": 0.1})
    >>> steps.variables["lr"]
    0.05
    """

    metric: str = "loss"
    evaluation: str | None = None
    every_n_steps: int = field(default=100, validator=numeric(least=1, whole=True))
    higher_is_better: bool = False
    factor: float = field(default=0.1, validator=numeric(above=0, below=1))
    patience: int = field(default=10, validator=_COUNT)
    threshold: float = field(default=1e-4, validator=numeric(least=0))
    cooldown: int = field(default=0, validator=_COUNT)
    min_lr: float = field(default=0.0, validator=numeric(least=0))
    variable: str | None = None
    _plateau: Plateau = field(init=False)
    _timer: hookbus.SecondOrStepTimer = field(init=False)
    _watched: hookbus.Watched = field(init=False)
    _request: SessionRunArgs | None = field(default=None, init=False)
    _session: Session | None = field(default=None, init=False)
    _run: hookbus.SessionRunContext | None = field(default=None, init=False)
    _checks: int | None = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._timer = hookbus.SecondOrStepTimer(every_steps=self.every_n_steps)

    def begin(self, graph: Graph) -> None:
        """Look the node up, and begin anew."""
        rule = self.higher_is_better, self.patience, self.threshold, self.cooldown
        self._plateau = Plateau(*rule)
        self._session = self._run = None
        self._checks = 0
        self._timer.reset()
        name, direction = self.metric, "max" if self.higher_is_better else "min"
        if self.evaluation is None:
            name = graph.resolve(self.metric, NAME).name
            self._request = SessionRunArgs(name, reduce="mean")  # all ranks do the same
        self._watched = hookbus.Watched(name, self.evaluation, direction)

    @hookbus.hookimpl(tryfirst=True)
    def after_create_session(self, session: Session) -> None:
        """Keep the session, before another hook evaluates it."""
        self._session = session

    @hookbus.hookimpl
    def next_due(self) -> Due | None:
        """Wait for the next check of the node; an evaluation may come in any run."""
        return None if self._request is None else self._timer.next_due()

    def before_run(self, run_context: hookbus.SessionRunContext) -> SessionRunArgs | None:
        """Ask for the value of the node."""
        self._run = run_context
        return self._request

    def after_run(
        self, run_context: hookbus.SessionRunContext, run_values: hookbus.SessionRunValues
    ) -> None:
        """Check the value of the node if it is due."""
        step, asked = run_values.global_step, self._request and run_context is self._run
        if asked and self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._check({self.metric: run_values.results}, step)

    @hookbus.hookimpl
    def evaluated(self, metrics: Mapping[str, Any], global_step: int, name: Any) -> None:
        """Check the metric of the evaluation."""
        if self.evaluation == (name or ""):
            self._check(metrics, global_step)

    def _check(self, metrics: Mapping[str, Any], step: int) -> None:
        if self._checks is not None:
            self._checks += 1
        is_plateau = self._plateau.take(metric_in(metrics, self.metric))
        if is_plateau and self._session is not None:
            self._lower(self._session, step)

    def _lower(self, session: Session, step: int) -> None:
        name = hookbus.learning_rate_variable(session, self.variable, NAME)
        value = session.variables()[name]
        is_one = not getattr(value, "shape", ())  # else one for each group of an optimizer
        rates = [float(rate) for rate in ([value] if is_one else value)]
        lower = [max(rate * self.factor, self.min_lr) for rate in rates]
        pairs = [*zip(rates, lower, strict=True)]
        if all(rate - low <= _LEAST for rate, low in pairs):
            return
        found = [low if rate - low > _LEAST else rate for rate, low in pairs]
        run = self._run
        write = session.write if run is None or run.is_over else run.assign
        write({name: found[0] if is_one else value * 0.0 + found})  # of its own type
        hookbus.log.info(
            "learning rate reduced", step=step, lr=found[0] if is_one else found, by=NAME
        )

    @hookbus.hookimpl
    def finished(self, outcome: hookbus.Outcome) -> None:
        """Warn if the session had too few checks to reduce the rate."""
        checks = self._checks  # None in a resumed session: there were others before
        if checks is None or checks > self.patience or hookbus.resumes(outcome.kind):
            return
        if self.evaluation is not None and not checks:
            hookbus.log.warning("no evaluation came", evaluation=self.evaluation, by=NAME)
        elif checks:
            given = {"checks": checks, "patience": self.patience}
            hookbus.log.warning("the learning rate was not reduced", **given, by=NAME)

    state_form: ClassVar[Any] = {
        "plateau": {"best": float, "bad": int, "cooling": int},
        "timer": hookbus.SecondOrStepTimer.state_form,
        "watched": (hookbus.Watched.state_form, None, ...),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the counts, and what they are about."""
        return {
            "plateau": self._plateau.state_dict(),
            "timer": self._timer.state_dict(),
            "watched": self._watched.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on from there, unless the state is about another value."""
        if not self._watched.fits(state.get("watched"), NAME):
            return
        self._checks = None
        self._plateau.load_state_dict(state["plateau"])
        self._timer.load_state_dict(state["timer"], ended)
