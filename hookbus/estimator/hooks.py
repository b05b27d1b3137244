"""What an Estimator itself promises: where a training stops, what an evaluation returns.

The core takes part in the session for it, last of all, and nothing switches that off.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Real
from typing import Any

import attrs

from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration
from hookbus.checkpoint.reader import CheckpointInfo
from hookbus.estimator.model_fn import EstimatorSpec, number_of
from hookbus.graph.node import Node
from hookbus.hooks.context import SessionRunContext, SessionRunValues
from hookbus.hooks.coordinator import Coordinator
from hookbus.hooks.hook import SessionRunArgs, SessionRunHook
from hookbus.hooks.markers import hookimpl
from hookbus.hooks.outcome import Outcome, was_cut_short
from hookbus.logs import log
from hookbus.metrics import Metric
from hookbus.slim.hooks import emit_evaluated, log_evaluation


def core_hooks(
    call: str, promise: SessionRunHook, spec: EstimatorSpec
) -> list[Registration]:
    """Return the core's own part in a session with a loss."""
    assert isinstance(spec.loss, Node)
    check = CheckLossHook(spec.loss)
    return [Registration.of_core("loss=", check), Registration.of_core(call, promise)]


@attrs.define(eq=False)
class StopTrainingHook(SessionRunHook):
    """Stops a training that was told how long it is.

    Args:
        steps: how many steps to do; a call that was killed is continued with the rest.
        max_steps: the global step to stop at.

    Attributes:
        first_step: the global step at which the session started.
        goes_on: whether it is restored from a training that was cut short.
        ended: the kind of outcome with which it ended well; None before.
    """

    steps: int | None
    max_steps: int | None
    first_step: int = attrs.field(default=0, init=False)
    goes_on: bool = attrs.field(default=False, init=False)
    ended: str | None = attrs.field(default=None, init=False)
    _target: int | None = attrs.field(init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._target = self.max_steps

    def is_kept(self, newest: CheckpointInfo) -> bool:
        """Say whether there is nothing left to do beyond a checkpoint."""
        return self.max_steps is not None and newest.global_step >= self.max_steps

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus."""
        self._bus = bus

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Fix a relative target, once; do no step where none is left of it."""
        self.first_step = session.global_step
        if self.steps is not None and self._target is None:
            self._target = session.global_step + self.steps
        if self._target is not None and session.global_step >= self._target:
            coord.request_stop()

    @hookimpl
    def planned_last_step(self) -> int | None:
        """Tell the target."""
        return self._target

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop at the target."""
        if self._target is not None and run_values.global_step >= self._target:
            run_context.request_stop(f"step {self._target} is reached")

    def end(self, outcome: Outcome) -> None:
        """Note how it ended."""
        self.ended = outcome.kind

    def state_dict(self) -> dict[str, Any]:
        """Return a relative target."""
        return {} if self.steps is None else {"last_step": self._target}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on to the target of a call that was cut short."""
        self.goes_on = was_cut_short(ended)
        if self.steps is not None and self.goes_on:
            self._target = state.get("last_step")

    def emit(self, event: str, **arguments: Any) -> None:
        """Tell the hooks of this training something."""
        assert self._bus is not None
        self._bus.emit(event, **arguments)


@attrs.define(eq=False)
class EvaluateMetricsHook(SessionRunHook):
    """Gathers the metrics of an evaluation, stops it, and reads them when it ends.

    Args:
        metrics: what is gathered, by name.
        steps: how many batches; None for all.
        name: the evaluation's name, or None.

    Attributes:
        result: metric to value.
        cut_short: whether a signal ended it before its last batch.
        done: how many batches were evaluated.
    """

    metrics: Mapping[str, Metric]
    steps: int | None
    name: str | None
    result: dict[str, Any] = attrs.field(factory=dict, init=False)
    cut_short: bool = attrs.field(default=False, init=False)
    done: int = attrs.field(default=0, init=False)
    _every: int = attrs.field(default=1, init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus."""
        self._bus = bus

    def begin(self) -> None:
        """Settle how often progress is told: about ten times, of many batches."""
        if self.steps is not None and self.steps >= 20:
            self._every = self.steps // 10

    def after_create_session(self) -> None:
        """Start counting: after a preemption the metrics are those of new batches, too."""
        self.done = 0

    def after_run(self, run_context: SessionRunContext) -> None:
        """Count the batch; ask to stop after the last one."""
        self.done += 1
        if self.steps is None:
            return
        last = self.done == self.steps
        if last or self.done % self._every == 0:
            log.info("evaluation", batch=self.done, of=self.steps)
        if last:
            run_context.request_stop(f"{self.steps} batches are evaluated")

    def end(self, session: Session, outcome: Outcome) -> None:
        """Read the metrics, and tell them if they are of all batches."""
        self.cut_short = was_cut_short(outcome.kind) and self.done != self.steps
        values = session.run({name: m.value for name, m in self.metrics.items()})
        plain = {name: _plain(value) for name, value in sorted(values.items())}
        step = session.global_step
        self.result = {**plain, "global_step": step}
        numbers = {k: v for k, v in plain.items() if isinstance(v, float)}
        log_evaluation(numbers, step, self.name)
        if not self.cut_short:
            emit_evaluated(self._bus, numbers, step, self.name)


@attrs.define(eq=False)
class CheckLossHook(SessionRunHook):
    """Looks at the loss of the first run, before any hook that takes it for a number.

    Args:
        loss: the node.
    """

    loss: Node
    _seen: bool = attrs.field(default=False, init=False)

    def before_run(self) -> SessionRunArgs | None:
        """Fetch the loss, once; of its shape all will be."""
        return None if self._seen else SessionRunArgs(self.loss)

    @hookimpl(tryfirst=True)
    def after_run(self, run_values: SessionRunValues) -> None:
        """Refuse a loss that is not one number."""
        if not self._seen:
            number_of(run_values.results)
            self._seen = True


@attrs.define(eq=False)
class KeepInputPositionHook(SessionRunHook):
    """Sends the input of a prediction back to its place after a preemption.

    So no batch is yielded twice.
    """

    _positions: Mapping[str, Any] | None = attrs.field(default=None, init=False)

    def after_create_session(self, session: Session) -> None:
        """Go on behind the last batch that was yielded."""
        if self._positions is not None:
            session.seek(self._positions)

    def after_run(self, run_context: SessionRunContext) -> None:
        """Note where the input stands."""
        # A copy: an iterator may hand out the very state that it goes on changing.
        self._positions = copy.deepcopy(run_context.session.positions())


def _plain(value: Any) -> Any:
    """Turn a number of any kind into a float; leave arrays and all else as they are."""
    plain = value.item() if getattr(value, "shape", None) == () else value
    return float(plain) if isinstance(plain, Real) else value
