"""Calls a callback of Keras from any session, as a hook."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import keras

from hookbus import (
    Graph,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
    hookimpl,
)
from hookbus.validation import scalar_in

_STOP = "stop_training"
_MAY_SET = (_STOP, "history")
"""The attributes of the model that a callback may set; others have no effect here."""
_NEVER = ("on_test_batch_begin", "on_test_batch_end")
"""The methods that a session never calls."""


class _NoModelError(UsageError, AttributeError):
    """A callback wants something of the model. For ``hasattr`` it is not there."""


class _NoModel:
    """Takes the place of the model in a callback.

    Args:
        who: the class of the callback.
    """

    def __init__(self, who: str) -> None:
        self.__dict__.update(who=who, stop_training=False)

    def __getattr__(self, name: str) -> Any:
        raise _NoModelError(_refusal(self.__dict__["who"], name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _MAY_SET:
            raise _NoModelError(_refusal(self.__dict__["who"], name))
        self.__dict__[name] = value


class _CallbackHook(SessionRunHook):
    """Tells a callback of Keras what happens in a session."""

    def __init__(
        self, callback: keras.callbacks.Callback, logs: Sequence[str] | None
    ) -> None:
        self._callback, self._names = callback, logs
        self._model = _NoModel(type(callback).__name__)
        self._request: SessionRunArgs | None = None
        self._context: SessionRunContext | None = None
        self._epoch: int | None = None
        self._has_begun, self._next, self._batch = False, 0, 0
        self._logs: dict[str, Any] = {}

    def begin(self, graph: Graph) -> None:
        """Ask for the values that the callback gets as logs."""
        self._has_begun, self._epoch, self._next, self._context = False, None, 0, None
        wanted: Any = graph.metrics if self._names is None else [*self._names]
        self._request = None if wanted is None else SessionRunArgs(wanted)

    def after_create_session(self) -> None:
        """Begin, the first time: a recovery goes on with the same training."""
        if not self._has_begun:
            self._has_begun = True
            self._callback.set_params({"verbose": 0, "epochs": None, "steps": None})
            self._callback.set_model(self._model)
            self._callback.on_train_begin({})

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Begin a batch, and an epoch with its first one."""
        self._context = run_context
        if self._epoch is None:
            epoch = run_context.epoch
            self._epoch, self._batch = self._next if epoch is None else epoch, 0
            self._callback.on_epoch_begin(self._epoch, {})
        self._callback.on_train_batch_begin(self._batch, logs={})
        return self._request

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """End the batch."""
        found = run_values.results
        if self._names is not None:
            found = dict(zip(self._names, found, strict=True))
        self._logs = _logs_of(found or {})
        self._callback.on_train_batch_end(self._batch, logs=dict(self._logs))
        self._batch += 1
        self._heed(run_context)

    @hookimpl(wrapper=True)
    def evaluating(self) -> Iterator[None]:
        """Begin an evaluation."""
        self._callback.on_test_begin({})
        yield

    @hookimpl
    def evaluated(self, metrics: Mapping[str, float], name: str | None) -> None:
        """End an evaluation. Its metrics belong to the logs of the epoch."""
        prefix = "val" if name is None else name
        named = {n: n if n.startswith(f"{prefix}_") else f"{prefix}_{n}" for n in metrics}
        self._callback.on_test_end(dict(metrics))
        self._logs |= {named[n]: value for n, value in metrics.items()}
        self._heed(self._context)

    @hookimpl
    def epoch_ended(self, epoch: int) -> None:
        """End an epoch, or a pass in a loop without epochs."""
        if self._epoch is not None:
            self._end_epoch()
        self._next = epoch + 1
        self._heed(self._context)

    def end(self) -> None:
        """End the epoch that is open, and the training."""
        if self._epoch is not None:
            self._end_epoch()
        self._callback.on_train_end(dict(self._logs))

    def _end_epoch(self) -> None:
        epoch, self._epoch = self._epoch, None
        self._callback.on_epoch_end(epoch, dict(self._logs))

    def _heed(self, context: SessionRunContext | None) -> None:
        """Stop the session if the callback asks for it."""
        if self._model.stop_training and context is not None:
            self._model.stop_training = False
            context.request_stop(f"{type(self._callback).__name__} has set {_STOP}")


def from_callback(
    callback: keras.callbacks.Callback, logs: Sequence[str] | None = None
) -> SessionRunHook:
    """Return a hook that calls a callback of Keras in any session of hookbus.

    The callback may watch, log, and set ``self.model.stop_training``. Nothing else of the
    model is there.

    Args:
        callback: the callback, like a ``CSVLogger``.
        logs: the names of the values that it gets at the end of a batch; by default
            ``loss``, ``accuracy`` and the summaries that are numbers. At the end of an
            epoch it gets the last of these, and the metrics of evaluations with ``val_``,
            or the name of the evaluation, before them.

    Raises:
        UsageError: this is no callback of Keras, or it needs the model or the batches of an
            evaluation.

    >>> import keras
    >>> hook = from_callback(keras.callbacks.CSVLogger("log.csv"))
    >>> from_callback(keras.callbacks.ModelCheckpoint("best.keras"))
    Traceback (most recent call last):
    ...
    hookbus.errors.UsageError: ModelCheckpoint uses self.model...
    """
    kind = type(callback)
    if not isinstance(callback, keras.callbacks.Callback):
        raise UsageError(
            f"from_callback() takes a callback of Keras, not {kind.__name__}; pass hooks "
            "of hookbus as they are"
        )
    for name in _used_of_model(callback):
        raise UsageError(_refusal(kind.__name__, name))
    for name in _NEVER:
        if getattr(kind, name) is not getattr(keras.callbacks.Callback, name):
            raise UsageError(
                f"{kind.__name__} has {name}(), which a session of hookbus never calls: "
                "use it in model.fit(..., callbacks=[...])"
            )
    named = type(f"{kind.__name__}Hook", (_CallbackHook,), {"__doc__": kind.__doc__})
    hook: SessionRunHook = named(callback, logs)
    return hook


def _refusal(who: str, name: str) -> str:
    return (
        f"{who} uses self.model.{name}, and a session of hookbus has no model of Keras: "
        "use it in model.fit(..., callbacks=[...])"
    )


def _used_of_model(callback: keras.callbacks.Callback) -> Iterator[str]:
    """Yield the attributes of the model that the methods of a callback use."""
    stopping = keras.callbacks.EarlyStopping
    if isinstance(callback, stopping) and callback.restore_best_weights:
        yield "set_weights"
    for kind in type(callback).__mro__:
        if kind is keras.callbacks.Callback:
            return
        if isinstance(callback, stopping) and kind in stopping.__mro__:
            continue  # the rest of it asks whether the model has metrics
        for method in vars(kind).values():
            function = inspect.unwrap(getattr(method, "__func__", method), stop=_has_code)
            if _has_code(function):
                yield from _attributes_in(function.__code__)


def _has_code(function: Any) -> bool:
    return hasattr(function, "__code__")


def _attributes_in(code: CodeType) -> Iterator[str]:
    """Yield the attributes that some code reads or sets behind ``model``."""
    before = None
    for each in dis.get_instructions(code):
        is_attribute = each.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
        if is_attribute and before in ("model", "_model"):
            sets = each.opname == "STORE_ATTR"
            if each.argval not in (_MAY_SET if sets else (_STOP,)):
                yield each.argval
        if each.opname != "CACHE":
            before = each.argval if each.opname == "LOAD_ATTR" else None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes_in(constant)


def _logs_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as Keras gives them to callbacks: numbers as numbers of Python."""
    numbers = {name: scalar_in(value) for name, value in values.items()}
    return {name: values[name] if n is None else n for name, n in numbers.items()}
