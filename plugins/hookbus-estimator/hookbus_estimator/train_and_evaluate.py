"""Trains an Estimator and evaluates its checkpoints as they are saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from hookbus import (
    CheckpointInfo,
    Checkpoints,
    CheckpointSaverListener,
    HookObject,
    Session,
    UsageError,
    latest_checkpoint,
    log,
    resumes,
)
from hookbus.errors import ArgumentTypeError
from hookbus.validation import check_name, check_number, check_seconds
from hookbus_estimator.estimator import Estimator
from hookbus_estimator.exporter import Exporter
from hookbus_estimator.hooks import StopTrainingHook
from hookbus_estimator.model_fn import check_listeners, hooks_field
from hookbus_estimator.slim.hooks import EvaluationEmitter


def _check_function(input_fn: Any) -> None:
    if not callable(input_fn):
        raise ArgumentTypeError(f"input_fn must be a function, given: {input_fn!r}")


def _exporters(given: Any) -> tuple[Exporter, ...]:
    """Return the exporters of an EvalSpec, which may be a single one.

    Raises:
        ArgumentTypeError: one of them is not an exporter.
        UsageError: two have the same name.
    """
    single = hasattr(given, "export") or not isinstance(given, Iterable | None)
    found: Sequence[Any] = (given,) if single else tuple(given or ())
    for exporter in found:
        name = getattr(exporter, "name", None)
        if not hasattr(exporter, "export") or not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"an exporter has a name and export(): {exporter!r}")
    names = [exporter.name for exporter in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two exporters have the name {name!r}: rename one of them")
    return tuple(found)


@attrs.frozen(eq=False)
class TrainSpec:
    """Describes how to train.

    Args:
        input_fn: as in :meth:`Estimator.train`.
        max_steps: the global step to stop at; None trains until the input ends.
        hooks: hook objects.
        saving_listeners: listeners that are called around each save, before the evaluation.

    Raises:
        UsageError: *max_steps* is not above 0.
        ArgumentTypeError: an argument has the wrong type.

    >>> TrainSpec(lambda: [{"x": 1.0}], max_steps=1000).max_steps
    1000
    """

    input_fn: Callable[..., Iterable[Any]]
    max_steps: int | None = None
    hooks: Sequence[HookObject] = hooks_field("hooks")
    saving_listeners: tuple[CheckpointSaverListener, ...] = attrs.field(
        default=(), converter=check_listeners
    )

    def __attrs_post_init__(self) -> None:
        _check_function(self.input_fn)
        check_number("max_steps", self.max_steps)


@attrs.frozen(eq=False)
class EvalSpec:
    """Describes how, and how often, to evaluate.

    Args:
        input_fn: as in :meth:`Estimator.evaluate`.
        steps: the number of batches; None for all.
        name: tells this evaluation from others.
        hooks: hook objects.
        exporters: one exporter, or several with different names.
        start_delay_secs: seconds from the start of the training to the first evaluation.
        throttle_secs: seconds from the start of one evaluation to the start of the next.
            The last checkpoint is always evaluated.

    Raises:
        UsageError: a number is too small, or two exporters have the same name.
        ArgumentTypeError: an argument has the wrong type.

    >>> EvalSpec(lambda: [{"x": 1.0}], steps=None, throttle_secs=60.0).throttle_secs
    60.0
    """

    input_fn: Callable[..., Iterable[Any]]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[HookObject] = hooks_field("hooks")
    exporters: tuple[Exporter, ...] = attrs.field(default=(), converter=_exporters)
    start_delay_secs: float = 0.0
    throttle_secs: float = 600.0

    def __attrs_post_init__(self) -> None:
        _check_function(self.input_fn)
        check_number("steps", self.steps)
        check_name("name of an EvalSpec", self.name)
        for field in ("start_delay_secs", "throttle_secs"):
            check_seconds(field, getattr(self, field))


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Path | None] | None]:
    """Train, and evaluate checkpoints as they are saved; the last one always.

    An evaluation has no effect on the training. The hooks of the training receive its
    metrics as the event ``evaluated``, so early stopping can use them. A run that continues
    after an interruption evaluates its first checkpoint again, because that was saved
    before the hooks got the metrics.

    Args:
        estimator: the model, and the directory of its checkpoints.
        train_spec: the input of the training, and the step to stop at.
        eval_spec: the input of the evaluations, how often they happen, and the exporters of
            their checkpoints.

    Returns:
        The metrics of the last evaluation, and the results of the exporters for it; None
        and None if there was nothing left to train.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        UsageError: as :meth:`Estimator.train`.
    """
    needed = {Estimator: estimator, TrainSpec: train_spec, EvalSpec: eval_spec}
    for cls, given in needed.items():
        if not isinstance(given, cls):
            raise ArgumentTypeError(f"expected {cls.__name__}, given: {given!r}")
    last = train_spec.max_steps
    stop_hook = StopAlternatingHook(last, estimator=estimator, spec=eval_spec)
    listener = stop_hook.listener
    listeners = (*train_spec.saving_listeners, listener)
    try:
        estimator.train_until(stop_hook, train_spec.input_fn, train_spec.hooks, listeners)
    finally:
        listener.over = True
    return listener.metrics, listener.exports


@attrs.define(eq=False)
class StopAlternatingHook(StopTrainingHook, EvaluationEmitter):
    """Stops a training run whose checkpoints are evaluated.

    A checkpoint is written before it is evaluated. So a resumed run first evaluates the
    checkpoint from which it continues: the hooks still lack those metrics.

    Args:
        estimator: the Estimator that trains.
        spec: how to evaluate its checkpoints.

    Attributes:
        listener: evaluates the checkpoints.
    """

    estimator: Estimator = attrs.field(kw_only=True)
    spec: EvalSpec = attrs.field(kw_only=True)
    listener: EvaluateListener = attrs.field(init=False)

    @listener.default
    def _listener(self) -> EvaluateListener:
        return EvaluateListener(self.estimator, self.spec, self)

    def is_done(self, newest: CheckpointInfo) -> bool:
        """Return whether nothing is left to do, nor to evaluate."""
        return super().is_done(newest) and not resumes(newest.ended)

    def begin(self, checkpoints: Checkpoints) -> None:
        """Refuse to train without checkpoints."""
        if checkpoints.enabled_by is None and self.estimator.config.is_chief:
            raise UsageError(
                "train_and_evaluate() evaluates checkpoints, and the plugin "
                "checkpoint-saver is off: switch it on, or call train()"
            )

    def after_create_session(self, session: Session) -> None:
        """Evaluate the checkpoint from which a resumed run continues."""
        super().after_create_session(session)
        if self.goes_on:
            self.listener.evaluate_if_due(session.global_step)


@attrs.define(eq=False)
class EvaluateListener(CheckpointSaverListener):
    """Evaluates the checkpoints of a training run.

    Attributes:
        metrics: the metrics of the last evaluation, or None.
        exports: the results of the exporters for it, or None.
        over: whether the training is over; a saver that the user made keeps its listeners.
    """

    estimator: Estimator
    spec: EvalSpec
    training: StopAlternatingHook
    metrics: dict[str, Any] | None = attrs.field(default=None, init=False)
    exports: list[Path | None] | None = attrs.field(default=None, init=False)
    over: bool = attrs.field(default=False, init=False)
    _began: float = attrs.field(default=0.0, init=False)
    _last: float | None = attrs.field(default=None, init=False)
    _evaluated: int | None = attrs.field(default=None, init=False)
    _final: bool = attrs.field(default=False, init=False)

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def after_save(
        self,
        session: Session,  # noqa: ARG002 (it is the checkpoint on disk that counts)
        global_step_value: int,
    ) -> None:
        """Evaluate if it is time to, but not the checkpoint the training starts from.

        A checkpoint that is replaced at its step contains the model that was evaluated.
        """
        if global_step_value not in (self.training.first_step, self._evaluated):
            self.evaluate_if_due(global_step_value)

    def evaluate_if_due(self, step: int) -> None:
        """Evaluate the checkpoint of a step, if it is time to."""
        if not self.over and self._is_time():
            self._evaluate(step)

    def end(
        self,
        session: Session,  # noqa: ARG002
        global_step_value: int,
    ) -> None:
        """Evaluate the last checkpoint, unless a signal asks the process to end."""
        if self.over or resumes(self.training.ended):
            return
        if self._evaluated != global_step_value:
            self._evaluate(global_step_value)
        elif not self._final:
            self._export_again()

    def _is_time(self) -> bool:
        now, spec = time.monotonic(), self.spec
        late_enough = now >= self._began + spec.start_delay_secs
        if late_enough and (self._last is None or now >= self._last + spec.throttle_secs):
            return True
        log.info("not evaluated yet", throttle_secs=spec.throttle_secs)
        return False

    def _evaluate(self, step: int) -> None:
        spec, estimator = self.spec, self.estimator
        newest = latest_checkpoint(estimator.model_dir)
        if newest is None or newest.global_step != step:
            return  # the checkpoint was not saved
        self._last, self._evaluated = time.monotonic(), step
        done = estimator.evaluate_at(
            newest.path,
            spec.input_fn,
            spec.steps,
            spec.hooks,
            spec.name,
            around=partial(self.training.around_evaluation, spec.name),
        )
        if done.cut_short:
            return  # metrics of a part of the batches are not those of the model
        self.metrics = done.result
        self.training.emit_evaluated(done.metrics, step, spec.name)
        self._final = self.training.ended is not None or self.training.is_reached(step)
        self.exports = self._exported(newest.path, self.metrics)

    def _export_again(self) -> None:
        """Tell the exporters that the last checkpoint is one they have exported already."""
        newest = latest_checkpoint(self.estimator.model_dir)
        if newest is not None and self.metrics is not None and self.exports is not None:
            self._final, before = True, self.exports
            again = self._exported(newest.path, self.metrics)
            self.exports = [n or old for n, old in zip(again, before, strict=True)]

    def _exported(self, checkpoint: Path, metrics: dict[str, Any]) -> list[Path | None]:
        folder = Path(self.estimator.model_dir) / "export"
        return [
            exporter.export(folder / exporter.name, checkpoint, metrics, self._final)
            for exporter in self.spec.exporters
        ]
