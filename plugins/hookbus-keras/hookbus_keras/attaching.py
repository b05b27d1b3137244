"""Puts the callback into each fit of a script: ``hookbus run --attach keras``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras

from hookbus_keras.callback import BusCallback


@contextlib.contextmanager
def attach() -> Iterator[None]:
    """Have each ``fit`` of a Keras model in a block carry hooks, unless it does already."""
    fit = keras.Model.fit

    @functools.wraps(fit)
    def fit_with_hooks(model: keras.Model, *args: Any, **settings: Any) -> Any:
        given = settings.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):  # its maker calls it elsewhere
            return fit(model, *args, **settings)
        is_one = isinstance(given, keras.callbacks.Callback)
        callbacks = [given] if is_one else [*(given or ())]
        if any(isinstance(each, BusCallback) for each in callbacks):
            return fit(model, *args, **settings)
        with BusCallback() as bus:
            return fit(model, *args, **{**settings, "callbacks": [*callbacks, bus]})

    keras.Model.fit = fit_with_hooks
    try:
        yield
    finally:
        keras.Model.fit = fit
