"""Defines the own hooks of the sessions of an Estimator, which keep its promises.

Sessions call them last; no flag switches them off.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs

from hookbus import (
    CheckpointInfo,
    Node,
    Outcome,
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    hookimpl,
    resumes,
)
from hookbus_estimator.model_fn import EstimatorSpec, number_of
from hookbus_estimator.slim.hooks import EvaluationHook, StopAtLastStepHook


def own_hooks(call: str, hook: SessionRunHook, spec: EstimatorSpec) -> dict[str, Any]:
    """Return the own hooks of a call whose session has a loss, by their promises."""
    assert isinstance(spec.loss, Node)
    return {"loss=": CheckLossHook(spec.loss), call: hook}


@attrs.define(eq=False)
class StopTrainingHook(StopAtLastStepHook):
    """Stops training at a global step, or after a number of steps.

    Args:
        last_step: the global step to stop at; None for no limit.
        steps: the number of steps to do instead; a resumed session does the rest.

    Attributes:
        first_step: the global step at which the session started.
        goes_on: whether the session continues a training run that was cut short.
        ended: the kind of outcome of a session that ended well; None before.
    """

    steps: int | None = None
    first_step: int = attrs.field(default=0, init=False)
    goes_on: bool = attrs.field(default=False, init=False)
    ended: str | None = attrs.field(default=None, init=False)

    def is_done(self, newest: CheckpointInfo) -> bool:
        """Return whether nothing is left to do after a checkpoint."""
        return self.is_reached(newest.global_step)

    def after_create_session(self, session: Session) -> None:
        """Turn a number of steps into a last step, once."""
        self.first_step = session.global_step
        if self.steps is not None and self.last_step is None:
            self.last_step = session.global_step + self.steps

    def end(self, outcome: Outcome) -> None:
        """Note how it ended."""
        self.ended = outcome.kind

    def state_dict(self) -> dict[str, Any]:
        """Return the last step, if it comes from a number of steps."""
        return {} if self.steps is None else {"last_step": self.last_step}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Take over the last step of a training run that was cut short."""
        self.goes_on = resumes(ended)
        if self.steps is not None and self.goes_on:
            self.last_step = state.get("last_step")


@attrs.define(eq=False)
class EvaluateMetricsHook(EvaluationHook):
    """Stops an evaluation and reads its metrics, which are its final ops, at the end."""

    @property
    def result(self) -> dict[str, Any]:
        """Metric to value, numbers as floats, and the global step."""
        assert self.outcome is not None
        return {**self.values, **self.metrics, "global_step": self.outcome.step}


@attrs.define(eq=False)
class CheckLossHook(SessionRunHook):
    """Checks the loss of the first run, before any hook uses it as a number.

    Args:
        loss: the node.
    """

    loss: Node
    _checked: bool = attrs.field(default=False, init=False)

    def before_run(self) -> SessionRunArgs | None:
        """Fetch the loss once; its shape does not change."""
        return None if self._checked else SessionRunArgs(self.loss)

    @hookimpl(tryfirst=True)
    def after_run(self, run_values: SessionRunValues) -> None:
        """Refuse a loss that is not one number."""
        if not self._checked:
            number_of(run_values.results)
            self._checked = True


@attrs.define(eq=False)
class KeepInputPositionHook(SessionRunHook):
    """Moves the input of a prediction back to its position after a preemption.

    So no batch is yielded twice.
    """

    _positions: Mapping[str, Any] | None = attrs.field(default=None, init=False)

    def after_create_session(self, session: Session) -> None:
        """Move the input past the last batch that was yielded."""
        if self._positions is not None:
            session.seek(self._positions)

    def after_run(self, run_context: SessionRunContext) -> None:
        """Note the position of the input."""
        # A copy: an iterator may return the very state that it goes on changing.
        self._positions = copy.deepcopy(run_context.session.positions())
