"""Runs a callback of the Trainer of transformers as a hook, in any session."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from hookbus import SessionRunArgs, SessionRunContext, SessionRunHook, UsageError, hookimpl

_CALLED = (
    "on_init_end",
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_step_end",
    "on_log",
    "on_evaluate",
    "on_save",
    "on_epoch_end",
    "on_train_end",
)
_LOST = (
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_prediction_step",
)
"""Events inside of a step or an evaluation, of which no session knows."""
_PARTS = (
    "model",
    "processing_class",
    "tokenizer",
    "optimizer",
    "lr_scheduler",
    "train_dataloader",
    "eval_dataloader",
)
"""The objects that a Trainer gives to callbacks besides arguments, state and control."""
_UNSERVED = {
    "should_evaluate": "evaluate in the loop, with session.evaluation()",
    "should_epoch_stop": "stop the run with should_training_stop",
}


def from_callback(
    callback: TrainerCallback | type[TrainerCallback],
    *,
    args: TrainingArguments | None = None,
    log: Iterable[str] = ("loss",),
    **parts: Any,
) -> SessionRunHook:
    """Return a hook that calls a callback as a Trainer does, in any session.

    It is for callbacks that only watch, log, save or stop. ``on_log`` gets the values of
    the steps that ``args`` choose, and the metrics of evaluations, with the prefix
    ``eval_``. ``control.should_training_stop`` stops the session, and
    ``control.should_save`` asks for a checkpoint.

    Args:
        callback: the callback, or its class.
        args: the argument ``args`` of the callback, like its ``logging_steps`` and
            ``metric_for_best_model``; by default the defaults of transformers.
        log: the names of the values to log.
        parts: the other arguments of a Trainer for callbacks, if this one takes them:
            ``model``, ``optimizer``, ``processing_class``, ``lr_scheduler``,
            ``train_dataloader`` or ``eval_dataloader``.

    Raises:
        UsageError: the callback needs what only a Trainer has, or a part that is missing.

    >>> from hookbus import MonitoredSession
    >>> class Prints(TrainerCallback):
    ...     def on_log(self, args, state, control, logs, **kwargs):
    ...         print(state.global_step, logs)
    >>> args = TrainingArguments("out", logging_steps=2, report_to="none", use_cpu=True)
    >>> with MonitoredSession(hooks=[from_callback(Prints, args=args)]) as session:
    ...     for number in session.iterate(range(4)):
    ...         with session.step() as step:
    ...             step.report(loss=0.5 * number)
    2 {'loss': 0.5, 'epoch': 0.0}
    4 {'loss': 1.5, 'epoch': 0.0}
    """
    made = callback() if isinstance(callback, type) else callback
    if not isinstance(made, TrainerCallback):
        raise UsageError(
            f"from_callback() takes a TrainerCallback, not {type(made).__name__}"
        )
    name = type(made).__name__
    unknown = parts.keys() - set(_PARTS)
    if unknown:
        raise UsageError(
            f"from_callback({name}) got {', '.join(sorted(unknown))}; a callback takes "
            f"some of {', '.join(_PARTS)}"
        )
    lost = [event for event in _LOST if _has(made, event)]
    if lost:
        raise UsageError(
            f"{name} has {', '.join(lost)}, which only a Trainer calls: use it in a "
            "Trainer, together with a BusCallback"
        )
    needed = {
        part
        for event in _CALLED
        if _has(made, event)
        for part in inspect.signature(getattr(made, event)).parameters
        if part in _PARTS and part not in parts
    }
    if needed:
        raise UsageError(
            f"{name} takes {', '.join(sorted(needed))}, which a Trainer gives it: "
            f"from_callback({name}(), {', '.join(f'{n}=...' for n in sorted(needed))})"
        )
    # The class gives the hook its name: that of the callback.
    hook: SessionRunHook = type(name, (_CallbackHook,), {})(
        made, _defaults() if args is None else args, {each: each for each in log}, parts
    )
    return hook


class _CallbackHook(SessionRunHook):
    """Calls a callback of transformers for what happens in a session.

    Args:
        callback: the callback.
        args: its arguments.
        log: the names of the values to log.
        parts: the parameters that it takes besides arguments, state and control.
    """

    def __init__(
        self,
        callback: TrainerCallback,
        args: TrainingArguments,
        log: Mapping[str, str],
        parts: Mapping[str, Any],
    ) -> None:
        self._callback, self._args, self._parts = callback, args, parts
        self._request = SessionRunArgs(dict(log))
        self._run: SessionRunContext | None = None

    def begin(self, rank: int) -> None:
        """Begin with a new state."""
        self._state, self._control = TrainerState(), TrainerControl()
        self._state.is_world_process_zero = self._state.is_local_process_zero = rank == 0
        self._state.num_train_epochs = self._args.num_train_epochs
        self._run = None
        self._epoch: int | None = None
        self._has_begun = self._logs = False
        self._tell("on_init_end")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Begin the training, the epoch and the step; ask for what is to be logged."""
        state, self._run = self._state, run_context
        state.global_step = run_context.global_step
        if not self._has_begun:
            self._begin_training(run_context)
        epoch = run_context.epoch
        if epoch is not None and epoch != self._epoch:
            self._epoch, state.epoch = epoch, float(epoch)
            self._control.should_epoch_stop = False
            self._tell("on_epoch_begin")
        control, every = self._control, state.logging_steps
        next_step = run_context.global_step + 1
        self._logs = (
            control.should_log
            or (self._args.logging_strategy == "steps" and next_step % every == 0)
            or (self._args.logging_first_step and next_step == 1)
        )
        control.should_log = control.should_evaluate = control.should_save = False
        self._tell("on_step_begin")
        return self._request if self._logs else None

    def after_run(self, run_context: SessionRunContext, run_values: Any) -> None:
        """End the step; log it."""
        self._run = run_context
        self._state.global_step = run_values.global_step
        self._tell("on_step_end")
        if self._logs:
            self._log({n: _plain(value) for n, value in run_values.results.items()})

    @hookimpl
    def evaluated(
        self, metrics: Mapping[str, Any], global_step: int, name: str | None
    ) -> None:
        """Log the metrics, report the evaluation, and note the best value."""
        before = "eval_" if name is None else f"eval_{name}_"
        found = {
            each if each.startswith("eval_") else f"{before}{each}": value
            for each, value in metrics.items()
        }
        self._state.global_step = global_step
        self._log({**found})
        self._control.should_evaluate = False
        self._tell("on_evaluate", metrics=found)
        self._note_best(found)

    @hookimpl
    def after_save(self) -> None:
        """Report a checkpoint."""
        self._control.should_save = False
        self._tell("on_save")

    @hookimpl
    def epoch_ended(self, epoch: int) -> None:
        """Report the end of an epoch."""
        self._state.epoch = float(epoch + 1)
        self._tell("on_epoch_end")

    def end(self) -> None:
        """Report the end of the run, if it has begun."""
        self._run = None
        if self._has_begun:
            self._tell("on_train_end")

    def state_dict(self) -> dict[str, Any]:
        """Return the log lines, the best metric, and what the callback itself keeps."""
        own = self._callback
        kept = own.state()["attributes"] if isinstance(own, ExportableState) else {}
        state = self._state
        return {"lines": state.log_history, "best": state.best_metric, "callback": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._state.log_history, self._state.best_metric = state["lines"], state["best"]
        for name, value in state["callback"].items():
            setattr(self._callback, name, value)

    def _begin_training(self, run_context: SessionRunContext) -> None:
        self._has_begun, args = True, self._args
        state = self._state
        state.max_steps = run_context.last_step or max(args.max_steps, 0)
        state.compute_steps(args, state.max_steps)
        try:
            self._tell("on_train_begin")
        except AssertionError as error:
            raise UsageError(
                f"{type(self._callback).__name__} needs other arguments: {error}. Give "
                "them with from_callback(..., args=TrainingArguments(...))"
            ) from error

    def _log(self, values: dict[str, Any]) -> None:
        logs = {**values, "epoch": self._state.epoch}
        self._state.log_history.append({**logs, "step": self._state.global_step})
        self._control.should_log = False
        self._tell("on_log", logs=logs)

    def _note_best(self, metrics: Mapping[str, Any]) -> None:
        """Note the best metric as a Trainer does: behind ``on_evaluate``."""
        args, state = self._args, self._state
        if args.metric_for_best_model is None:
            return
        value = metrics.get(f"eval_{args.metric_for_best_model.removeprefix('eval_')}")
        best = state.best_metric
        if value is not None and (
            best is None or (value > best if args.greater_is_better else value < best)
        ):
            state.best_metric = value

    def _tell(self, event: str, **more: Any) -> None:
        """Call the callback, and pass on what it asks for."""
        who, control = type(self._callback).__name__, self._control
        answer = getattr(self._callback, event)(
            self._args, self._state, control, **self._parts, **more
        )
        self._control = control = control if answer is None else answer
        for flag, instead in _UNSERVED.items():
            if getattr(control, flag):
                raise UsageError(
                    f"{who} set control.{flag} in {event}, which only a Trainer serves: "
                    f"{instead}"
                )
        run = self._run
        if run is None or run.is_over:
            return  # the next event of a run asks
        if control.should_training_stop:
            run.request_stop(f"control.should_training_stop is set in {event}")
        if control.should_save:
            control.should_save = False
            run.request_save(f"control.should_save is set in {event}")


def _has(callback: TrainerCallback, event: str) -> bool:
    """Return whether a callback does something in an event."""
    method = getattr(callback, event, None)
    return getattr(method, "__func__", method) is not getattr(TrainerCallback, event, None)


def _defaults() -> TrainingArguments:
    """Return the default arguments, which look for no device and no other process."""
    args = TrainingArguments.__new__(TrainingArguments)
    for field in dataclasses.fields(TrainingArguments):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        setattr(args, field.name, None if value is dataclasses.MISSING else value)
    return args


def _plain(value: Any) -> Any:
    """Return a number as callbacks get it from a Trainer, and anything else as it is."""
    return value.item() if getattr(value, "size", 0) == 1 else value
