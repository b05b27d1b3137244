"""Lowers the learning rate when a value has not improved for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import field

import hookbus
from hookbus import Due, Graph, Session, SessionRunArgs, SessionRunHook, UsageError

_NAME, _RATES = "reduce-lr-on-plateau", ("lr", "learning_rate")
_COUNT = hookbus.numeric(least=0, whole=True)


@attrs.define(eq=False)
class ReduceLROnPlateauHook(SessionRunHook):
    """Multiplies the learning rate by a factor after some checks without a better value.

    Args:
        metric: the node to watch, or the metric of evaluations.
        evaluation: the evaluation with the metric, ``""`` for one without a name.
        every_n_steps: global steps between two checks of the node.
        higher_is_better: whether to raise the value.
        factor: what the learning rate is multiplied with.
        patience: how many checks without a better value do not matter.
        threshold: by what share a value must be better than the best one.
        cooldown: the checks after a reduction that do not count.
        min_lr: the learning rate does not get lower.
        variable: the learning rate; by default the only ``lr`` or ``learning_rate``.

    Raises:
        UsageError: a setting is not valid, or there is no such variable.
    """

    metric: str = "loss"
    evaluation: str | None = None
    every_n_steps: int = field(default=100, validator=hookbus.numeric(least=1, whole=True))
    higher_is_better: bool = False
    factor: float = field(default=0.1, validator=hookbus.numeric(above=0, below=1))
    patience: int = field(default=10, validator=_COUNT)
    threshold: float = field(default=1e-4, validator=hookbus.numeric(least=0))
    cooldown: int = field(default=0, validator=_COUNT)
    min_lr: float = field(default=0.0, validator=hookbus.numeric(least=0))
    variable: str | None = None
    _best: float | None = field(default=None, init=False)
    _bad: int = field(default=0, init=False)
    _cooling: int = field(default=0, init=False)
    _timer: hookbus.SecondOrStepTimer = field(init=False)
    _request: SessionRunArgs | None = field(default=None, init=False)
    _session: Session | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._timer = hookbus.SecondOrStepTimer(every_steps=self.every_n_steps)

    def begin(self, graph: Graph) -> None:
        """Look the node up, and begin anew."""
        self._best, self._bad, self._cooling = None, 0, 0
        self._timer.reset()
        if self.evaluation is None:
            self._request = SessionRunArgs(graph.resolve(self.metric, _NAME).name)

    def after_create_session(self, session: Session) -> None:
        """Keep the session, whose learning rate a check lowers at once."""
        self._session = session

    @hookbus.hookimpl
    def next_due(self) -> Due:
        """Wait for the next check of the node."""
        return Due() if self._request is None else self._timer.next_due()

    def before_run(self) -> SessionRunArgs | None:
        """Ask for the value of the node."""
        return self._request

    def after_run(self, run_values: hookbus.SessionRunValues) -> None:
        """Check the value of the node if it is due."""
        step, value = run_values.global_step, hookbus.number_in(run_values.results)
        if value is not None and self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._check(value, step)

    @hookbus.hookimpl
    def evaluated(self, metrics: Mapping[str, Any], global_step: int, name: Any) -> None:
        """Check the metric of the evaluation."""
        if self.evaluation == (name or ""):
            self._check(float(metrics[self.metric]), global_step)

    def _check(self, value: float, step: int) -> None:
        sign, best = -1 if self.higher_is_better else 1, self._best
        if best is None or sign * value < sign * best * (1 - sign * self.threshold):
            self._best, self._bad = value, 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad <= self.patience or self._session is None:
            return
        self._cooling, self._bad = self.cooldown, 0
        own, values = self.variable, self._session.variables()
        names = [n for n in values if (n == own if own else n.split(".")[-1] in _RATES)]
        if len(names) != 1:
            found = f"{' and '.join(names) or 'no variable'} can be the learning rate"
            raise UsageError(f"{_NAME}: {found}; name it with --{_NAME}-variable")
        rate = float(values[names[0]])
        if rate - (lower := max(rate * self.factor, self.min_lr)) > 1e-8:  # as in PyTorch
            self._session.write({names[0]: lower})
            hookbus.log.info("learning rate reduced", step=step, lr=lower, by=_NAME)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the counts."""
        timer = self._timer.state_dict()
        return {"counts": (self._best, self._bad, self._cooling), "timer": timer}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on from there."""
        self._best, self._bad, self._cooling = state["counts"]
        self._timer.load_state_dict(state["timer"], ended)
